/// <reference types="node" />

import type { Answers, Requests } from './lib/wire.js';

export type { Answers, Requests };

/** Text, as UTF-8, or bytes. */
export type Data = string | NodeJS.ArrayBufferView | ArrayBuffer;
/** A path in a sandbox: text, as UTF-8, or the bytes of a name that isn't. */
export type PathLike = string | NodeJS.ArrayBufferView;
/** What can be written: all at once, or in pieces, such as a Readable. */
export type Content = Data | Iterable<Data> | AsyncIterable<Data>;
/** Bytes, or text such as "512M" or "1.5GiB". */
export type Size = number | string;

export type Outcome = 'finished' | 'raised' | 'signalled' | 'timed_out' | 'out_of_memory' | 'output_limit' | 'internal';
export type Limit = 'memory' | 'processes' | 'files' | 'descriptors' | 'output' | 'time' | 'cpu';

/** How a job ended, and what it wrote: all of it untrusted. */
export class Result {
  private constructor();
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly stdoutText: string;
  readonly stderrText: string;
  /** It ended by itself, with status 0. */
  readonly ok: boolean;
  readonly exitCode: number;
  readonly outcome: Outcome;
  readonly limit: Limit | null;
  /** Seconds. */
  readonly duration: number;
  readonly cpuTime: number;
  /** Of `duration`: for which it could have run and had no processor, where it had the option `wall`. */
  readonly starved: number | null;
  /** Bytes. */
  readonly memoryPeak: number;
  readonly denied: Readonly<Record<string, number | bigint>>;
  /** Output was cut at its limit. */
  readonly truncated: boolean;
  /** Bytes that are left out of stdout, where a line says so, if the program went on at its output limit. */
  readonly stdoutOmitted: number;
  readonly stderrOmitted: number;
  readonly degraded: readonly string[];
  readonly error: { readonly type: string; readonly message: string; readonly traceback: string } | null;
  readonly files: Readonly<Record<string, Buffer>>;
  readonly leftOut: readonly { readonly name: string; readonly reason: string }[];
  /** What the job showed: for each thing a map from MIME type to text or bytes. HTML and SVG can hold scripts. */
  readonly results: readonly Readonly<Record<string, string | Buffer>>[];
  readonly value: string | null;
  /** One line about the limit that it has reached, or how a job that lacks a module has a package; otherwise "". */
  readonly hint: string;
  readonly label: string;
  readonly job: number;
}

/** Limits of each program, and the variables that it gets. */
export interface LimitOptions {
  env?: Record<string, string> | Map<string, string>;
  /** Seconds. */
  timeout?: number;
  /** Bytes of stdout and stderr together. */
  output?: Size;
  /** At the limit on output: keep its beginning and end, or end the program. A fresh job is ended by default; all else is cut. */
  overflow?: 'cut' | 'end';
}

export interface HostOptions {
  /** The daemon's socket, or `https://NAME` or `ssh://USER@NAME` of one on another machine; else LEEWARD_HOST, LEEWARD_SOCKET, or the default. */
  socket?: string;
  /** For https; else LEEWARD_TOKEN. */
  token?: string;
  /** The `leeward` command, for packages, mounts, the profile "shell", `diff` and `publish`: a path, or a program and its arguments; else LEEWARD_COMMAND, else PATH. */
  command?: string | string[];
}

export interface CallOptions {
  /** Seconds for the call as a whole. */
  deadline?: number;
  /** Takes the request back, and ends its job. */
  signal?: AbortSignal;
  /** The job may run twice: the call is repeated also when the connection was lost with the answer. */
  idempotent?: boolean;
}

/** What is called while the code runs, with each piece of output as it comes, and what it shows (`display`). After an error of one none is called any more, and the call rejects with it at the end. */
export interface ArrivalOptions extends OutputCallbacks {
  onResult?: (shown: Readonly<Record<string, string | Buffer>>) => unknown;
}

export interface CodeOptions extends LimitOptions, ArrivalOptions {
  args?: Iterable<string>;
  /** Files to write to /workspace before, by relative name. */
  files?: Record<string, Data> | Map<string, Data>;
  /** Names, folders and patterns of files below /workspace to return in `Result.files`. */
  collect?: Iterable<string>;
  /** Return what the code shows, and the value of its last expression. */
  display?: boolean;
  /** The file name that tracebacks show. */
  name?: string;
  label?: string;
}

export interface ExecuteOptions extends CodeOptions, CallOptions {
  /** A module to run in place of code. */
  module?: string;
  stdin?: Data;
  memory?: Size;
  processes?: number;
  /** Open descriptors in each process. */
  descriptors?: number;
  /** Seconds in all, if `timeout` is to count none for which the job had no processor. */
  wall?: number;
  /** Processor seconds of all its processes. */
  cpuTime?: number;
  /** What the sandbox shows and permits: `python`, `workdir`, or one of the operator's. */
  profile?: string;
  /** The interpreter and its packages, by the name that the daemon's configuration has. */
  environment?: string;
  /** Requirements of pip's, such as `pandas==2.2`, in place of an environment; by the `leeward` command. */
  packages?: Iterable<string>;
  /** What it may reach: a policy of the daemon's configuration. */
  egress?: string;
}

export interface ClientOptions extends HostOptions {
  /** Send requests again where nothing of the job has run. */
  retry?: boolean;
  /** Also after the daemon was busy. */
  retryBusy?: boolean;
}

/** One job of `map`: its code, or the options of `execute` with the code, which come before those of all. */
export type MapJob = Data | (ExecuteOptions & { code?: Data });

/** One job's end: its number in the order of the jobs, from 0, and its result, or why it was refused. */
export interface MapEnd {
  readonly number: number;
  readonly job: MapJob;
  readonly result: Result | null;
  readonly error: Refused | null;
}

export interface MapOptions extends Omit<ExecuteOptions, keyof ArrivalOptions | 'idempotent'> {
  idempotent?: boolean;
  /** Ends in the order of the jobs; else as they come. */
  ordered?: boolean;
  /** Jobs that are sent at once at most, 256 by default. */
  atOnce?: number;
  /** Called each time a job has ended. */
  progress?: (progress: { done: number; refused: number; total: number | null }) => unknown;
}

/** Jobs of the daemon, each in a process of its own. */
export class Client {
  constructor(options?: ClientOptions);
  execute(code: Data | undefined, options?: ExecuteOptions): Promise<Result>;
  /** Run many jobs, as many at once as the daemon takes, and yield each one's end as it comes. */
  map(jobs: Iterable<MapJob> | AsyncIterable<MapJob>, options?: MapOptions): AsyncGenerator<MapEnd, void, undefined>;
  ping(options?: CallOptions): Promise<{ version: string; wire: number; caps?: Record<string, number> }>;
  status(options?: CallOptions): Promise<Record<string, any>>;
  close(): void;
}

/** A folder of the host, or a single file to read, that a sandbox shows. */
export interface Mount {
  source: string;
  /** Where the sandbox has it; an absolute path. */
  target: string;
  writable?: boolean;
  /** The sandbox may write there, and the host's folder stays as it is. */
  overlay?: boolean;
  /** Of a writable folder: all of it is read when the sandbox is opened, and `diff` says what has changed since. */
  compare?: boolean;
  /** It is copied into the sandbox when that is opened, also to another machine. */
  copy?: boolean;
}

/** Which connections a sandbox uses. */
export interface SharingOptions extends HostOptions {
  /** Those of a client, with its socket, command and `retryBusy`, beside other sandboxes; what is `held` has its own. */
  client?: Client;
  /** Send requests again after the daemon was busy. */
  retryBusy?: boolean;
}

/** The limits are those of each `run` and `shell` that sets none. */
export interface SandboxOptions extends SharingOptions, LimitOptions {
  profile?: string;
  /** The interpreter and its packages, by the name that the daemon's configuration has. */
  environment?: string;
  /** Of the profile "shell": hide nothing. */
  showSecrets?: boolean;
  /** an image of the daemon's user, whose root file system the sandbox has; and who runs in it */
  image?: string;
  user?: string;
  /** Requirements of pip's, such as `pandas==2.2`, in place of an environment; by the `leeward` command. */
  packages?: Iterable<string>;
  /** What it may reach: a policy of the daemon's configuration. */
  egress?: string;
  /** All public names and addresses, where the operator lets it; in place of `egress`. */
  allowNetwork?: boolean;
  /** A policy that takes less of what `egress` allows; docs/egress.md has its keys. */
  policy?: Record<string, unknown>;
  /** The same for `fetch` alone, in its short form. */
  fetchPolicy?: Record<string, unknown>;
  memory?: Size;
  processes?: number;
  descriptors?: number;
  /** What /workspace, /tmp and /dev/shm have room for together; it counts as memory. */
  files?: Size;
  /** Seconds without a call after which the daemon ends it. */
  idle?: number;
  lifetime?: number;
  metadata?: Record<string, string> | Map<string, string>;
  mounts?: Iterable<Mount>;
  /** The folder of the host that is its /workspace. */
  workdir?: string;
  /** The workdir stays as it is, and `diff` says what would have changed. */
  overlay?: boolean;
  /** All of the workdir is read when the sandbox is opened, and `diff` says what has changed since. */
  compare?: boolean;
  /** The workdir is copied into the sandbox when that is opened, also to another machine. */
  copy?: boolean;
  /** The daemon ends the sandbox when this program ends, however it ends, until `detach`. */
  held?: boolean;
}

export interface ProgramOptions extends LimitOptions {
  /** The folder to start in; /workspace by default. */
  cwd?: string;
  stdin?: Data | null;
  /** What `processes` shows. */
  title?: string;
  /** Processor seconds of it and all that descends from it. */
  cpuTime?: number;
  /** Its environment is PATH, and what was given. */
  clean?: boolean;
  /** Of `run` and `shell`: it reads all of its stdin before it does anything, so that another one may wait for the next such call. */
  warm?: boolean;
  /** What it leaves running is killed before its result is there. */
  endsChildren?: boolean;
}

export interface OutputCallbacks {
  /** Called with each piece as it comes; the next one waits for what it returns. */
  onStdout?: (data: Buffer) => unknown;
  onStderr?: (data: Buffer) => unknown;
}

export type RunOptions = ProgramOptions & OutputCallbacks & { signal?: AbortSignal };

export interface ProcessRow {
  process: number;
  pid: number;
  title: string;
  argv: string[];
  age: number;
  over: boolean;
  exit_code: number | null;
}

/** What a sandbox has changed in its copy of a folder, or anybody in one that is compared. */
export interface FolderChange {
  path: string;
  kind: 'created' | 'modified' | 'deleted' | 'mode';
  type: string;
  mode: number;
  size: number;
  [more: string]: unknown;
}

/** A sandbox that stays: files, processes and their output, until it is closed. */
export class Sandbox {
  constructor(options?: SandboxOptions);
  /** If `held`, what it starts ends with this program, or at `detach`. */
  static attach(id: string, options?: SharingOptions & { held?: boolean }): Promise<Sandbox>;
  static list(options?: { socket?: string; token?: string }): Promise<Record<string, any>[]>;
  readonly files: Files;
  /** An operation about this sandbox by its name, with the fields and the answer that docs/wire.md has for it. */
  ask<Op extends keyof Requests>(op: Op, fields?: Omit<Requests[Op], 'sandbox'>, options?: CallOptions): Promise<Answers[Op]>;
  /** 26 characters; the first use opens the sandbox. */
  id(): Promise<string>;
  run(argv: string[], options?: RunOptions): Promise<Result>;
  shell(line: string, options?: RunOptions): Promise<Result>;
  /** `stdin: null` leaves it open for `Process.write`. */
  start(what: string[] | string, options?: ProgramOptions): Promise<Process>;
  terminal(what?: string[] | string, options?: { rows?: number; columns?: number; cwd?: string; env?: Record<string, string>; timeout?: number; title?: string }): Promise<Process>;
  processes(): Promise<ProcessRow[]>;
  process(number: number): Promise<Process>;
  /** Sent by the daemon's broker, as the sandbox's policy of egress allows it. */
  fetch(url: string | URL, options?: FetchOptions): Promise<Fetched>;
  fetch(request: FetchOptions & { url: string | URL }): Promise<Fetched>;
  execute(code: Data, options?: CodeOptions & { stdin?: Data; signal?: AbortSignal }): Promise<Result>;
  /** It begins with the state of the snapshot, or of the one with that id; with `sameRandom` its random numbers go on. */
  kernel(options?: { snapshot?: Snapshot | string; sameRandom?: boolean }): Promise<Kernel>;
  /** Sandboxes with these options and files, and copies of these kernels; programs aren't copied. */
  fork(count?: number, kernels?: Kernel[], options?: { sameRandom?: boolean }): Promise<{ sandbox: Sandbox; kernels: Kernel[] }[]>;
  /** Make the server at `port` in the sandbox reachable on 127.0.0.1 of the host, for every user there, by the command. */
  publish(port: number, options?: { hostPort?: number }): Promise<Published>;
  diff(options?: { target?: string }): Promise<FolderChange[]>;
  info(): Promise<Record<string, any>>;
  extend(options?: {
    idle?: number; lifetime?: number; metadata?: Record<string, string>; policy?: Record<string, unknown>;
  }): Promise<Record<string, any>>;
  kill(): Promise<void>;
  close(): Promise<void>;
  detach(): Promise<string>;
}

/** A port of the host, until `close`, or the end of this program or of the sandbox. */
export interface Published {
  readonly port: number;
  close(): Promise<void>;
}

export interface FetchOptions {
  method?: string;
  headers?: Record<string, string> | Iterable<[string, string]>;
  body?: Data;
  signal?: AbortSignal;
}

/** The response to a fetch. */
export interface Fetched {
  readonly status: number;
  readonly ok: boolean;
  /** In order; several of one name are kept. */
  readonly headers: [string, string][];
  readonly body: Buffer;
  /** Of the last hop. */
  readonly url: string;
  /** The URLs before it. */
  readonly history: string[];
  readonly address: string;
}

/** A piece of a process's output. */
export interface Chunk {
  /** From 1 on. */
  number: number;
  stream: 'stdout' | 'stderr';
  /** Seconds of the host's CLOCK_MONOTONIC. */
  time: number;
  data: Buffer;
  /** The bytes as UTF-8. A character that is cut is in the text of the chunk that ends it. */
  text: string;
}

/** A process of a sandbox. While nobody reads its output it can write some 128 KiB, and then waits. */
export class Process implements AsyncIterable<Chunk> {
  private constructor();
  readonly number: number;
  pid(): Promise<number>;
  read(options?: { timeout?: number }): Promise<Chunk[]>;
  [Symbol.asyncIterator](): AsyncGenerator<Chunk, void, undefined>;
  write(data: Data): Promise<number>;
  closeStdin(): Promise<void>;
  signal(signal?: NodeJS.Signals | number): Promise<boolean>;
  resize(rows: number, columns: number): Promise<boolean>;
  kill(): Promise<void>;
  wait(): Promise<Result>;
  wait(options: { timeout?: number }): Promise<Result | null>;
  result(options?: OutputCallbacks): Promise<Result>;
}

/** A Python in a sandbox that keeps its state. */
export class Kernel {
  private constructor();
  readonly number: number;
  execute(code: Data, options?: CodeOptions & { signal?: AbortSignal }): Promise<Result>;
  interrupt(): Promise<boolean>;
  reset(): Promise<void>;
  /** A second kernel with the state that this one has; from then on each has its own. */
  fork(): Promise<Kernel>;
  /** The state that this one has, which goes on; SnapshotFailed if it has threads, say. */
  snapshot(): Promise<Snapshot>;
  /** Refused, the kernel goes on as it was. */
  rollback(snapshot: Snapshot | string, options?: { sameRandom?: boolean }): Promise<void>;
  close(): Promise<void>;
}

/** The state of a kernel at one moment. It belongs to the user, and outlives the sandbox until it is removed. */
export class Snapshot {
  private constructor();
  readonly id: string;
  /** Bytes of the daemon's memory. */
  readonly size: number;
  /** Seconds since the epoch. */
  readonly made: number;
  readonly python: string;
  readonly packages: Record<string, string>;
  /** What copies don't have of it, by name. */
  readonly lost: string[];
  /** The snapshot with this id; SnapshotFailed if the user has none. */
  static find(id: string, options?: { socket?: string }): Promise<Snapshot>;
  /** The snapshot in a file, taken into the daemon's memory; SnapshotFailed says what is different here. */
  static load(file: string, options?: { socket?: string }): Promise<Snapshot>;
  /** Writes it into a file, which only this user can read. */
  save(file: string): Promise<void>;
  remove(): Promise<void>;
}

/** What is by one name in a sandbox. */
export class FileInfo {
  private constructor();
  readonly name: string;
  readonly nameBytes: Buffer;
  readonly kind: 'file' | 'folder' | 'link' | 'other';
  readonly mode: number;
  readonly size: number;
  readonly mtimeNs: bigint;
  readonly mtime: Date;
  readonly target: string;
  isFile(): boolean;
  isFolder(): boolean;
}

export interface ReadOptions {
  offset?: number;
  size?: number;
  /** The first and the last line, from 1 on. */
  lines?: [number, number];
  /** Bytes; more than that is EFBIG. */
  limit?: number;
}

export class Files {
  private constructor();
  read(path: PathLike, options: ReadOptions & { encoding: BufferEncoding }): Promise<string>;
  read(path: PathLike, options?: ReadOptions): Promise<Buffer>;
  stream(path: PathLike, options?: ReadOptions): AsyncGenerator<Buffer, void, undefined>;
  write(path: PathLike, data: Content, options?: { mode?: number; exclusive?: boolean }): Promise<number>;
  /** Many files by one call, each as `write` does; resolves to the bytes of all. FilesFailed says which couldn't be written. */
  writeMany(files: Record<string, Data> | Map<PathLike, Data>, options?: { mode?: number }): Promise<number>;
  /** Many files by one call, by path; the limit is for all together. FilesFailed says which couldn't be read, and has the others. */
  readMany<P extends PathLike>(paths: Iterable<P>, options?: { limit?: number }): Promise<Map<P, Buffer>>;
  append(path: PathLike, data: Content): Promise<number>;
  edit(path: PathLike, before: Data, after: Data): Promise<void>;
  list(path?: PathLike): Promise<FileInfo[]>;
  stat(path: PathLike, options?: { follow?: boolean }): Promise<FileInfo>;
  exists(path: PathLike): Promise<boolean>;
  mkdir(path: PathLike, options?: { parents?: boolean; existOk?: boolean }): Promise<void>;
  move(path: PathLike, to: PathLike): Promise<void>;
  copy(path: PathLike, to: PathLike, options?: { timeout?: number }): Promise<void>;
  remove(path: PathLike, options?: { recursive?: boolean; missingOk?: boolean; timeout?: number }): Promise<void>;
  glob(pattern: PathLike, options?: { path?: PathLike; limit?: number; timeout?: number }): Promise<string[] & { more: boolean }>;
  grep(pattern: Data, options?: { path?: PathLike; include?: string; literal?: boolean; ignoreCase?: boolean; limit?: number; timeout?: number }): Promise<{ path: string; line: number; text: string }[] & { more: boolean }>;
}

export interface WorkdirOptions extends Omit<HostOptions, 'token'> {
  workDir: string;
  mounts?: Iterable<Mount>;
  /** The environment of commands, beside PATH. They have no other. */
  env?: Record<string, string> | Map<string, string>;
  /** Of each command; 30,000 by default. */
  timeoutMs?: number;
  /** Processor seconds of each command, with all that it starts. */
  cpu?: number;
  /** Of all that runs at the same time; 512 MiB by default. */
  memoryLimit?: Size;
  /**
   * What `fetch`, curl and all other programs may reach: a policy in the short form of docs/egress.md. It takes less of the
   * operator's policy `egress`, which is `network` where none is named. Without either there is no network.
   */
  fetchPolicy?: Record<string, unknown> | null;
  /** The operator's policy. */
  egress?: string;
  /** The folder stays as it is; commands work on a copy, and `diff` says what they have changed. */
  overlay?: boolean;
  /** All of the folder is read before the first call, so that `diff` knows the content of each file. */
  compare?: boolean;
  /** Nothing writes what programs on the host run at once, such as `.git/config` or `.envrc`: docs/workdir.md. */
  protect?: boolean;
}

export interface WorkdirRunOptions extends OutputCallbacks {
  signal?: AbortSignal;
  /** What the command leaves running runs on; else it is killed before the result is there. */
  background?: boolean;
}

/** A folder of the host with tools that work in it, and reach nothing else. */
export class WorkdirSandbox {
  constructor(options: WorkdirOptions);
  /** With `protect`, the paths of what commands have made anyway and programs on the host would run at once; each was renamed. */
  readonly putAway: string[];
  static availableTools(options?: { socket?: string }): Promise<string[]>;
  exec(command: string, args?: Iterable<string>, options?: WorkdirRunOptions): Promise<Result>;
  execJs(code: string, options?: WorkdirRunOptions): Promise<Result>;
  readFile(path: string): Promise<Buffer>;
  readFile(path: string, encoding: BufferEncoding): Promise<string>;
  writeFile(path: string, data: Content): Promise<void>;
  listDir(path?: string): Promise<{ name: string; isDir: boolean; isFile: boolean; size: number }[]>;
  diff(): Promise<FolderChange[]>;
  fetch(url: string | URL, options?: FetchOptions): Promise<Fetched>;
  fetch(request: FetchOptions & { url: string | URL }): Promise<Fetched>;
  availableTools(): Promise<string[]>;
  destroy(): Promise<void>;
}

export default WorkdirSandbox;

export class LeewardError extends Error {}
export class PeerError extends LeewardError {}
/** The base class of what a call of the daemon throws. */
export class DaemonError extends LeewardError {
  /** Whether the job, or a part of it, may have run. False is certain. */
  mayHaveRun: boolean;
}
export class DaemonAway extends DaemonError {}
export class NoAnswer extends DaemonError {}
export class BadReply extends DaemonError {}
export class Refused extends DaemonError {
  kind: string;
  /** Seconds after which the same request may be taken. */
  retryAfter: number | null;
}
export class Busy extends Refused {}
export class QueueTimeout extends Refused {}
export class ShuttingDown extends Refused {}
export class VersionMismatch extends Refused {}
export class RequestRejected extends Refused {}
export class Cancelled extends Refused {}
export class SessionOver extends Refused {}
export class ProcessOver extends Refused {}
/** The snapshot couldn't be taken or loaded, or there is none; the message says why. */
export class SnapshotFailed extends Refused {}
/** The interpreter, profile or policy that was asked for can't be had on this host. */
export class PoolFailed extends Refused {}
export class Forbidden extends Refused {}
export class SandboxOver extends Refused {
  reason: string;
  /** Seconds since the epoch; 0 where that isn't known. */
  when: number;
  limit: string | null;
}
export class EditError extends LeewardError {
  path: string;
  found: number;
}
/** Some files couldn't be written or read; all others were. Both are by path, as it was given. */
export class FilesFailed extends LeewardError {
  errors: Map<PathLike, LeewardError>;
  found: Map<PathLike, Buffer>;
}
/** A file call in a sandbox failed; `code` is as Node has it, such as ENOENT. */
export class OSError extends LeewardError {
  errno: number;
  code: string;
  path: string;
}
export class FileNotFoundError extends OSError {}
export class FileExistsError extends OSError {}
export class NotADirectoryError extends OSError {}
export class IsADirectoryError extends OSError {}
export class PermissionError extends OSError {}
export class TimeoutError extends OSError {}
export class BrokenPipeError extends OSError {
  taken: number;
}

/** What the calls of a WorkdirSandbox throw; `kind` is the same word in all languages. */
export class WorkdirError extends LeewardError {
  kind: 'other' | 'runtime' | 'io' | 'path_traversal' | 'command_not_found' | 'timeout' | 'destroyed' | 'toolbox_not_available' | 'networking_disabled' | 'fetch';
}
export class WorkdirRuntimeError extends WorkdirError {}
export class WorkdirIoError extends WorkdirError {
  code: string;
  path: string;
}
export class PathTraversal extends WorkdirError {
  path: string;
}
export class CommandNotFound extends WorkdirError {
  command: string;
}
export class Timeout extends WorkdirError {
  limit: Limit;
  result: Result;
}
export class Destroyed extends WorkdirError {}
export class ToolboxNotAvailable extends WorkdirError {}
export class NetworkingDisabled extends WorkdirError {}
export class FetchError extends WorkdirError {
  cause: string;
  url: string;
  mayHaveBeenSent: boolean;
}
/** A fetch has no response; the message begins as docs/egress.md has it. */
export class FetchFailed extends LeewardError {
  cause: string;
  url: string;
  mayHaveBeenSent: boolean;
}
