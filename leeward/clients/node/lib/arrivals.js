'use strict';
/*
 * What arrives of a job while it runs, as leeward/client/live_output.py has it: output is asked for after a moment, each
 * answer is followed by the next request, and the result has all output still. What the code shows comes by calls of a
 * function, whose arguments are hostile; the rest is in the result.
 */

const { checked } = require('./answers.js');
const { RequestRejected } = require('./errors.js');
const { encode, decode } = require('./msgpack.js');
const { shown } = require('./results.js');
const { MAX_SHOWN } = require('./wire.js').BOUNDS;

/** Milliseconds until output is asked for, and until it is asked for again while the job waits for a worker. */
const LOOK_MS = 50;
const ARRIVALS = ['onStdout', 'onStderr', 'onResult'];

class Arrivals {
  constructor(functions, onResult) {
    this.functions = functions;
    this.onResult = onResult;
    this.sizes = [0, 0];
    this.failed = null;
    this.results = new Map(); // by their places: those that have arrived before their turn
    this.next = 0;
    this.passing = Promise.resolve(); // what arrived is passed on in order
    this.timer = null;
    this.target = 0;
  }

  /** Ask for the output of the job of request `target` from now on. */
  begin(connection, target) {
    this.end();
    this.target = target;
    if (this.functions.some(Boolean)) this.later(connection, target);
    if (this.onResult) this.takeCalls(connection, target);
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

  takeCalls(connection, target) {
    connection.send('function_take', { target }).then(({ ok }) => {
      const { calls, over } = checked('function_take', ok);
      if (!over) this.takeCalls(connection, target);
      for (const [call, , args] of calls) {
        if (this.target === target) this.called(args);
        connection.send('function_answer', { target, call, value: encode(null) }).catch(() => {});
      }
    }).catch(() => {}); // what hasn't arrived is in the result
  }

  called(args) {
    const [[number, forms]] = decode(args);
    if (!Number.isSafeInteger(number) || number < this.next || number >= MAX_SHOWN) return;
    this.results.set(number, shown([forms])[0]);
    this.passResults();
  }

  passResults() {
    for (; this.results.has(this.next); this.next += 1) {
      this.pass(this.onResult, this.results.get(this.next));
      this.results.delete(this.next);
    }
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
    result.results.forEach((one, number) => { if (number >= this.next) this.results.set(number, one); });
    this.passResults();
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
