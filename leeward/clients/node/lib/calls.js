'use strict';
/*
 * Calls of the daemon: which connection takes one, and which failed ones are sent again. As leeward/client/retry.py has it:
 * only after an error which says that nothing of the job has run, unless the job may run twice (`idempotent`).
 */

const { checked } = require('./answers.js');
const { Connection } = require('./connection.js');
const { socketPath } = require('./socket.js');
const { Busy, Cancelled, DaemonAway, DaemonError, NoAnswer, QueueTimeout, RequestRejected, ShuttingDown } = require('./errors.js');

/**
 * Seconds for which a call without a deadline is sent again after it was refused as busy, which begin again whenever a job
 * of its client ends; and after other refusals.
 */
const BUSY_S = 30;
const RETRY_S = 10;
const MOST_LOST = 3;
const FIRST_S = 0.02;
const MOST_S = 0.5;
/** Connections of one client; each takes as many requests at once as the daemon allows. */
const MOST_CONNECTIONS = 8;

const now = () => performance.now() / 1000;

class Retry {
  constructor({ retry = true, retryBusy = true, idempotent = false } = {}, deadline = null, random = Math.random) {
    this.wanted = retry;
    this.busy = retry && retryBusy;
    this.idempotent = retry && idempotent;
    this.deadline = deadline;
    this.until = deadline;
    this.refused = null;
    this.lost = 0;
    this.next = FIRST_S;
    this.mayHaveRun = false;
    this.random = random;
  }

  /**
   * Seconds until the next attempt after `error`, or null if there is none. `progress`: when a job of the client ended last;
   * `beside`: it has others, which wait or run.
   */
  pause(error, time, progress = -Infinity, beside = false) {
    this.mayHaveRun = error.mayHaveRun = this.mayHaveRun || error.mayHaveRun;
    if (error instanceof Busy || (error instanceof QueueTimeout && (beside || time - progress < BUSY_S))) {
      if (!this.busy) return null;
      if (this.refused === null) this.refused = time;
      const until = this.deadline === null ? Math.max(this.refused, progress) + BUSY_S : this.deadline;
      const pause = (error.retryAfter || 0) * (1 + this.random() / 2) + this.step();
      return time + pause < until ? pause : null;
    }
    let pause;
    if (error instanceof DaemonAway && (this.idempotent || !error.mayHaveRun)) {
      this.lost += 1;
      if (this.lost > (this.wanted ? MOST_LOST : 1)) return null;
      pause = 0;
    } else if (error instanceof ShuttingDown && this.wanted) {
      pause = this.step();
    } else {
      return null;
    }
    if (this.until === null) this.until = time + RETRY_S;
    return time + pause < this.until ? pause : null;
  }

  step() {
    const pause = this.next * (0.5 + this.random() / 2);
    this.next = Math.min(2 * this.next, MOST_S);
    return pause;
  }
}

class Calls {
  constructor({ socket, token, retry = true, retryBusy = true } = {}) {
    this.path = socketPath(socket);
    this.token = token;
    this.options = { retry, retryBusy };
    this.connections = [];
    this.opening = null;
    this.waiting = []; // for room in a connection, in order
    this.closed = false;
    this.progress = -Infinity; // when a job was answered last
  }

  /**
   * What `read(reply, connection)` makes of the answer to a request.
   *
   * `deadline`: seconds for the call as a whole; `signal`: an AbortSignal, which takes the request back; `arrivals`: passes
   * on what arrives of the job.
   */
  async call(op, fields, { deadline = null, signal = undefined, idempotent = false, read = ({ ok }) => checked(op, ok), arrivals = undefined } = {}) {
    if (deadline !== null && !(deadline >= 0)) throw new RequestRejected(`deadline is seconds, not ${deadline}`);
    const until = deadline === null ? null : now() + deadline;
    const attempts = new Retry({ ...this.options, idempotent }, until);
    let earlier = null;
    while (true) {
      let error;
      try {
        const answer = await this.attempt(op, fields, until, signal, read, arrivals);
        if (op === 'execute') this.progress = now();
        return answer;
      } catch (wrong) {
        if (!(wrong instanceof DaemonError)) throw wrong;
        // If no new connection can be made the earlier error says more.
        error = wrong instanceof DaemonAway && wrong.unconnected && earlier ? earlier : wrong;
      }
      if (error === earlier || error.unconnected) throw error;
      const pause = attempts.pause(error, now(), this.progress, this.connections.some((one) => one.jobs > 0));
      if (pause === null) throw error;
      earlier = error;
      await sleep(pause, signal);
    }
  }

  async attempt(op, fields, until, signal, read, arrivals) {
    aborted(signal);
    const connection = await this.room(until, signal);
    try {
      aborted(signal);
      const answer = connection.send(op, fields);
      if (arrivals && answer.number) arrivals.begin(connection, answer.number);
      return await this.within(answer.then((reply) => read(reply, connection)), until, signal,
        () => { if (answer.number) connection.abandon(answer.number); });
    } finally {
      if (arrivals) arrivals.end();
      this.leave(connection);
    }
  }

  /** `work`, unless the deadline or the signal comes first. */
  within(work, until, signal, giveUp) {
    if (until === null && !signal) return work;
    return new Promise((resolve, reject) => {
      let timer = null;
      const stop = () => {
        clearTimeout(timer);
        if (signal) signal.removeEventListener('abort', abort);
      };
      const abort = () => {
        stop();
        giveUp();
        reject(new Cancelled('the client took the request back'));
      };
      if (signal) signal.addEventListener('abort', abort, { once: true });
      if (until !== null) {
        timer = setTimeout(() => {
          stop();
          giveUp();
          reject(new NoAnswer(`no answer from ${JSON.stringify(this.path)} before the deadline`));
        }, Math.min(2 ** 31 - 1, Math.max(0, 1000 * (until - now()))));
      }
      work.then((value) => { stop(); resolve(value); }, (error) => { stop(); reject(error); });
    });
  }

  // --- connections ------------------------------------------------------------------

  /** A connection with room for one more request, which is taken. */
  async room(until, signal) {
    while (true) {
      if (this.closed) throw new DaemonAway('the client was closed', false);
      this.connections = this.connections.filter((one) => !one.over);
      const free = this.connections.find((one) => one.jobs < one.most);
      if (free) {
        free.jobs += 1;
        return free;
      }
      if (this.connections.length < MOST_CONNECTIONS) await this.within(this.another(), until, signal, () => {});
      else await this.turn(until, signal);
    }
  }

  /** Waits until somebody leaves; who gives up isn't woken in another's place. */
  turn(until, signal) {
    let mine;
    const woken = new Promise((resolve) => { mine = resolve; });
    this.waiting.push(mine);
    return this.within(woken, until, signal, () => { this.waiting = this.waiting.filter((one) => one !== mine); });
  }

  /** One more connection; who asks while one is made waits for that. */
  another() {
    if (!this.opening) {
      this.opening = Connection.open(this.path, this.token).then((made) => {
        if (this.closed) made.end(new DaemonAway('the client was closed', true));
        else this.connections.push(made);
      }, (error) => {
        error.unconnected = true;
        throw error;
      }).finally(() => { this.opening = null; });
    }
    return this.opening;
  }

  leave(connection) {
    connection.jobs -= 1;
    const next = this.waiting.shift();
    if (next) next();
  }

  close() {
    this.closed = true;
    for (const one of this.connections) one.end(new DaemonAway('the client was closed', true));
    this.connections = [];
    for (const next of this.waiting.splice(0)) next();
  }
}

function aborted(signal) {
  if (signal && signal.aborted) {
    const error = new Cancelled('the client took the request back');
    error.mayHaveRun = false;
    throw error;
  }
}

function sleep(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => { if (signal) signal.removeEventListener('abort', stop); resolve(); }, 1000 * seconds);
    const stop = () => {
      clearTimeout(timer);
      reject(new Cancelled('the client took the request back'));
    };
    if (signal) signal.addEventListener('abort', stop, { once: true });
  });
}

module.exports = { Calls, Retry, now };
