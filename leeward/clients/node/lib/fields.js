'use strict';
/*
 * From options to the fields of requests. The daemon checks values, once for clients in all languages; here are only the
 * checks of what JavaScript would hide, such as a misspelt option.
 */

const { RequestRejected } = require('./errors.js');

const UNITS = new Map([['', 1], ['B', 1], ['K', 2 ** 10], ['M', 2 ** 20], ['G', 2 ** 30], ['T', 2 ** 40]]);

/** Bytes: a number, or text such as 64M or 1.5GiB. */
function size(value, what) {
  if (typeof value !== 'string') return value;
  const found = /^(\d{1,15}(?:\.\d{1,5})?)\s*([BKMGT]?)(?:i?B)?$/i.exec(value.trim());
  if (!found) throw new RequestRejected(`${what} ${JSON.stringify(value).slice(0, 40)} is no size; these are: 64M, 1.5G, 512MiB, 268435456`);
  return Math.floor(Number(found[1]) * UNITS.get(found[2].toUpperCase()));
}

function bytes(value, what) {
  if (typeof value === 'string') return Buffer.from(value, 'utf8');
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return Buffer.from(value);
  throw new RequestRejected(`${what} is text, a Buffer or another view of bytes, not ${value === null ? 'null' : typeof value}`);
}

function texts(value, what) {
  if (typeof value === 'string') throw new RequestRejected(`${what} takes several strings, not one: [${JSON.stringify(value).slice(0, 40)}]`);
  const found = [...value];
  if (!found.every((one) => typeof one === 'string')) throw new RequestRejected(`${what} takes strings alone`);
  return found;
}

function pairs(value, what) {
  if (value === null || typeof value !== 'object') throw new RequestRejected(`${what} takes an object, not ${typeof value}`);
  return Object.fromEntries(value instanceof Map ? value : Object.entries(value));
}

/** Names that other classes and programs have for our options. */
const ALSO = {
  hostPath: ['source'], guestPath: ['target'], readWrite: ['writable'], workDir: ['workdir'], workdir: ['workDir'], timeoutMs: ['timeout'], timeout: ['timeoutMs'],
  memoryLimit: ['memory'], memory: ['memoryLimit'], envVars: ['env'], cpuTime: ['cpu'], cpu: ['cpuTime'], network: ['allowNetwork', 'fetchPolicy'], policy: ['fetchPolicy'],
};

/** Refuses an option that there isn't, with the one that is meant. */
function known(call, options, names) {
  for (const name of Object.keys(options)) {
    if (names.includes(name)) continue;
    const meant = (Object.hasOwn(ALSO, name) ? ALSO[name] : []).find((one) => names.includes(one));
    throw new RequestRejected(`${call} has no option ${JSON.stringify(name)}; ${meant ? `it is called ${meant}; ` : ''}there are ${[...names].sort().join(', ')}`);
  }
  return options;
}

const LIMITING = ['memory', 'processes', 'descriptors', 'timeout', 'output', 'overflow'];

function limits({ memory, processes, descriptors, timeout, output, overflow }, more = {}) {
  const found = { ...more, memory: size(memory, 'memory'), processes, descriptors, time: timeout, output: size(output, 'output'), overflow };
  const given = Object.fromEntries(Object.entries(found).filter(([, one]) => one !== undefined && one !== null));
  return Object.keys(given).length ? { limits: given } : {};
}

/** What leeward itself calls with each thing that the code shows; docs/wire.md#function_take. */
const SHOWN = '_leeward_shown';
const TURN = ['args', 'env', 'files', 'collect', 'display', 'timeout', 'output', 'overflow', 'name', 'label'];
const EXECUTE = [...TURN, 'module', 'stdin', 'memory', 'processes', 'descriptors', 'wall', 'cpuTime', 'profile', 'environment', 'egress'];

/** The fields of an execute request. */
function executeFields(code, options) {
  const fields = limits(options, { wall: options.wall, cpu_time: options.cpuTime });
  if (code !== undefined && code !== null) fields.code = bytes(code, 'code');
  const { module, name, label, args, collect, env, files, stdin, display, profile, environment, egress } = options;
  if (module !== undefined) fields.module = module;
  if (name !== undefined) fields.name = name;
  if (label !== undefined) fields.label = label;
  if (args !== undefined) fields.args = texts(args, 'args');
  if (collect !== undefined) fields.collect = texts(collect, 'collect');
  if (env !== undefined) fields.env = pairs(env, 'env');
  if (files !== undefined) {
    fields.files = Object.fromEntries(Object.entries(pairs(files, 'files')).map(([path, data]) => [path, bytes(data, `files: ${path}`)]));
  }
  if (stdin !== undefined) fields.stdin = bytes(stdin, 'stdin');
  if (display) fields.display = true;
  if (display && options.onResult) fields.functions = { names: [SHOWN] };
  if (profile) fields.profile = profile;
  if (environment) fields.environment = environment;
  if (egress) fields.egress = egress;
  return fields;
}

const PROGRAM = ['cwd', 'env', 'stdin', 'timeout', 'output', 'overflow', 'title', 'cpuTime', 'clean', 'warm', 'endsChildren'];

/** What process_run and process_start have in common. `what` is an array, or a line for the shell. */
function programFields(what, { cwd, env, stdin, timeout, output, overflow, title, cpuTime, clean, warm, endsChildren }) {
  const fields = typeof what === 'string' ? { shell: what } : { argv: texts(what, 'argv') };
  Object.assign(fields, limits({ timeout, output, overflow }));
  if (cwd !== undefined) fields.cwd = cwd;
  if (title !== undefined) fields.title = title;
  if (cpuTime !== undefined && cpuTime !== null) fields.cpu_time = cpuTime;
  if (clean) fields.clean = true;
  if (warm) fields.warm = true;
  if (endsChildren) fields.ends_children = true;
  if (env !== undefined) fields.env = pairs(env, 'env');
  if (stdin !== undefined && stdin !== null) fields.stdin = bytes(stdin, 'stdin');
  return fields;
}

const CALL = ['deadline', 'signal', 'idempotent'];

/** What an option says of the call itself, and not of the job. */
function callOptions({ deadline, signal, idempotent }) {
  return { deadline: deadline === undefined ? null : deadline, signal, idempotent: Boolean(idempotent) };
}

module.exports = { size, bytes, texts, pairs, known, limits, executeFields, programFields, callOptions, LIMITING, TURN, EXECUTE, PROGRAM, CALL };
