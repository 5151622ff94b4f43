'use strict';

const { arriving, ARRIVALS } = require('./arrivals.js');
const { Calls } = require('./calls.js');
const { BadReply, DaemonError, RequestRejected, SandboxOver } = require('./errors.js');
const { egressOf, fetchArguments, fetchFields, fetchedOf } = require('./fetching.js');
const { Files } = require('./files.js');
const host = require('./host.js');
const { resultOf } = require('./results.js');
const { Process, Kernel, whole, CLOSE_S } = require('./process.js');
const { known, limits, pairs, size, texts, executeFields, programFields, LIMITING, TURN, PROGRAM } = require('./fields.js');

const ID = /^[a-z2-7]{26}$/;
const WORKDIR = '/workspace';
const SHELL = 'shell';
const TERM = 'xterm-256color';
const OPTIONS = ['socket', 'token', 'command', 'client', 'retryBusy', 'profile', 'environment', 'packages', 'egress', 'allowNetwork', 'policy', 'fetchPolicy', 'env', 'idle', 'lifetime', 'metadata', 'mounts', 'workdir', 'overlay', 'compare', 'copy', 'held', 'showSecrets', 'image', 'user', ...LIMITING];

/**
 * A sandbox that stays: files, processes and their output, until it is closed. The first call opens it; without `close` it
 * stays until it was idle for too long, and any program of the same user can attach to it.
 */
class Sandbox {
  constructor(options = {}) {
    known('Sandbox', options, OPTIONS);
    const { client, workdir, overlay = false, compare = false, copy = false, mounts = [] } = options;
    if ((overlay || compare || copy) && workdir === undefined) throw new RequestRejected(`${overlay ? 'overlay' : compare ? 'compare' : 'copy'} needs a workdir; a mount has its own`);
    const { socket, token, command, retryBusy } = client ? { ...client.host, ...client.calls.options } : options;
    const own = !client || options.held;
    const all = [...mounts];
    for (const mount of all) {
      known('a mount', mount, ['source', 'target', 'writable', 'overlay', 'compare', 'copy']);
      if (typeof mount.source !== 'string' || typeof mount.target !== 'string') throw new RequestRejected('a mount has a source and a target, both text');
    }
    if (workdir !== undefined) all.unshift({ source: String(workdir), target: WORKDIR, writable: !overlay && !copy, overlay, compare, copy });
    for (const mount of all) {
      if (mount.copy && (mount.writable || mount.overlay || mount.compare)) throw new RequestRejected(`mount ${mount.target}: a copy is the sandbox's own, neither writable, overlay nor compare`);
      if (mount.compare && (mount.overlay || !mount.writable)) throw new RequestRejected(`mount ${mount.target}: compare is for a folder that is written, and not for an overlay`);
    }
    hidden(this, {
      own, calls: own ? new Calls({ socket, token, retryBusy }) : client.calls, host: { command, socket, token }, options, mounts: all, opened: null, closed: false, companion: null, made: [], watch: {}, holds: false, attached: false, files: new Files(this),
    });
  }

  /**
   * The sandbox with this id; SandboxOver where this user has none. If `held`, the processes and kernels that this object
   * starts end with this program, or at `detach`.
   */
  static async attach(id, options = {}) {
    const { held = false, client, ...more } = known('attach', options, ['socket', 'token', 'command', 'held', 'client', 'retryBusy']);
    if (!ID.test(id)) throw new RequestRejected(`${JSON.stringify(String(id).slice(0, 80))} is no sandbox's id`);
    // What is held ends with its connections.
    const own = client && held ? { ...client.host, retryBusy: client.calls.options.retryBusy } : more;
    const box = new Sandbox(client && !held ? { client } : own);
    box.opened = Promise.resolve(id);
    box.holds = held;
    box.attached = true;
    try {
      await box.info();
    } catch (error) {
      box.part();
      throw error;
    }
    return box;
  }

  /** What `info` says of each sandbox of this user, the oldest first. */
  static async list({ socket, token } = {}) {
    const calls = new Calls({ socket, token });
    try {
      const found = [];
      for (let last = 0; ;) {
        const ok = await calls.call('sandbox_list', last ? { after: last } : {});
        const page = ok.sandboxes;
        found.push(...page);
        if (!ok.more || !page.length) return found;
        last = whole(ok, 'last', last + 1);
      }
    } finally {
      calls.close();
    }
  }

  /** 26 characters; the first use opens the sandbox. */
  id() {
    if (!this.opened) {
      if (this.closed) return Promise.reject(new SandboxOver('the sandbox was closed before it was used', { reason: 'killed', begun: false }));
      const opened = this.open();
      this.opened = opened;
      opened.catch(() => { if (this.opened === opened) this.opened = null; }); // the next call tries again
    }
    return this.opened;
  }

  async open() {
    const { env, metadata, profile, environment, packages = [], egress, image, user, showSecrets, idle, lifetime, memory, processes, descriptors, files, timeout, output, overflow } = this.options;
    const { allowNetwork = false, held = false } = this.options;
    const kind = {
      profile, environment, image, user, egress: egressOf(egress, allowNetwork), ...policies(this.options), ...(showSecrets ? { show_secrets: true } : {}),
    };
    const common = { env: env && pairs(env, 'env'), metadata: metadata && pairs(metadata, 'metadata'), ...kind, idle, lifetime };
    // The command tells the current folder, the home and the variables for the profile `shell`, and installs packages.
    if (this.mounts.length || profile === SHELL || packages.length) {
      const fields = { ...common, packages: texts(packages, 'packages'), memory: size(memory, 'memory'), output: size(output, 'output'), overflow, processes, descriptors, files: size(files, 'files'), timeout, retry_busy: this.calls.options.retryBusy };
      if (held || this.mounts.some((mount) => mount.compare)) {
        this.companion = this.companion || new host.Companion({ ...this.host, fields: { ...fields, held, ...this.watch }, mounts: this.mounts });
        const { sandbox, made } = await this.companion.ask({ do: 'open' });
        if (!ID.test(sandbox) || !Array.isArray(made)) throw new BadReply('an opened sandbox has no id');
        this.made = made;
        this.companion.opened = true;
        return sandbox;
      }
      return host.openSandbox({ ...this.host, fields, mounts: this.mounts });
    }
    const ok = await this.calls.call('sandbox_open', { ...common, ...limits(this.options, { files: size(files, 'files') }), ...(held ? { held } : {}) });
    if (!ID.test(ok.sandbox)) throw new BadReply('an opened sandbox has no id');
    return ok.sandbox;
  }

  /** One request about this sandbox, by an operation's name and fields; resolves to its answer. docs/wire.md has all of them. */
  async ask(op, fields = {}, options = {}) {
    return this.calls.call(op, { sandbox: await this.id(), ...fields }, options);
  }

  // --- programs ---------------------------------------------------------------------

  /** Run a program to its end: `run(['ls', '-l'])`. With `onStdout` or `onStderr` output is told as it comes, too. */
  async run(argv, options = {}) {
    if (!Array.isArray(argv)) throw new RequestRejected('run takes a program and its arguments, [program, ...]; shell takes a line');
    return this.runs(argv, options);
  }

  /** Run a line by /bin/sh. */
  async shell(line, options = {}) {
    if (typeof line !== 'string') throw new RequestRejected('shell takes one line, as text');
    return this.runs(line, options);
  }

  async runs(what, options) {
    const { onStdout, onStderr, signal, ...job } = options;
    known('run', job, PROGRAM);
    const fields = programFields(what, job);
    if (!onStdout && !onStderr) return this.ask('process_run', fields, { signal, read: resultOf });
    delete fields.warm; // nothing waits for what is read while it runs
    const process = await this.begin({ ...fields, bounded: true });
    const stop = () => { process.kill().catch(() => {}); };
    if (signal) signal.addEventListener('abort', stop, { once: true });
    try {
      if (signal && signal.aborted) stop();
      return await process.result({ onStdout, onStderr });
    } catch (error) {
      await process.kill().catch(() => {}); // the error that comes is the one that counts
      throw error;
    } finally {
      if (signal) signal.removeEventListener('abort', stop);
    }
  }

  /** Start a program, an array or one line for the shell, and come back at once. `stdin: null` leaves it open for `write`. */
  async start(what, options = {}) {
    known('start', options, PROGRAM);
    const fields = programFields(what, options);
    return this.begin(options.stdin === null ? { ...fields, open: true } : fields);
  }

  /** Start a program on a terminal. */
  async terminal(what = ['sh'], options = {}) {
    const { rows: high = 24, columns = 80, ...more } = known('terminal', options, ['rows', 'columns', 'cwd', 'env', 'timeout', 'title']);
    const env = { TERM, ...(more.env && pairs(more.env, 'env')) };
    return this.begin({ ...programFields(what, { ...more, env }), terminal: [high, columns] });
  }

  async begin(fields) {
    return new Process(this, whole(await this.starts('process_start', fields), 'process', 1));
  }

  /** As `ask`, for what starts a process or a kernel. */
  starts(op, fields = {}) {
    return this.ask(op, this.holds ? { ...fields, held: true } : fields);
  }

  /** What clients have started: rows with `process`, `pid`, `title`, `argv`, `age`, `over`, `exit_code`. */
  async processes() {
    return (await this.ask('process_list')).processes;
  }

  /** The process with this number. */
  async process(number) {
    const process = new Process(this, number);
    await process.row();
    return process;
  }

  /**
   * Send a request by http or https as this sandbox's policy of egress allows it: `{status, headers, body, url, history,
   * address}`. The daemon's broker sends it. FetchFailed where there is no response. Also `fetch({url, method, headers, body})`.
   */
  async fetch(url, options = {}) {
    const [to, { signal, ...request }] = fetchArguments(url, options);
    return this.ask('sandbox_fetch', fetchFields(to, request), { signal, read: fetchedOf });
  }

  // --- Python -----------------------------------------------------------------------

  /** Run Python code in a fresh interpreter with the sandbox's files. */
  async execute(code, options = {}) {
    const { signal, ...job } = options;
    known('execute', job, [...TURN, 'stdin', ...ARRIVALS]);
    return arriving(job, (arrivals) => this.ask('sandbox_execute', executeFields(code, job), { signal, read: resultOf, arrivals }));
  }

  /** Start a Python that keeps its state. */
  async kernel(options = {}) {
    const { snapshot, sameRandom = false } = known('kernel', options, ['snapshot', 'sameRandom']);
    const fields = snapshot === undefined ? {} : { snapshot: String(snapshot), ...(sameRandom && { same_random: true }) };
    return new Kernel(this, whole(await this.starts('kernel_open', fields), 'kernel', 1));
  }

  /** Sandboxes with these options and files, and copies of these `kernels`: `[{ sandbox, kernels }]`. Programs aren't copied. */
  async fork(count = 1, kernels = [], options = {}) {
    const { sameRandom = false } = known('fork', options, ['sameRandom']);
    if (this.attached || this.mounts.some((mount) => mount.writable)) {
      throw new RequestRejected("a sandbox that was attached or writes to folders of the host can't be forked");
    }
    const shown = this.mounts.filter((mount) => !mount.copy); // what was copied into it is one of its files
    const own = { ...this.options, workdir: undefined, overlay: undefined, copy: undefined, mounts: shown };
    const snapshots = [];
    const made = [];
    try {
      for (const kernel of kernels) snapshots.push(await kernel.snapshot());
      while (made.length < count) {
        const copy = { sandbox: new Sandbox(own), kernels: [] };
        made.push(copy);
        await copy.sandbox.ask('sandbox_copy', { source: await this.id() });
        for (const snapshot of snapshots) copy.kernels.push(await copy.sandbox.kernel({ snapshot, sameRandom }));
      }
      return made;
    } catch (error) {
      await Promise.allSettled(made.map(({ sandbox }) => sandbox.close()));
      throw error;
    } finally {
      await Promise.allSettled(snapshots.map((snapshot) => snapshot.remove())); // else they go when they aren't used
    }
  }

  /** Make the server at `port` in the sandbox reachable on 127.0.0.1 of the host: `{port, close()}`. */
  async publish(port, options = {}) {
    const { hostPort = 0 } = known('publish', options, ['hostPort']);
    for (const [each, least] of [[port, 1], [hostPort, 0]]) {
      if (!Number.isInteger(each) || each < least || each > 65535) throw new RequestRejected(`${each} is no port`);
    }
    return host.Published.open({ ...this.host, id: await this.id(), port, hostPort });
  }

  // --- the sandbox ------------------------------------------------------------------

  /**
   * What the sandbox has changed in its copy of a folder (`overlay`), or what was changed in a folder since the sandbox was
   * opened (`compare`): rows with `path` and `kind`, sorted.
   */
  async diff({ target } = {}) {
    if (this.mounts.length) await this.id();
    if (this.companion) return (await this.companion.ask({ do: 'diff', target })).changes;
    return host.diff({ ...this.host, id: await this.id(), target });
  }

  /** What it is and has, as docs/wire.md says of sandbox_info. */
  async info() {
    return this.ask('sandbox_info');
  }

  /** Change when the daemon ends it: seconds; or its metadata, or its policy. */
  async extend(options = {}) {
    const { idle, lifetime, metadata, policy } = known('extend', options, ['idle', 'lifetime', 'metadata', 'policy']);
    return this.ask('sandbox_extend', { idle, lifetime, metadata, ...policies({ policy }) });
  }

  /** End it with everything in it; resolves when no process of it is left. */
  async kill() {
    await this.ask('sandbox_kill');
  }

  /** `kill`, if it was ever used and isn't over yet, and close the connections. */
  async close() {
    this.closed = true;
    try {
      if (this.opened) await this.calls.call('sandbox_kill', { sandbox: await this.opened }, { deadline: CLOSE_S });
    } catch (error) {
      if (!(error instanceof DaemonError)) throw error; // it is over, or will be when it was idle for long enough
    } finally {
      this.part();
      if (this.companion) await this.companion.close();
    }
  }

  /** Close the connections and let the sandbox run on; resolves to its id. */
  async detach() {
    const id = await this.id();
    if (this.companion) {
      await this.companion.ask({ do: 'detach' });
      await this.companion.close();
    } else if (this.options.held) {
      await this.ask('sandbox_extend', { detach: true });
    }
    this.part();
    return id;
  }

  /** Close the connections that it has alone. */
  part() {
    if (this.own) this.calls.close();
  }
}

if (Symbol.asyncDispose) Sandbox.prototype[Symbol.asyncDispose] = Sandbox.prototype.close;

/** The fields of the policies. An empty one allows nothing, and an empty map in a request is none. */
function policies({ policy, fetchPolicy }) {
  const full = (given, key) => (given && typeof given === 'object' && !Object.keys(given).length ? { [key]: [] } : given);
  return { policy: full(policy, 'allow'), fetch_policy: full(fetchPolicy, 'allowed_domains') };
}

function hidden(object, fields) {
  for (const [name, value] of Object.entries(fields)) {
    Object.defineProperty(object, name, { value, writable: true, enumerable: name === 'files' });
  }
}

module.exports = { Sandbox, hidden };
