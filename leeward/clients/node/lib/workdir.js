'use strict';
/*
 * A folder with tools: commands, JavaScript and files, by one object. It is a live sandbox whose /workspace is the folder;
 * the first call opens it. Files are read and written by a process inside, under the sandbox's locks: whatever links a
 * command puts in the way, nothing of the host is reached but the folder.
 */

const fs = require('node:fs');
const path = require('node:path');
const {
  CommandNotFound, DaemonError, Destroyed, FetchError, FetchFailed, LeewardError, NetworkingDisabled, OSError, PathTraversal, RequestRejected, SandboxOver, Timeout,
  ToolboxNotAvailable, WorkdirError, WorkdirIoError, WorkdirRuntimeError,
} = require('./errors.js');
const { Sandbox, hidden } = require('./sandbox.js');
const { Result } = require('./results.js');
const { fetchArguments } = require('./fetching.js');
const { known, pairs, size, texts } = require('./fields.js');
const TOOLS = require('./tools.js');

const OPTIONS = ['workDir', 'mounts', 'env', 'timeoutMs', 'cpu', 'memoryLimit', 'fetchPolicy', 'egress', 'overlay', 'compare', 'protect', 'socket', 'command', 'retryBusy'];
const DEFAULT_MS = 30000;
const DEFAULT_MEMORY = '512M';
/** Links that lead to links, as Linux counts them. */
const MOST_LINKS = 40;
/** Prints those of its arguments that are programs in PATH, a line each. */
const LOOK = 'IFS=:; for tool; do for folder in $PATH; do [ -x "$folder/$tool" ] && echo "$tool" && break; done; done; :';
/** Without arguments and without a terminal Node reads a program from stdin, which is empty here. */
const USAGE = "echo 'usage: node [options] [-e CODE | -p CODE | FILE] [arguments]' >&2; exit 2";
/** What V8 writes before it aborts because its heap is full, and the status of that. */
const HEAP_FULL = 'JavaScript heap out of memory';
const ABORTED = 134;
const OUT_OF_MEMORY = 137;
/** For `node --require`, in every sandbox: `fetch` says that there is no network; and a `fetchSync` where there is one. leeward/spec/stand_ins.py has them. */
const NO_FETCH = '/opt/leeward/stand-ins/fetch.cjs';
const FETCH_SYNC = '/opt/leeward/stand-ins/fetch-sync.cjs';
/** A Node that waits for its code: leeward/spec/warm_node.py has the file, the words in place of the code, and what such a one declines. */
const WARM = '/opt/leeward/stand-ins/warm.cjs';
const PROBE = 'leewardProbe(new Error())';
const NEEDS_NODE = /\b(?:crypto|eval|Function|import|worker_threads)\b/;
const DECLINED = 81;
const DECLINES = "leeward: this Node can't wait: ";
/** Characters of code that goes by standard input: no more than an argument has. */
const MOST_WARM = 32768;

class WorkdirSandbox {
  constructor(options = {}) {
    known('WorkdirSandbox', options, OPTIONS);
    const { workDir, mounts = [], env = {}, timeoutMs = DEFAULT_MS, cpu, memoryLimit = DEFAULT_MEMORY, overlay = false, compare = false, protect = false, socket, command, retryBusy } = options;
    if (overlay && compare) throw new RequestRejected('overlay needs no compare: `diff` shows what commands wrote to their copy');
    if (overlay && protect) throw new RequestRejected('overlay needs no protect: commands write to their copy alone');
    const network = networkOf(options);
    if (typeof workDir !== 'string') throw new WorkdirIoError('EINVAL', 'workDir is no path', String(workDir));
    const folder = path.resolve(workDir);
    there(folder, true);
    for (const mount of mounts) if (typeof mount.source === 'string') there(mount.source, false);
    const memory = size(memoryLimit, 'memoryLimit');
    const make = () => {
      const box = new Sandbox({ socket, command, retryBusy, profile: 'workdir', workdir: folder, mounts: [...mounts], overlay, memory, held: true, ...network });
      box.watch = { ...(overlay ? {} : { state: compare ? 'read' : 'lazy' }), ...(protect ? { guard: true } : {}) };
      return box;
    };
    this.putAway = [];
    hidden(this, { protect, make, box: make(), env: pairs(env, 'env'), seconds: timeoutMs / 1000, cpu, heap: heapOf(memory), overlay, folder, network: Boolean(network.egress), tools: null, over: false });
  }

  // --- commands ---------------------------------------------------------------------

  /** Run a tool to its end, in a fresh process, without a shell and with empty standard input. */
  async exec(command, args = [], options = {}) {
    this.check();
    const words = texts(args, 'args');
    if (!TOOLS.includes(command)) throw new CommandNotFound(command);
    if (command === 'curl' && !this.network) throw new NetworkingDisabled();
    return command === 'node' ? this.node(words, options) : this.run([command, ...words], options);
  }

  /** Run JavaScript as `node -e` does, in a fresh Node, which may have been started before. */
  async execJs(code, options = {}) {
    this.check();
    try {
      return await this.warm(code, options) || await this.node(['-e', code], options);
    } catch (error) {
      if (error instanceof CommandNotFound) throw new ToolboxNotAvailable("the host has no Node: install Debian's nodejs");
      throw error;
    }
  }

  async node(words, options) {
    if (!words.length) return this.run(['sh', '-c', USAGE], options);
    return told(await this.run([...this.words(), ...words], options));
  }

  words() {
    return ['node', `--max-old-space-size=${this.heap}`, '--require', this.network ? FETCH_SYNC : NO_FETCH];
  }

  /** What `code` gives in a Node that was started before, if there is one; null where it needs one of its own. */
  async warm(code, options) {
    if (options.onStdout || options.onStderr || typeof code !== 'string' || code.length > MOST_WARM || NEEDS_NODE.test(code)) return null;
    const got = await this.run([...this.words(), '--require', WARM, '-e', PROBE], options, { stdin: code, warm: true });
    return got.exitCode === DECLINED && !got.stdout.length && got.stderrText.startsWith(DECLINES) ? null : told(got);
  }

  async run(argv, options, more = {}) {
    const { background = false, ...asked } = known('exec', options, ['onStdout', 'onStderr', 'signal', 'background']);
    const job = { ...asked, ...more, env: this.env, timeout: this.seconds, cpuTime: this.cpu, clean: true, endsChildren: !background };
    let got;
    try {
      got = await this.guarded(() => this.box.run(argv, job));
    } finally {
      await this.tidy();
    }
    if (got.outcome === 'timed_out') throw new Timeout(got);
    if (got.exitCode === 127 && !(await this.availableTools()).includes(argv[0])) throw new CommandNotFound(argv[0]);
    if (got.outcome === 'internal') throw new WorkdirRuntimeError(`the command was lost: ${got.error ? got.error.message : 'no reason is known'}`);
    return got;
  }

  /** The commands that `exec` takes and this host has. */
  async availableTools() {
    this.check();
    if (!this.tools) this.tools = await this.guarded(() => look(this.box));
    return [...this.tools];
  }

  /** The same without a folder. */
  static async availableTools({ socket } = {}) {
    const box = new Sandbox({ socket });
    try {
      return await look(box);
    } finally {
      await box.close();
    }
  }

  /**
   * Send a request by http or https as the policy allows it: `{status, headers, body, url, history, address, ok}`. Nothing
   * of it runs in the sandbox. NetworkingDisabled without a policy, FetchError where there is no response.
   */
  async fetch(url, options = {}) {
    this.check();
    if (!this.network) {
      [url] = fetchArguments(url, options);
      if (!isUrl(url)) throw new FetchError(`invalid URL: ${JSON.stringify(String(url)).slice(0, 200)} is no URL of http or https`, 'url', String(url));
      throw new NetworkingDisabled();
    }
    try {
      return await this.guarded(() => this.box.fetch(url, options));
    } catch (error) {
      const failed = error instanceof WorkdirRuntimeError ? error.cause : error;
      if (failed instanceof FetchFailed) throw new FetchError(failed.message, failed.cause, failed.url, failed.mayHaveBeenSent);
      throw error;
    }
  }

  // --- files ------------------------------------------------------------------------

  /** What is in a file: a Buffer, or text with an encoding. */
  async readFile(file, encoding = undefined) {
    return this.inside(file, (name) => this.box.files.read(name, { encoding }));
  }

  /** Put `data` in the place of what the file has; folders that lead there are made. */
  async writeFile(file, data) {
    await this.inside(file, async (name) => {
      if (this.protect) {
        if (name !== plain(file)) throw new WorkdirIoError('ELOOP', 'there is a link in it', file);
        await this.box.id();
        await this.box.companion.ask({ do: 'check', path: name });
      }
      await this.box.files.write(name, data);
    });
    await this.tidy();
  }

  /** What a folder has, sorted by name: `{name, isDir, isFile, size}`. A link is neither a folder nor a file. */
  async listDir(folder = '.') {
    let found = await this.inside(folder, (name) => this.box.files.list(name));
    if (plain(folder) === '.') found = found.filter(({ name }) => !this.box.made.includes(name));
    return found.map((info) => ({ name: info.name, isDir: info.isFolder(), isFile: info.isFile(), size: info.isFile() ? info.size : 0 }));
  }

  /**
   * What commands have changed in their copy of the folder (`overlay`), or what was changed in the folder since the first
   * call: rows with `path` and `kind`, sorted.
   */
  async diff() {
    this.check();
    return this.guarded(() => this.box.diff());
  }

  /** Rename what was made and programs on the host run at once; with `protect`. */
  async tidy() {
    const { companion } = this.box;
    if (!this.protect || this.over || !companion || !companion.opened) return;
    try {
      this.putAway.push(...(await companion.ask({ do: 'put_away' })).put_away);
    } catch (error) {
      throw new WorkdirRuntimeError(`the sandbox was ended: ${error.message}`, { cause: error });
    }
  }

  async inside(file, call) {
    this.check();
    const name = plain(file);
    try {
      return await this.guarded(async () => call(await this.resolve(name)));
    } catch (error) {
      if (error instanceof OSError) throw new WorkdirIoError(error.code, error.message, name);
      throw error;
    }
  }

  /**
   * `name` without links. A link that leads out would lead to the sandbox's own files, and never to the host's: this is to
   * tell such a path, and not what holds it.
   */
  async resolve(name) {
    let ahead = name.split('/');
    let there = [];
    for (let links = 0; ahead.length;) {
      const [next, ...rest] = ahead;
      let info = null;
      if (next === '..') {
        if (!there.length) throw new PathTraversal(name);
        there = there.slice(0, -1);
        ahead = rest;
        continue;
      }
      if (next !== '.' && next !== '') {
        try {
          info = await this.box.files.stat([...there, next].join('/'), { follow: false });
        } catch (error) {
          if (error.code !== 'ENOENT') throw error;
          return plain([...there, ...ahead].join('/'), name); // the call says so, or makes it
        }
        if (info.kind !== 'link') there = [...there, next];
      }
      ahead = rest;
      if (info && info.kind === 'link') {
        if (++links > MOST_LINKS) throw new WorkdirIoError('ELOOP', 'too many links', name);
        if (info.target.startsWith('/')) throw new PathTraversal(name);
        ahead = [...info.target.split('/'), ...rest];
      }
    }
    return there.join('/') || '.';
  }

  // --- its end ----------------------------------------------------------------------

  /** End all that runs in it. The folder and its files stay. Harmless twice. */
  async destroy() {
    if (this.over) return;
    this.over = true;
    await this.box.close();
  }

  check() {
    if (this.over) throw new Destroyed('the sandbox was destroyed');
  }

  /**
   * What `call` gives, which uses our sandbox. Where that had ended the next call gets another one, and this call too if
   * nothing of it was done: the folder has all that counts. A copy of the folder is lost with its sandbox.
   */
  async guarded(call) {
    const { box } = this;
    try {
      try {
        return await call();
      } catch (error) {
        if (!(error instanceof SandboxOver) || this.over) throw error;
        if (this.overlay) throw new Destroyed(`the sandbox has ended, and its copy with it: ${error.reason}`, { cause: error });
        if (this.box === box) {
          this.box = this.make();
          this.box.companion = box.companion; // it has the folder's state
          box.companion = null;
          await box.close();
        }
        if (error.mayHaveRun) throw error;
        return await call();
      }
    } catch (error) {
      if (!(error instanceof LeewardError) || error instanceof WorkdirError || error instanceof OSError) throw error;
      if (error instanceof DaemonError) this.check();
      throw new WorkdirRuntimeError(error.message, { cause: error });
    }
  }
}

if (Symbol.asyncDispose) WorkdirSandbox.prototype[Symbol.asyncDispose] = WorkdirSandbox.prototype.destroy;

/** The options of a Sandbox for its network. An empty policy allows nothing. */
function networkOf({ fetchPolicy, egress }) {
  if (fetchPolicy === undefined || fetchPolicy === null) return egress ? { egress } : {};
  if (typeof fetchPolicy !== 'object' || Array.isArray(fetchPolicy)) throw new RequestRejected('fetchPolicy is an object such as {allowed_domains: [...]}');
  return { egress: egress || 'network', policy: { allowed_domains: [], ...fetchPolicy } };
}

function isUrl(url) {
  try {
    return ['http:', 'https:'].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}

/** A heap that is full isn't an abort. */
function told(got) {
  if (got.exitCode !== ABORTED || !got.stderr.includes(HEAP_FULL)) return got;
  return new Result({ ...got, outcome: 'out_of_memory', exitCode: OUT_OF_MEMORY, limit: 'memory', hint: 'limit memory: the heap was full; to allow more: memory' });
}

/** MiB of V8's heap in a sandbox with so many bytes: V8 is to give up before the kernel has no page left. */
function heapOf(memory) {
  const total = Math.floor(memory / 2 ** 20);
  return Math.max(16, total - 64 - Math.floor(total / 8));
}

async function look(box) {
  const got = await box.run(['sh', '-c', LOOK, 'sh', ...TOOLS], { clean: true });
  if (!got.ok) throw new WorkdirRuntimeError(`the tools can't be looked for: ${got.stderrText}`);
  const found = new Set(got.stdoutText.split('\n'));
  return TOOLS.filter((tool) => found.has(tool));
}

function there(name, folder) {
  let about;
  try {
    about = fs.statSync(name);
  } catch (error) {
    throw new WorkdirIoError(error.code, error.message, name);
  }
  if (folder && !about.isDirectory()) throw new WorkdirIoError('ENOTDIR', 'it is no folder', name);
}

/** A path without `.`, `..` and empty names; PathTraversal where it leads out. */
function plain(file, asked = file) {
  if (typeof file !== 'string' || file === '' || file.includes('\0')) throw new WorkdirIoError('EINVAL', 'it is no path', String(asked));
  const found = path.posix.normalize(file);
  if (found.startsWith('/') || found === '..' || found.startsWith('../')) throw new PathTraversal(asked);
  return found;
}

module.exports = { WorkdirSandbox };
