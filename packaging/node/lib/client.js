'use strict';

const { Calls } = require('./calls.js');
const { resultOf } = require('./results.js');
const { known, executeFields, callOptions, EXECUTE, CALL } = require('./fields.js');

/** Jobs of the daemon, each in a process of its own. */
class Client {
  constructor(options = {}) {
    known('Client', options, ['socket', 'retry', 'retryBusy']);
    this.calls = new Calls(options);
    Object.defineProperty(this, 'calls', { enumerable: false });
  }

  /** Run Python code, or with `{module}` a module, and come back with its Result. */
  async execute(code, options = {}) {
    known('execute', options, [...EXECUTE, ...CALL]);
    return this.calls.call('execute', executeFields(code, options), { ...callOptions(options), read: resultOf });
  }

  /** The daemon's version, the wire's, and its bounds. */
  async ping(options = {}) {
    known('ping', options, CALL);
    return this.calls.call('ping', {}, callOptions(options));
  }

  /** What `leeward status --json` prints. */
  async status(options = {}) {
    known('status', options, CALL);
    return this.calls.call('status', {}, callOptions(options));
  }

  /** Close the connections; what runs is ended. */
  close() {
    this.calls.close();
  }
}

module.exports = { Client };
