// Made by ./dev generate
/// <reference types="node" />

/** By operation: the fields of its request. */
export interface Requests {
  arena: {
  };
  cancel: {
    /** the id of a request of this connection */
    target: number | bigint;
    /** raise `KeyboardInterrupt` in its job instead of ending it; only of an `execute` */
    interrupt?: boolean;
    /** end its job, and answer it with its result; only of an `execute`, and not with `interrupt` */
    kill?: boolean;
  };
  egress_answer: {
    /** its number */
    ask: number | bigint;
    /** it goes on; else it is refused */
    allow?: boolean;
    /** why, for whoever asked: at most 500 printable characters. "" is `Denied by leeward (request N)` */
    message?: string;
  };
  egress_asks: {
    /** the number of the last one that the client has */
    after?: number | bigint;
    /** seconds to wait for one, at most 3,600 */
    wait?: number;
  };
  egress_log: {
    /** the number of the last row that the client has */
    after?: number | bigint;
    /** seconds to wait for another one, at most 3,600 */
    wait?: number;
  };
  execute: {
    /** the session to run it in, see `session_open`; without it, a process of its own */
    session?: number | bigint;
    /** Python source, at most 16 MiB, as text at most 4 MiB */
    code?: NodeJS.ArrayBufferView | string;
    /** a module to run as `python -m` does */
    module?: string;
    /** the file name that tracebacks show; printable, at most 255 characters */
    name?: string;
    /** `sys.argv[1:]`; at most 1,024, together 2^20 characters, no NUL */
    args?: string[];
    /** added to the sandbox's own; bounds as for `args`; no `=` in a name */
    env?: Record<string, string>;
    /** written to `/workspace` before the start; at most 1,024, together 64 MiB */
    files?: Record<string, NodeJS.ArrayBufferView>;
    /** at most 64 MiB */
    stdin?: NodeJS.ArrayBufferView;
    /** names, folders and patterns of regular files below `/workspace` to bring back; at most 64 */
    collect?: string[];
    /** answer with `results` and `value` as well; not with `module` */
    display?: boolean;
    /** see below */
    limits?: Record<string, any>;
    /** the client's own name for the job, for the daemon's log and the answer: at most 64 letters, digits and `._:/@-` */
    label?: string;
    /** functions of the client's that the code may call, see [`function_take`](#function_take); not with `module` */
    functions?: Record<string, any>;
    /** which files the sandbox shows and what it permits: one of the daemon's [profiles](profiles.md), without `shell`. Not with `session` */
    profile?: string;
    /** the interpreter and packages, one of the daemon's [environments](environments.md); without it the daemon's own. Not with `session` */
    environment?: string;
    /** the name of an [egress policy](egress.md) of the daemon, `[egress.NAME]`; without it the job has no network. Not with `session` */
    egress?: string;
    /** a policy of the client, which narrows `egress`: the keys of [a policy](egress.md), without `authorities`; about 65,536 characters. Not with `session` */
    policy?: Record<string, any>;
  };
  file_append: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** at most 1 MiB */
    data?: NodeJS.ArrayBufferView;
  };
  file_close: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** of an earlier answer */
    handle: number | bigint;
  };
  file_copy: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** the copy's name */
    to: NodeJS.ArrayBufferView;
  };
  file_edit: {
    /** its id */
    sandbox: string;
    /** of the file */
    path: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** at most 1 MiB each */
    old: NodeJS.ArrayBufferView;
    /** at most 1 MiB each */
    new: NodeJS.ArrayBufferView;
  };
  file_glob: {
    /** its id */
    sandbox: string;
    /** the folder where a relative pattern begins */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** at most 4,096 bytes */
    pattern: NodeJS.ArrayBufferView;
    /** names */
    most?: number | bigint;
  };
  file_grep: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** at most 4,096 bytes */
    pattern: NodeJS.ArrayBufferView;
    /** a pattern for names of files */
    include?: NodeJS.ArrayBufferView;
    /** the pattern is text */
    literal?: boolean;
    /** of ASCII letters */
    ignore_case?: boolean;
    /** lines, at most 4,000 */
    most?: number | bigint;
  };
  file_link: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** where it leads */
    to: NodeJS.ArrayBufferView;
  };
  file_list: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** names behind this one alone */
    after?: NodeJS.ArrayBufferView;
  };
  file_mkdir: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** and those that lead there */
    parents?: boolean;
    /** it may be there already */
    there?: boolean;
  };
  file_move: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** the new name */
    to: NodeJS.ArrayBufferView;
  };
  file_read: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** of an earlier answer; then `path` isn't looked at */
    handle?: number | bigint;
    /** where the piece begins */
    offset?: number | bigint;
    /** bytes of it at most */
    size?: number | bigint;
    /** lines, from 1 on, to which the file is narrowed; 0 is none */
    first?: number | bigint;
    /** lines, from 1 on, to which the file is narrowed; 0 is none */
    last?: number | bigint;
  };
  file_read_many: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** each with a NUL behind it, at most 4,000 and 1 MiB */
    paths: NodeJS.ArrayBufferView;
  };
  file_remove: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** a folder with all that is in it */
    recursive?: boolean;
    /** it may be gone already */
    missing?: boolean;
  };
  file_set: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** -1 leaves it as it is */
    mode?: number | bigint;
    /** -1 leaves it as it is */
    time?: number | bigint;
  };
  file_stat: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** a link stands for what it leads to */
    follow?: boolean;
  };
  file_walk: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
  };
  file_write: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** of an earlier answer; then `path` isn't looked at */
    handle?: number | bigint;
    /** where the piece belongs */
    offset?: number | bigint;
    /** at most 1 MiB */
    data?: NodeJS.ArrayBufferView;
    /** others follow */
    more?: boolean;
    /** `EEXIST` if something is there */
    new?: boolean;
    /** permission bits; -1 keeps those of the file before it */
    mode?: number | bigint;
    /** of its last change, in nanoseconds since the epoch; -1 for now */
    time?: number | bigint;
  };
  file_write_many: {
    /** its id */
    sandbox: string;
    /** of the file or folder */
    path?: NodeJS.ArrayBufferView;
    /** seconds */
    timeout?: number;
    /** the files, at most 4,000 and 1 MiB */
    data: NodeJS.ArrayBufferView;
  };
  function_answer: {
    /** the id of a request of this connection */
    target: number | bigint;
    /** the call's number */
    call: number | bigint;
    /** or `raised`, or `broken` */
    outcome?: string;
    /** MessagePack, at most 512 KiB: what the function returned, or for `raised` an array of two texts, the exception's type and its text */
    value?: NodeJS.ArrayBufferView;
  };
  function_take: {
    /** the id of the request for the job, on this connection */
    target: number | bigint;
  };
  interrupt: {
    /** the number of a session of this connection */
    session: number | bigint;
  };
  keep_results: {
  };
  kept_drop: {
    /** the id of the request that was answered so */
    target: number | bigint;
  };
  kept_read: {
    /** the id of the request whose answer announced it */
    target: number | bigint;
    /** which of that answer's files */
    arena?: number | bigint;
    /** where the piece begins */
    offset?: number | bigint;
    /** bytes of it at most, from 1 to 1 MiB */
    size?: number | bigint;
  };
  kernel_bind: {
    /** its id */
    sandbox: string;
    /** of `kernel_open`; 0 for a fresh interpreter for each request */
    kernel: number | bigint;
    /** as for `execute`, of each of these requests */
    display?: boolean;
  };
  kernel_close: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
  };
  kernel_fork: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
    /** as for `kernel_open` */
    held?: boolean;
  };
  kernel_interrupt: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
  };
  kernel_open: {
    /** its id */
    sandbox: string;
    /** begin with the state of this one; answered when it is there */
    snapshot?: string;
    /** with `snapshot`: its random numbers go on, and nothing is seeded anew */
    same_random?: boolean;
    /** the kernel is closed when this connection ends */
    held?: boolean;
  };
  kernel_reset: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
  };
  kernel_rollback: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
    /** of `kernel_snapshot` */
    snapshot: string;
    /** as for `kernel_open` */
    same_random?: boolean;
  };
  kernel_snapshot: {
    /** its id */
    sandbox: string;
    /** of `kernel_open` */
    kernel: number | bigint;
  };
  output_take: {
    /** the id of the request for the job, an `execute` or a `sandbox_execute`, on this connection */
    target: number | bigint;
    /** bytes of each stream that the client has */
    stdout?: number | bigint;
    /** bytes of each stream that the client has */
    stderr?: number | bigint;
  };
  overlay_checkpoint: {
    /** its id */
    sandbox: string;
    /** of one of its overlays */
    target: string;
    /** letters, digits, `_`, `-` and `.`, not `.` or `-` first; at most 64 */
    name?: string;
  };
  overlay_diff: {
    /** its id */
    sandbox: string;
    /** of one of its overlays */
    target: string;
  };
  overlay_discard: {
    /** its id */
    sandbox: string;
    /** of one of its overlays */
    target: string;
    /** of what `overlay_diff` lists, relative; at most 1,024, and 48 KiB together */
    paths?: NodeJS.ArrayBufferView[];
  };
  overlay_read: {
    /** its id */
    sandbox: string;
    /** of one of its overlays */
    target: string;
    /** of a file that `overlay_diff` lists */
    path: NodeJS.ArrayBufferView;
    /** in bytes */
    offset?: number | bigint;
    /** of further files, which are read as well, from their beginnings; bounds as for `overlay_discard` */
    paths?: NodeJS.ArrayBufferView[];
  };
  overlay_restore: {
    /** its id */
    sandbox: string;
    /** of one of its overlays */
    target: string;
    /** of a checkpoint there */
    name: string;
  };
  ping: {
  };
  process_kill: {
    /** its id */
    sandbox: string;
    /** one that was started */
    process: number | bigint;
  };
  process_list: {
    /** its id */
    sandbox: string;
  };
  process_read: {
    /** its id */
    sandbox: string;
    /** one that was started */
    process: number | bigint;
    /** the number of the last chunk that the client has */
    after?: number | bigint;
    /** a number of the reader's own, such as a random one: each gets all chunks from its first request on */
    reader?: number | bigint;
    /** seconds to wait for the next one, at most 3,600 */
    wait?: number;
  };
  process_resize: {
    /** its id */
    sandbox: string;
    /** one that was started with `terminal` */
    process: number | bigint;
    /** from 1 to 65,535 */
    rows: number | bigint;
    /** from 1 to 65,535 */
    columns: number | bigint;
  };
  process_run: {
    /** its id */
    sandbox: string;
    /** the program, which is looked for in `PATH`, and its arguments; at most 1,024, of at most 131,071 characters each and 2^21 together */
    argv?: string[];
    /** a line for `/bin/sh -c`, at most 131,071 characters */
    shell?: string;
    /** the folder to start in, at most 4,095 characters */
    cwd?: string;
    /** variables, beside the sandbox's; bounds as for `execute` */
    env?: Record<string, string>;
    /** at most 64 MiB */
    stdin?: NodeJS.ArrayBufferView;
    /** what `process_list` shows, at most 255 characters */
    title?: string;
    /** `time`, `output` and `overflow` */
    limits?: Record<string, any>;
    /** processor seconds of it and all that descends from it, 0.001 to 3,600, after which they are killed: `timed_out`, with the limit `cpu` */
    cpu_time?: number;
    /** its environment is `PATH`, and what `env` here and the sandbox's `env` say */
    clean?: boolean;
    /** it counts as ended when no process that it has started is left: such are killed when it has ended */
    ends_children?: boolean;
    /** the program reads all of its stdin before it does anything */
    warm?: boolean;
  };
  process_signal: {
    /** its id */
    sandbox: string;
    /** one that was started */
    process: number | bigint;
    /** from 1 to 64 */
    signal: number | bigint;
  };
  process_start: {
    /** its id */
    sandbox: string;
    /** the program, which is looked for in `PATH`, and its arguments; at most 1,024, of at most 131,071 characters each and 2^21 together */
    argv?: string[];
    /** a line for `/bin/sh -c`, at most 131,071 characters */
    shell?: string;
    /** the folder to start in, at most 4,095 characters */
    cwd?: string;
    /** variables, beside the sandbox's; bounds as for `execute` */
    env?: Record<string, string>;
    /** at most 64 MiB */
    stdin?: NodeJS.ArrayBufferView;
    /** what `process_list` shows, at most 255 characters */
    title?: string;
    /** `time`, `output` and `overflow` */
    limits?: Record<string, any>;
    /** processor seconds of it and all that descends from it, 0.001 to 3,600, after which they are killed: `timed_out`, with the limit `cpu` */
    cpu_time?: number;
    /** its environment is `PATH`, and what `env` here and the sandbox's `env` say */
    clean?: boolean;
    /** it counts as ended when no process that it has started is left: such are killed when it has ended */
    ends_children?: boolean;
    /** its standard input stays open for `process_write` after the content of `stdin` */
    open?: boolean;
    /** the sandbox's `time` and `output` hold where it doesn't set its own; else it has no such limit */
    bounded?: boolean;
    /** two ints, rows and columns, each from 1 to 65,535: it is on a terminal of that size, with standard input open and stdout as its one stream */
    terminal?: any[];
    /** it is killed when this connection ends */
    held?: boolean;
  };
  process_wait: {
    /** its id */
    sandbox: string;
    /** one that was started */
    process: number | bigint;
    /** seconds, at most 3,600 */
    wait?: number;
  };
  process_write: {
    /** its id */
    sandbox: string;
    /** one that was started with `open` */
    process: number | bigint;
    /** at most 1 MiB */
    data?: NodeJS.ArrayBufferView;
    /** close its standard input behind that */
    end?: boolean;
  };
  recall: {
    /** the number of the last event that the client has */
    after?: number | bigint;
    /** seconds to wait for another one, at most 3,600 */
    wait?: number;
  };
  sandbox_connect: {
    /** its id */
    sandbox: string;
    /** the server's, of TCP, from 1 to 65,535 */
    port: number | bigint;
  };
  sandbox_copy: {
    /** its id */
    sandbox: string;
    /** the id of the other one */
    source: string;
  };
  sandbox_dock: {
  };
  sandbox_execute: {
    /** its id */
    sandbox: string;
    /** a kernel of `kernel_open`; 0 for a fresh interpreter */
    kernel?: number | bigint;
    /** as for `execute` */
    code: NodeJS.ArrayBufferView | string;
    /** as for `execute` */
    name?: string;
    /** as for `execute` */
    args?: string[];
    /** as for `execute` */
    env?: Record<string, string>;
    /** as for `execute` */
    files?: Record<string, NodeJS.ArrayBufferView>;
    /** as for `execute`; a kernel takes none */
    stdin?: NodeJS.ArrayBufferView;
    /** as for `execute` */
    collect?: string[];
    /** as for `execute` */
    display?: boolean;
    /** `time`, `output` and `overflow` */
    limits?: Record<string, any>;
    /** as for `execute` */
    functions?: Record<string, any>;
  };
  sandbox_extend: {
    /** its id */
    sandbox: string;
    /** as for `sandbox_open` */
    idle?: number;
    /** seconds from now on, at most `sandbox_lifetime` */
    lifetime?: number;
    /** the sandbox isn't held by a connection any more */
    detach?: boolean;
    /** all of it, as for `sandbox_open` */
    metadata?: Record<string, string>;
    /** as for `sandbox_open`, in place of the one before, and of `fetch_policy`: connections that are open, and fetches, end */
    policy?: Record<string, any>;
  };
  sandbox_fetch: {
    /** its id */
    sandbox: string;
    /** http or https, at most 8,192 characters */
    url: string;
    /** at most 64 characters */
    method?: string;
    /** of arrays of two texts, name and value: at most 64, 65,536 characters together */
    headers?: any[];
    /** at most 16 MiB */
    body?: NodeJS.ArrayBufferView;
  };
  sandbox_hide: {
    /** its id */
    sandbox: string;
    /** as for `sandbox_open`; at most 512, 40,960 bytes together, and 2,048 in all requests of a sandbox */
    hide: string[];
  };
  sandbox_info: {
    /** its id */
    sandbox: string;
  };
  sandbox_kill: {
    /** its id */
    sandbox: string;
  };
  sandbox_list: {
    /** `last` of the answer before */
    after?: number | bigint;
  };
  sandbox_open: {
    /** which files the sandbox shows and what it permits: one of the daemon's profiles */
    profile?: string;
    /** as for `execute`, for all that runs in it */
    environment?: string;
    /** as for `execute`, for all that runs in it */
    egress?: string;
    /** an [image](images.md) of the daemon's user, whose root file system takes the place of the host's files; not with `environment` */
    image?: string;
    /** as for `execute`, and `files`, bytes in /workspace, /tmp and /dev/shm together. It, `memory` and `processes` hold for the whole sandbox; `time` and `output` for each `process_run` that doesn't set its own */
    limits?: Record<string, any>;
    /** seconds without a request about it and without a request that waits for it, after which it ends; at most `sandbox_idle` */
    idle?: number;
    /** seconds after which it ends in any case; at most `sandbox_lifetime` */
    lifetime?: number;
    /** it ends when this connection does, as `parted`, until a `sandbox_extend` with `detach` */
    held?: boolean;
    /** when it was idle for too long it sleeps, as by `sandbox_pause`; it ends if it can't */
    sleeps?: boolean;
    /** variables of every process in it, beside the sandbox's own; bounds as for `execute` */
    env?: Record<string, string>;
    /** shown by `sandbox_info`; at most 64 entries, 16,384 characters together */
    metadata?: Record<string, string>;
    /** folders of the host, at most 16, whose descriptors lie in `dock`, in this order */
    mounts?: Record<string, any>[];
    /** the number of a `sandbox_dock` of this connection; `mounts` need one */
    dock?: number | bigint;
    /** of the profile `shell`: the folder in which programs start, and whose `.env` files are hidden */
    cwd?: string;
    /** of the profile `shell`: a folder whose secrets are hidden, beside the one that the host has for the user. Of the profile `agent`, which needs it, of `approved` and of those based on one of the two: the home folder, a private one at that path */
    home?: string;
    /** with a home folder: the user's name inside. With `image` alone: who runs there, a name of the image's or a number, perhaps `:` and a group's */
    user?: string;
    /** with a home folder: absolute paths in its mounts that can't be seen: a file is empty there and can't be read, a folder is empty. With `protect` and `pin` at most 512, 40,960 bytes together */
    hide?: string[];
    /** absolute paths in the sandbox's mounts that can't be written. Names that aren't there, and links, are left as they are */
    protect?: string[];
    /** absolute paths of folders in the sandbox's mounts that can't be renamed, moved or removed, nor the folders above them. A file can be renamed within such a folder, and not into or out of it */
    pin?: string[];
    /** of the profile `shell`: hide nothing; `forbidden` where the operator has set `show_secrets = false` */
    show_secrets?: boolean;
    /** a policy of the client, which narrows `egress`: the keys of [a policy](egress.md), without `authorities`, or those of [the short form](egress.md#fetch); about 65,536 characters */
    policy?: Record<string, any>;
    /** a policy that narrows the sandbox's for `sandbox_fetch`, in [the short form](egress.md#fetch); about 65,536 characters */
    fetch_policy?: Record<string, any>;
  };
  sandbox_pause: {
    /** its id */
    sandbox: string;
  };
  session_close: {
    /** the number of a session of this connection */
    session: number | bigint;
  };
  session_open: {
    /** as for `execute`. `memory` and `processes` hold for the whole session; `time` and `output` for each job that doesn't set its own */
    limits?: Record<string, any>;
    /** seconds without a job after which the session is ended, at most `session_idle` */
    idle?: number;
    /** as for `execute`, for all jobs of the session */
    profile?: string;
    /** as for `execute`, for all jobs of the session */
    environment?: string;
    /** as for `execute`, for all jobs of the session */
    egress?: string;
    /** as for `execute`, for all jobs of the session */
    policy?: Record<string, any>;
  };
  session_reset: {
    /** the number of a session of this connection */
    session: number | bigint;
  };
  shutdown: {
    /** end running jobs at once */
    now?: boolean;
  };
  slot: {
    /** which, from 0 */
    slot: number | bigint;
    /** bytes from the slot's start on */
    length: number | bigint;
  };
  snapshot_export: {
    /** of `kernel_snapshot` */
    snapshot: string;
  };
  snapshot_import: {
    /** of `snapshot_export` */
    key: Record<string, string>;
    /** of `snapshot_export` */
    sizes: any[];
    /** MessagePack of a map: `python`, `packages` and `lost` of `kernel_snapshot` */
    facts: NodeJS.ArrayBufferView;
    /** as `kernel_snapshot` answered */
    made: number;
  };
  snapshot_info: {
    /** of `kernel_snapshot` */
    snapshot: string;
  };
  snapshot_list: {
  };
  snapshot_read: {
    /** of `kernel_snapshot` */
    snapshot: string;
    /** where to begin */
    offset?: number | bigint;
  };
  snapshot_remove: {
    /** of `kernel_snapshot` */
    snapshot: string;
  };
  snapshot_write: {
    /** of `snapshot_import` */
    snapshot: string;
    /** at most 1 MiB */
    data: NodeJS.ArrayBufferView;
  };
  status: {
    /** `json`: the answer is `{"json": text}`, the map below as one JSON object on one line, in ASCII */
    form?: string;
  };
}

/** By operation: the fields of its answer. */
export interface Answers {
  arena: { slots: number | bigint; size: number | bigint; arenas: (number | bigint)[] };
  cancel: { cancelled: boolean };
  egress_answer: { taken: boolean };
  egress_asks: { events: Record<string, any>[] };
  egress_log: { events: Record<string, any>[]; last: number | bigint; forgotten: number | bigint };
  execute: ResultFields;
  file_append: { size: number | bigint } | Failure;
  file_close: {} | Failure;
  file_copy: {} | Failure;
  file_edit: { found: number | bigint } | Failure;
  file_glob: { names: any[]; more: boolean } | Failure;
  file_grep: { rows: any[]; more: boolean } | Failure;
  file_link: {} | Failure;
  file_list: { rows: any[]; more: boolean } | Failure;
  file_mkdir: {} | Failure;
  file_move: {} | Failure;
  file_read: { data: Buffer; handle: number | bigint; at: number | bigint; end: number | bigint; mode: number | bigint; time: number | bigint } | Failure;
  file_read_many: { data: Buffer } | Failure;
  file_remove: {} | Failure;
  file_set: {} | Failure;
  file_stat: { row: any[] } | Failure;
  file_walk: { rows: any[] } | Failure;
  file_write: { handle: number | bigint; size: number | bigint } | Failure;
  file_write_many: { failed: any[] } | Failure;
  function_answer: { taken: boolean };
  function_take: { calls: any[]; over: boolean };
  interrupt: { interrupted: boolean };
  keep_results: {};
  kept_drop: { dropped: boolean };
  kept_read: { data: Buffer };
  kernel_bind: { session: number | bigint };
  kernel_close: {};
  kernel_fork: { kernel: number | bigint };
  kernel_interrupt: { interrupted: boolean };
  kernel_open: { kernel: number | bigint };
  kernel_reset: {};
  kernel_rollback: {};
  kernel_snapshot: { snapshot: string; size: number | bigint; made: number; python: string; packages: Record<string, string>; lost: string[] };
  output_take: { stdout: Buffer; stderr: Buffer; running: boolean; over: boolean };
  overlay_checkpoint: { name: string };
  overlay_diff: { size: number | bigint; arenas?: (number | bigint)[] };
  overlay_discard: {};
  overlay_read: { size: number | bigint; arenas?: (number | bigint)[] };
  overlay_restore: {};
  ping: { version: string; wire: number | bigint; caps?: Record<string, any> };
  process_kill: {};
  process_list: { processes: Record<string, any>[] };
  process_read: { chunks: any[]; over: boolean; outcome?: string; exit_code?: number | bigint; limit?: string | null; duration?: number; cpu_time?: number; memory_peak?: number | bigint; denied?: Record<string, number | bigint>; truncated?: boolean; omitted?: (number | bigint)[]; degraded?: string[]; error?: Record<string, any> | null; hint?: string; starved?: number };
  process_resize: { resized: boolean };
  process_run: ResultFields;
  process_signal: { sent: boolean };
  process_start: { process: number | bigint };
  process_wait: { over: boolean; outcome?: string; exit_code?: number | bigint; limit?: string | null; duration?: number; cpu_time?: number; memory_peak?: number | bigint; denied?: Record<string, number | bigint>; truncated?: boolean; omitted?: (number | bigint)[]; degraded?: string[]; error?: Record<string, any> | null; hint?: string; starved?: number };
  process_write: { written: number | bigint };
  recall: { events: Record<string, any>[]; last: number | bigint };
  sandbox_connect: { socket: boolean };
  sandbox_copy: { made: number | bigint };
  sandbox_dock: { dock: number | bigint; socket: boolean };
  sandbox_execute: ResultFields;
  sandbox_extend: { sandbox: string; profile: string; environment: string; egress: string; image: string; metadata: Record<string, string>; age: number; idle: number; unused: number; left: number; held: boolean; processes: number | bigint; calls: number | bigint; memory_limit: number | bigint; memory_peak: number | bigint; memory: number | bigint; cpu_time: number; oom_kills: number | bigint; forks_refused: number | bigint; denied: Record<string, number | bigint>; mounts?: Record<string, any>[]; asleep: boolean; layers?: string[]; checkpoints?: string[] };
  sandbox_fetch: { status?: number | bigint; headers?: any[]; url: string; history?: string[]; address?: string; body?: Buffer | [number, number, number]; failed?: string; message?: string; sent?: boolean; arenas?: (number | bigint)[] };
  sandbox_hide: {};
  sandbox_info: { sandbox: string; profile: string; environment: string; egress: string; image: string; metadata: Record<string, string>; age: number; idle: number; unused: number; left: number; held: boolean; processes: number | bigint; calls: number | bigint; memory_limit: number | bigint; memory_peak: number | bigint; memory: number | bigint; cpu_time: number; oom_kills: number | bigint; forks_refused: number | bigint; denied: Record<string, number | bigint>; mounts?: Record<string, any>[]; asleep: boolean; layers?: string[]; checkpoints?: string[] };
  sandbox_kill: {};
  sandbox_list: { sandboxes: Record<string, any>[]; more: boolean; last?: number | bigint };
  sandbox_open: { sandbox: string; idle: number; lifetime: number };
  sandbox_pause: {};
  session_close: {};
  session_open: { session: number | bigint };
  session_reset: {};
  shutdown: {};
  slot: ResultFields;
  snapshot_export: { key: Record<string, string>; sizes: (number | bigint)[] };
  snapshot_import: { snapshot: string };
  snapshot_info: { snapshot: string; size: number | bigint; made: number; python: string; packages: Record<string, string>; lost: string[] };
  snapshot_list: { snapshots: Record<string, any>[] };
  snapshot_read: { data: Buffer };
  snapshot_remove: {};
  snapshot_write: { left: number | bigint };
  status: { json?: string; workers?: Record<string, any>; jobs?: Record<string, any>; runners_made?: number | bigint; runners_armed?: number | bigint; runners_arming?: number | bigint; runners_kept?: number | bigint; layers?: Record<string, any>; transport?: string; degraded?: string[]; pools?: Record<string, any>[]; environments?: Record<string, any>; uptime?: number; connections?: number | bigint; sessions?: number | bigint; sandboxes?: number | bigint; max_sessions?: number | bigint; max_connections?: number | bigint; fresh_layout?: boolean; snapshot?: string; faults?: number | bigint; pid?: number | bigint; reloads?: (number | bigint)[] };
}

export type ResultFields = { outcome: string; exit_code: number | bigint; limit: string | null; duration: number; cpu_time: number; memory_peak: number | bigint; denied: Record<string, number | bigint>; truncated: boolean; omitted?: (number | bigint)[]; degraded: string[]; error: Record<string, any> | null; hint?: string; starved?: number; stdout: Buffer | [number, number, number]; stderr: Buffer | [number, number, number]; files?: Record<string, Buffer | [number, number, number]>; results?: Record<string, any>[]; value?: string; label?: string; job?: number | bigint; left_out?: any[]; arenas?: (number | bigint)[] };

/** The answer to an operation on files that failed. */
export interface Failure { errno: number | bigint; why: string }
