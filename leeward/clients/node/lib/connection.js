'use strict';
/*
 * One connection to the daemon: requests in flight by their numbers, and the answers to them.
 *
 * Node's sockets lose descriptors, so the first request is keep_results: memory files of answers stay with the daemon, and
 * `memory` reads them. While nothing is asked the socket doesn't keep the program alive.
 */

const { encode, decode } = require('./msgpack.js');
const { FrameReader, header } = require('./frames.js');
const { connect, away } = require('./socket.js');
const errors = require('./errors.js');
const { isMap } = require('./answers.js');
const { VERSION, MAX_ARENAS } = require('./wire.js').BOUNDS;

const { BadReply, Cancelled, DaemonError, NoAnswer, PeerError, Refused, RequestRejected } = errors;

const MAX_ID = 2 ** 53 - 1;
/** Bytes of a memory file in one answer. */
const PIECE = 1 << 20;
/** Bytes that one answer may bring in memory files. */
const MAX_MEMORY = 2 ** 31 - 1;
/** Milliseconds of silence before the daemon is asked for a sign of life, and after that before it counts as gone. */
const PATIENCE_MS = 10000;
/** Requests in flight that any daemon takes; two are left for `ping` and `cancel`. */
const LEAST_REQUESTS = 16 - 2;

class Connection {
  static async open(path, token) {
    const connection = new Connection(path, await connect(path, token));
    connection.keeps = connection.send('keep_results', {}).then(() => true, (error) => {
      if (error instanceof RequestRejected) return false; // an older daemon's
      throw error;
    });
    connection.keeps.catch(() => {}); // who needs it asks
    connection.send('ping', {}).then(({ ok }) => {
      const most = ok.caps && ok.caps.requests;
      if (Number.isSafeInteger(most) && most > LEAST_REQUESTS) connection.most = Math.min(most, 1024) - 2;
    }).catch(() => {});
    return connection;
  }

  constructor(path, socket) {
    this.path = path;
    this.socket = socket;
    this.most = LEAST_REQUESTS;
    this.jobs = 0; // calls that use it, by their users' count
    this.last = 0;
    this.waiting = new Map();
    this.reader = new FrameReader();
    this.over = null;
    this.silence = null;
    this.asked = false;
    socket.on('data', (data) => this.received(data));
    socket.on('error', (error) => this.end(this.lost(error.code || error.message)));
    socket.on('close', () => this.end(this.lost('it went away before it answered')));
    socket.on('end', () => this.end(this.lost('it went away before it answered')));
    socket.unref();
    if (socket.destroyed) queueMicrotask(() => this.end(this.lost('it went away before it answered')));
  }

  lost(why) {
    return away(this.path, why, true);
  }

  /** The reply to a request: `{id, ok, arenas}`; rejects with the error that the refusal is. */
  send(op, fields) {
    if (this.over) return Promise.reject(away(this.path, 'the connection was closed'));
    let payload;
    const id = ++this.last;
    let head;
    try {
      payload = encode({ v: VERSION, id, op, ...fields });
      head = header(payload.length);
    } catch (error) {
      return Promise.reject(new RequestRejected(`${op} can't be sent: ${error.message}`));
    }
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    answer.number = id;
    if (this.waiting.size === 1) {
      this.socket.ref();
      this.listen();
    }
    this.socket.cork();
    this.socket.write(head);
    this.socket.write(payload);
    this.socket.uncork();
    return answer;
  }

  /** Nobody waits for the answer to request `number` any more; the job behind it is ended. */
  abandon(number) {
    const waiting = this.waiting.get(number);
    if (!waiting) return;
    waiting.abandoned = true;
    this.send('cancel', { target: number }).catch(() => {});
  }

  received(data) {
    if (this.over) return;
    this.listen();
    try {
      for (const payload of this.reader.feed(data)) {
        this.answer(decode(payload));
        if (this.over) return;
      }
    } catch (error) {
      if (!(error instanceof PeerError)) throw error;
      this.end(new BadReply(`the daemon broke the protocol: ${error.message}`));
    }
  }

  answer(message) {
    const reply = parseReply(message);
    if (reply.id === 0) {
      if (reply.ok) throw new PeerError('an answer to nobody');
      const error = refusal(reply.error);
      error.mayHaveRun = error.mayHaveRun || this.waiting.size > 1;
      this.end(error);
      return;
    }
    const waiting = this.waiting.get(reply.id);
    if (!waiting) throw new PeerError(`an answer to request ${reply.id}, which isn't waiting`);
    this.waiting.delete(reply.id);
    if (waiting.abandoned) {
      if (reply.arenas.length) this.drop(reply.id);
      waiting.reject(new Cancelled('the client took the request back'));
    } else if (reply.ok) waiting.resolve(reply); else waiting.reject(refusal(reply.error));
    if (!this.waiting.size) this.rest();
  }

  // --- memory files ---------------------------------------------------------------

  /**
   * The bytes at each of `places` in the memory files of `reply`; lets go of the files. One piece is asked for after the
   * other, so no more than that waits in the socket.
   */
  async memory(reply, places) {
    try {
      if (!(await this.keeps)) throw new BadReply('the daemon is older than this package: it can only send descriptors');
      const total = places.reduce((sum, place) => sum + place.length, 0);
      if (total > MAX_MEMORY) throw new BadReply(`the answer has ${total} bytes; at most ${MAX_MEMORY} are taken`);
      const found = [];
      for (const { arena, offset, length } of places) {
        const data = Buffer.allocUnsafeSlow(length);
        for (let at = 0; at < length;) {
          const size = Math.min(PIECE, length - at);
          const { ok } = await this.send('kept_read', { target: reply.id, arena, offset: offset + at, size });
          if (!Buffer.isBuffer(ok.data) || ok.data.length !== size) throw new BadReply('a piece of a memory file is cut off');
          at += ok.data.copy(data, at);
        }
        found.push(data);
      }
      return found;
    } catch (error) {
      if (error instanceof DaemonError) error.mayHaveRun = true; // the job itself was answered
      throw error;
    } finally {
      this.drop(reply.id);
    }
  }

  drop(number) {
    this.send('kept_drop', { target: number }).catch(() => {}); // it goes with the connection
  }

  // --- silence and the end ----------------------------------------------------------

  listen() {
    clearTimeout(this.silence);
    this.asked = false;
    this.silence = this.waiting.size ? setTimeout(() => this.silent(), PATIENCE_MS) : null;
  }

  silent() {
    if (this.asked) {
      this.end(new NoAnswer(`the daemon on ${JSON.stringify(this.path)} doesn't answer pings`));
      return;
    }
    this.send('ping', {}).catch(() => {});
    this.asked = true;
    this.silence = setTimeout(() => this.silent(), PATIENCE_MS);
  }

  rest() {
    clearTimeout(this.silence);
    this.silence = null;
    this.socket.unref();
  }

  /** Close it; whoever waits gets `error`. */
  end(error) {
    if (this.over) return;
    this.over = error;
    this.rest();
    this.socket.destroy();
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const one of waiting) one.reject(error);
  }
}

/** The class for each kind of refusal. */
const BY_KIND = new Map(Object.values(errors).filter((one) => one.prototype instanceof Refused).map((one) => [one.kind, one]));

/** The error for a refusal of the daemon's; of a kind that isn't known a Refused that may have run. */
function refusal(error) {
  const known = BY_KIND.get(error.kind);
  if (known) return new known(error.message, error);
  return Object.assign(new Refused(`${error.kind}: ${error.message}`, error), { kind: error.kind, mayHaveRun: true });
}

function parseReply(message) {
  if (!isMap(message)) throw new PeerError('a reply is no map');
  const { id } = message;
  if (!Number.isSafeInteger(id) || id < 0 || id > MAX_ID) throw new PeerError("a reply's id is out of range");
  if (message.error !== undefined) {
    const { error } = message;
    if (error === null || typeof error !== 'object' || typeof error.kind !== 'string' || typeof error.message !== 'string') {
      throw new PeerError('a refusal has no kind or no message');
    }
    const { retry_after: after = null } = error;
    if (after !== null && !(typeof after === 'number' && after >= 0 && after < 1e12)) {
      throw new PeerError("a refusal's retry_after is no time");
    }
    return { id, ok: null, error, arenas: [] };
  }
  const { ok } = message;
  if (!isMap(ok)) throw new PeerError('an answer is no map');
  const arenas = ok.arenas === undefined ? [] : ok.arenas;
  if (!Array.isArray(arenas) || arenas.length > MAX_ARENAS
    || !arenas.every((size) => Number.isSafeInteger(size) && size > 0 && size <= 2 ** 40)) {
    throw new PeerError("an answer's arenas are no sizes");
  }
  return { id, ok, error: null, arenas };
}

module.exports = { Connection, parseReply };
