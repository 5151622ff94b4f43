'use strict';

const { arriving, ARRIVALS } = require('./arrivals.js');
const { Calls } = require('./calls.js');
const { mapped } = require('./mapping.js');
const { resultOf } = require('./results.js');
const host = require('./host.js');
const { RequestRejected } = require('./errors.js');
const { hidden } = require('./sandbox.js');
const { known, texts, executeFields, callOptions, EXECUTE, CALL } = require('./fields.js');

/** Jobs of the daemon, each in a process of its own. */
class Client {
  constructor(options = {}) {
    known('Client', options, ['socket', 'token', 'command', 'retry', 'retryBusy']);
    const { socket, token, command } = options;
    hidden(this, { calls: new Calls(options), host: { socket, token, command }, environments: new Map() });
  }

  /** Run Python code, or with `{module}` a module, and come back with its Result. */
  async execute(code, options = {}) {
    known('execute', options, [...EXECUTE, 'packages', ...CALL, ...ARRIVALS]);
    return arriving(options, (arrivals) => this.send(code, options, arrivals));
  }

  /** Run many jobs, and yield each one's end as it comes. */
  map(jobs, options = {}) {
    known('map', options, [...EXECUTE, 'packages', 'idempotent', 'signal', 'deadline', 'ordered', 'atOnce', 'progress']);
    return mapped(this, jobs, options);
  }

  async send(code, options, arrivals) {
    const call = (fields) => this.calls.call('execute', fields, { ...callOptions(options), read: resultOf, arrivals });
    const fields = executeFields(code, options);
    const packages = texts(options.packages || [], 'packages');
    if (!packages.length) return call(fields);
    if (fields.environment) throw new RequestRejected('environment or packages, not both');
    for (let again = false; ; again = true) {
      const environment = await this.environment(packages);
      try {
        return await call({ ...fields, environment });
      } catch (error) {
        // It was removed since this client has asked.
        if (again || !(error instanceof RequestRejected) || !error.message.includes(`environment '${environment}' is unknown`)) throw error;
        this.environments.clear();
      }
    }
  }

  /** The name of an environment of these packages; the command makes it, once for all calls. */
  environment(packages) {
    const key = JSON.stringify(packages);
    let name = this.environments.get(key);
    if (!name) {
      name = host.ensure({ ...this.host, packages });
      this.environments.set(key, name);
      name.catch(() => this.environments.delete(key));
    }
    return name;
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
