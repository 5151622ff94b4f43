'use strict';
/*
 * Processes and kernels of a live sandbox. The daemon sends output when it is asked for, so who reads slowly slows the
 * process alone.
 */

const { randomInt } = require('node:crypto');
const { StringDecoder } = require('node:string_decoder');

const { arriving, ARRIVALS } = require('./arrivals.js');
const { now } = require('./calls.js');
const { BadReply, BrokenPipeError, DaemonError, ProcessOver } = require('./errors.js');
const { resultOf, endedOf } = require('./results.js');
const { bytes, known, executeFields, TURN } = require('./fields.js');
const { Snapshot } = require('./snapshot.js');

/** Seconds that one request waits in the daemon; then the next one is sent. */
const READ_S = 30;
const CLOSE_S = 5;
const SOON_MS = 1;
const WRITE = 1 << 20;
const SIGNALS = require('node:os').constants.signals;

function whole(ok, name, least = 0) {
  if (!Number.isSafeInteger(ok[name]) || ok[name] < least) throw new BadReply(`an answer's ${name} is no number from ${least} on`);
  return ok[name];
}

function chunksOf(ok) {
  let last = 0;
  return ok.chunks.map((row) => {
    const good = Array.isArray(row) && row.length === 4 && Number.isSafeInteger(row[0]) && row[0] > last
      && (row[1] === 1 || row[1] === 2) && typeof row[2] === 'number' && Buffer.isBuffer(row[3]);
    if (!good) throw new BadReply('a chunk is no number, stream, time and bytes');
    const [number, stream, time, data] = row;
    last = number;
    return { number, stream: stream === 1 ? 'stdout' : 'stderr', time, data, text: '' };
  });
}

/** Add the character that `decoder` has begun to the last chunk of `stream`, behind which nothing comes. */
function finish(chunks, stream, decoder) {
  const last = chunks.findLast((chunk) => chunk.stream === stream);
  if (last) last.text += decoder.end();
}

/** Seconds that the next request may wait, of a call that has `timeout` seconds from `began` on. */
function share(timeout, began) {
  return timeout === undefined || timeout === null ? READ_S : Math.max(0, Math.min(READ_S, timeout - (now() - began)));
}

const passed = (timeout, began) => timeout !== undefined && timeout !== null && now() - began >= timeout;

/** A process that `start` or `terminal` has made; it lives until it ends, is killed, or its sandbox is over. */
class Process {
  constructor(sandbox, number) {
    Object.defineProperty(this, 'sandbox', { value: sandbox });
    this.number = number;
    this.after = 0;
    Object.defineProperty(this, 'reader', { value: 1 + randomInt(2 ** 47) }); // its own number, by which the daemon knows what it has
    this.atEnd = false;
    this.end = null; // the answer to process_read that was the last one, which tells how it ended
    this.texts = { stdout: new StringDecoder('utf8'), stderr: new StringDecoder('utf8') };
    this.reading = Promise.resolve();
  }

  ask(op, fields = {}, options = {}) {
    return this.sandbox.ask(op, { process: this.number, ...fields }, options);
  }

  async row() {
    const row = (await this.sandbox.processes()).find((one) => one.process === this.number);
    if (!row) throw new ProcessOver(`the sandbox has no process ${this.number} any more`);
    return row;
  }

  /** Its number inside the sandbox, once it is started; 0 for one that couldn't be. */
  async pid() {
    for (let pause = SOON_MS; ; pause *= 2) {
      const row = await this.row();
      if (row.pid > 0 || row.over) return row.pid || 0;
      await new Promise((resolve) => { setTimeout(resolve, pause); });
    }
  }

  /** The next chunks, as soon as there are any; none at its end, or where `timeout` seconds have passed. */
  read({ timeout } = {}) {
    const found = this.reading.then(() => this.next(timeout));
    this.reading = found.catch(() => {}); // one after the other
    return found;
  }

  async next(timeout) {
    const began = now();
    while (!this.atEnd) {
      const ok = await this.ask('process_read', { after: this.after, reader: this.reader, wait: share(timeout, began) });
      const found = chunksOf(ok);
      this.atEnd = ok.over;
      if (ok.outcome) this.end = ok;
      if (found.length) {
        for (const chunk of found) chunk.text = this.texts[chunk.stream].write(chunk.data);
        if (this.atEnd) for (const stream of ['stdout', 'stderr']) finish(found, stream, this.texts[stream]);
        this.after = found[found.length - 1].number;
        return found;
      }
      if (passed(timeout, began)) break;
    }
    return [];
  }

  /** Chunks until its end. */
  async* [Symbol.asyncIterator]() {
    for (let found = await this.read(); found.length; found = await this.read()) yield* found;
  }

  /** Write to its standard input; resolves when its pipe has taken all. */
  async write(data) {
    const all = bytes(data, 'data');
    for (let at = 0; at < all.length; at += WRITE) {
      const piece = all.subarray(at, at + WRITE);
      const count = whole(await this.ask('process_write', { data: piece }), 'written');
      if (count < piece.length) throw new BrokenPipeError(`process ${this.number} reads no more`, at + count);
    }
    return all.length;
  }

  async closeStdin() {
    await this.ask('process_write', { end: true });
  }

  /** Send a signal, by name or number, to it alone; was it there to get it? */
  async signal(signal = 'SIGTERM') {
    return (await this.ask('process_signal', { signal: typeof signal === 'string' ? SIGNALS[signal] || 0 : signal })).sent;
  }

  async resize(rows, columns) {
    return (await this.ask('process_resize', { rows, columns })).resized;
  }

  /** End it and all that descends from it. */
  async kill() {
    await this.ask('process_kill');
  }

  /** Its Result, without output; null where `timeout` seconds have passed. */
  async wait({ timeout } = {}) {
    const began = now();
    while (true) {
      const result = endedOf(this.end || await this.ask('process_wait', { wait: share(timeout, began) }));
      if (result || passed(timeout, began)) return result;
    }
  }

  /** Read all that nobody has read yet, and wait for its end. */
  async result({ onStdout, onStderr } = {}) {
    const kept = { stdout: [], stderr: [] };
    const told = { stdout: onStdout, stderr: onStderr };
    for await (const { stream, data } of this) {
      kept[stream].push(data);
      if (told[stream]) await told[stream](data);
    }
    while (true) {
      const end = this.end || await this.ask('process_wait', { wait: READ_S });
      const result = endedOf(end, Buffer.concat(kept.stdout), Buffer.concat(kept.stderr));
      if (result) return result;
    }
  }
}

/** A Python in a sandbox that keeps its state. Requests run one after the other, in their order. */
class Kernel {
  constructor(sandbox, number) {
    Object.defineProperty(this, 'sandbox', { value: sandbox });
    this.number = number;
  }

  /** Run code, which sees what earlier code left; `value` and `results` are there unless `display` is false. */
  async execute(code, options = {}) {
    const { signal, ...job } = options;
    known('execute', job, [...TURN, ...ARRIVALS]);
    const fields = executeFields(code, { display: true, ...job });
    return arriving(job, (arrivals) => this.sandbox.ask('sandbox_execute', { kernel: this.number, ...fields }, { signal, read: resultOf, arrivals }));
  }

  /** Raise KeyboardInterrupt in what runs; was there anything? */
  async interrupt() {
    return (await this.sandbox.ask('kernel_interrupt', { kernel: this.number })).interrupted;
  }

  /** A fresh process; the state is lost. */
  async reset() {
    await this.sandbox.ask('kernel_reset', { kernel: this.number });
  }

  /** A second kernel with the state that this one has; from then on each has its own. */
  async fork() {
    return new Kernel(this.sandbox, whole(await this.sandbox.starts('kernel_fork', { kernel: this.number }), 'kernel', 1));
  }

  /** The state that this one has, which goes on; SnapshotFailed if it has threads, say. */
  async snapshot() {
    return new Snapshot(this.sandbox.host.socket, await this.sandbox.ask('kernel_snapshot', { kernel: this.number }));
  }

  /** The state of a snapshot, or of the one with that id; refused, the kernel goes on as it was. */
  async rollback(snapshot, options = {}) {
    const { sameRandom = false } = known('rollback', options, ['sameRandom']);
    await this.sandbox.ask('kernel_rollback', { kernel: this.number, snapshot: String(snapshot), ...(sameRandom && { same_random: true }) });
  }

  async close() {
    try {
      await this.sandbox.ask('kernel_close', { kernel: this.number }, { deadline: CLOSE_S });
    } catch (error) {
      if (!(error instanceof DaemonError)) throw error; // it is over, or goes with its sandbox
    }
  }
}

module.exports = { Process, Kernel, whole, CLOSE_S };
