'use strict';
/*
 * What arrives of a job while it runs, as leeward/client/live_output.py has it: output is asked for after a moment, each
 * answer is followed by the next request, and the result has all output still.
 */

const { checked } = require('./answers.js');
const { RequestRejected } = require('./errors.js');

/** Milliseconds until output is asked for, and until it is asked for again while the job waits for a worker. */
const LOOK_MS = 50;
const ARRIVALS = ['onStdout', 'onStderr', 'onResult'];

class Arrivals {
  constructor(functions, onResult) {
    this.functions = functions;
    this.onResult = onResult;
    this.sizes = [0, 0];
    this.failed = null;
    this.passing = Promise.resolve(); // what arrived is passed on in order
    this.timer = null;
    this.target = 0;
  }

  /** Ask for the output of the job of request `target` from now on. */
  begin(connection, target) {
    this.end();
    if (!this.functions.some(Boolean)) return;
    this.target = target;
    this.later(connection, target);
  }

  later(connection, target) {
    if (this.target === target) this.timer = setTimeout(() => this.take(connection, target), LOOK_MS);
  }

  take(connection, target) {
    if (this.target !== target) return;
    const [stdout, stderr] = this.sizes;
    connection.send('output_take', { target, stdout, stderr }).then(async ({ ok }) => {
      const found = checked('output_take', ok);
      if (this.target !== target) return;
      await this.add([found.stdout, found.stderr]);
      if (found.running) this.take(connection, target);
      else if (!found.over) this.later(connection, target);
    }).catch(() => this.later(connection, target)); // the connection has as many requests as it may, say
  }

  add(pieces) {
    pieces.forEach((data, at) => {
      this.sizes[at] += data.length;
      if (data.length) this.pass(this.functions[at], data);
    });
    return this.passing;
  }

  /** Call a function when the calls before it are over; after an error none is called any more. */
  pass(call, what) {
    if (!call) return;
    this.passing = this.passing.then(() => (this.failed ? undefined : call(what))).catch((error) => { this.failed = { error }; });
  }

  end() {
    this.target = 0;
    clearTimeout(this.timer);
  }

  /** `result`, when all that hadn't arrived is passed on. */
  async finish(result) {
    this.add([result.stdout.subarray(this.sizes[0]), result.stderr.subarray(this.sizes[1])]);
    for (const one of result.results) this.pass(this.onResult, one);
    await this.passing;
    if (this.failed) throw this.failed.error;
    return result;
  }
}

/** What `call(arrivals)` gives, a Result, with what arrives of its job passed on to the functions in `options`. */
async function arriving(options, call) {
  for (const name of ARRIVALS) {
    if (options[name] && typeof options[name] !== 'function') throw new RequestRejected(`${name} is a function, not ${typeof options[name]}`);
  }
  const { onStdout, onStderr, onResult } = options;
  if (!onStdout && !onStderr && !onResult) return call();
  const arrivals = new Arrivals([onStdout, onStderr], onResult);
  return arrivals.finish(await call(arrivals));
}

module.exports = { arriving, ARRIVALS };
