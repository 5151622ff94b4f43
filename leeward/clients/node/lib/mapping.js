'use strict';
/*
 * Many jobs by one call: as many at once as there is room for, and each one's end as it comes. As leeward/client/many.py
 * has it, whose bounds these are.
 */

const { setMaxListeners } = require('node:events');
const { NoAnswer, Refused, RequestRejected } = require('./errors.js');

/** Jobs that are sent at once, unless the caller says otherwise. */
const AT_ONCE = 256;

/** The ends of `jobs`, each `{ number, job, result, error }`. */
async function* mapped(client, jobs, { ordered = false, atOnce = AT_ONCE, deadline, signal, progress, ...options }) {
  if (!(Number.isInteger(atOnce) && atOnce >= 1)) throw new RequestRejected(`atOnce is a number of jobs, 1 or more, not ${atOnce}`);
  const control = new AbortController();
  setMaxListeners(0, control.signal); // each job that runs is one
  const stop = () => control.abort();
  if (signal) signal.addEventListener('abort', stop, { once: true });
  if (signal && signal.aborted) stop();
  const total = Number.isInteger(jobs.length) ? jobs.length : null;
  const ended = new Map();
  let [sent, done, refused, yielded, more, failure] = [0, 0, 0, 0, true, null];
  let wake = () => {};
  const wakened = () => { const call = wake; wake = () => {}; call(); };
  const sleep = () => new Promise((resolve) => { wake = resolve; });
  const timer = deadline === undefined || deadline === null ? null : setTimeout(() => {
    failure = failure || new NoAnswer(`${sent - done} jobs have no answer before the deadline`);
    wakened();
  }, 1000 * deadline);
  const run = async (number, job) => {
    try {
      const { code, ...own } = job !== null && typeof job === 'object' && !ArrayBuffer.isView(job) ? job : { code: job };
      ended.set(number, { number, job, result: await client.execute(code, { ...options, ...own, signal: control.signal }), error: null });
    } catch (error) {
      if (!(error instanceof Refused) || control.signal.aborted) {
        failure = failure || error;
      } else {
        refused += 1;
        ended.set(number, { number, job, result: null, error });
      }
    }
    done += 1;
    if (ended.has(number) && progress && !failure) {
      try {
        progress({ done, refused, total });
      } catch (error) {
        failure = error;
      }
    }
    wakened();
  };
  const source = jobs[Symbol.asyncIterator] ? jobs[Symbol.asyncIterator]() : jobs[Symbol.iterator]();
  let room = () => {};
  const send = async () => {
    try {
      while (!failure) {
        const next = await source.next();
        if (next.done) break;
        run(sent++, next.value);
        while (!failure && (sent - done >= atOnce || sent - yielded >= 2 * atOnce)) await new Promise((resolve) => { room = resolve; });
      }
    } catch (error) {
      failure = failure || error;
    }
    more = false;
    wakened();
  };
  send();
  try {
    while (true) {
      if (failure) throw failure;
      const number = ordered ? yielded : ended.keys().next().value;
      const one = ended.get(number);
      if (one) {
        ended.delete(number);
        yielded += 1;
        room();
        yield one;
      } else if (!more && done === sent) {
        return;
      } else {
        room();
        await sleep();
      }
    }
  } finally {
    failure = failure || new Error('the iteration was left');
    clearTimeout(timer);
    if (signal) signal.removeEventListener('abort', stop);
    control.abort();
    room();
    if (more && source.return) Promise.resolve(source.return()).catch(() => {});
  }
}

module.exports = { mapped };
