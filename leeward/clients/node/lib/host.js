'use strict';
/*
 * Folders of the host. The daemon takes them as descriptors, which Node can't send. So this program opens them, with its
 * own rights, and hands them to a child: `leeward sandbox new --json`, which sends them and opens the sandbox. The child
 * gets its options on standard input, since other users can read its arguments, and ends when the sandbox is open. The
 * sandbox is the user's, so it is named here by its id from then on. With `--stay` the child lives as long as this program,
 * or as the sandbox (Companion), and keeps what no request brings: the hold on the sandbox, a folder's state, its guard.
 */

const fs = require('node:fs');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { getSystemErrorMap } = require('node:util');
const errors = require('./errors.js');
const { isHost } = require('./remote.js');

/** Bytes that the child may write. */
const MOST_SAID = 64 << 20;
/** Seconds that opening a sandbox may take: it waits for a free worker, and perhaps for a daemon that it starts. */
const OPEN_MS = 150000;
const DIFF_MS = 90000;
const CLOSE_MS = 10000;
/** What pip may take, and some more. */
const INSTALL_MS = 660000;
const O_PATH = 0o10000000, LINUX = process.platform === 'linux';

/** The program: `named`, else LEEWARD_COMMAND, else `leeward` in PATH. Several words are a program and its arguments. */
function commandOf(named) {
  if (Array.isArray(named)) return named.map(String);
  return [String(named || process.env.LEEWARD_COMMAND || 'leeward')];
}

function missing(program, error) {
  const why = error.code === 'ENOENT' ? 'it is missing: name it by the option `command` or by LEEWARD_COMMAND' : error.message;
  return new errors.LeewardError(`the command ${JSON.stringify(program)} can't be run: ${why}`);
}

/** Run `leeward ...`; resolves to its exit status and output. Ends the child where it takes too long. */
function run(command, args, { input = '', descriptors = [], milliseconds, token }) {
  return new Promise((resolve, reject) => {
    const [program, ...first] = command;
    const child = spawn(program, [...first, ...args], { stdio: ['pipe', 'pipe', 'pipe', ...descriptors], env: environment(token) });
    const said = { stdout: [], stderr: [] };
    let size = 0;
    const timer = setTimeout(() => child.kill('SIGKILL'), milliseconds);
    for (const name of ['stdout', 'stderr']) {
      child[name].on('data', (data) => {
        size += data.length;
        if (size > MOST_SAID) child.kill('SIGKILL'); else said[name].push(data);
      });
    }
    child.stdin.on('error', () => {}); // it has ended, and says why
    child.once('error', (error) => {
      clearTimeout(timer);
      reject(missing(program, error));
    });
    child.once('close', (status, signal) => {
      clearTimeout(timer);
      resolve({ status, signal, stdout: Buffer.concat(said.stdout), stderr: Buffer.concat(said.stderr).toString('utf8').trim() });
    });
    child.stdin.end(input);
  });
}

/** The error that `leeward ... --json` has told, by its name in Python. */
function toldError(told) {
  const kind = errors[told.type];
  const message = String(told.message);
  let error;
  if (kind === errors.WorkdirIoError) return Object.assign(new kind((getSystemErrorMap().get(-told.errno) || ['EIO'])[0], '', ''), { message });
  if (kind && kind.prototype instanceof errors.Refused) error = new kind(message, told);
  else if (kind && kind.prototype instanceof errors.DaemonError) error = new kind(message);
  else return new errors.LeewardError(`${told.type}: ${message}`);
  error.mayHaveRun = told.may_have_run === true;
  return error;
}

/** Folders and files of the host, opened; each is `{fd, target, writable, overlay, compare, copy}`. */
function openAll(mounts) {
  const found = [];
  try {
    for (const { source, target, writable = false, overlay = false, compare = false, copy = false } of mounts) {
      let fd;
      try {
        fd = fs.openSync(source, LINUX ? O_PATH : 'r');
      } catch (error) {
        throw new errors.RequestRejected(`mount ${JSON.stringify(String(source))}: ${error.code || error.message}`);
      }
      found.push({ fd, source: path.resolve(String(source)), target, writable: Boolean(writable), overlay: Boolean(overlay), compare: Boolean(compare), copy: Boolean(copy) });
    }
    return found;
  } catch (error) {
    for (const { fd } of found) fs.closeSync(fd);
    throw error;
  }
}

/** The child has them as descriptors from 3 on; on other systems than Linux, where all are copied, it opens them itself. */
const mountRows = (folders) => folders.map(({ fd, source, ...more }, at) => ({ source: LINUX ? `/proc/self/fd/${3 + at}` : source, ...more }));

const socketOption = (socket) => (socket ? ['--socket', isHost(socket) ? String(socket) : path.resolve(String(socket))] : []);
/** The variables of a child: other users can read arguments. */
const environment = (token) => (token === undefined ? process.env : { ...process.env, LEEWARD_TOKEN: token });

/** What a command with --json has told by the name `field`, which `is` accepts; `what` it hasn't done else. */
async function asked(command, args, options, field, is, what) {
  const done = await run(commandOf(command), args, options);
  let told = null;
  try {
    told = JSON.parse(done.stdout.toString('utf8'));
  } catch {
    // it has told nothing
  }
  if (told && told.error) throw toldError(told.error);
  if (done.status === 0 && told && is(told[field])) return told[field];
  throw new errors.LeewardError(`${what}: ${done.stderr || done.signal || `status ${done.status}`}`);
}

/**
 * Open a sandbox with folders of the host; resolves to its id.
 *
 * `fields` are options of Python's `Sandbox`, by its names.
 */
async function openSandbox({ command, socket, token, fields, mounts }) {
  const folders = openAll(mounts);
  try {
    const input = JSON.stringify({ ...fields, mounts: mountRows(folders) });
    const options = { input, descriptors: folders.map(({ fd }) => fd), milliseconds: OPEN_MS, token };
    const isId = (told) => typeof told === 'string' && /^[a-z2-7]{26}$/.test(told);
    return await asked(command, ['sandbox', 'new', '--json', ...socketOption(socket)], options, 'sandbox', isId, 'no sandbox could be opened');
  } finally {
    for (const { fd } of folders) fs.closeSync(fd);
  }
}

/** The name of an environment of pip's `packages`, which is made where the daemon has none, by `leeward env ensure`. */
function ensure({ command, socket, token, packages }) {
  return asked(command, ['env', 'ensure', '--json', ...socketOption(socket), '--', ...packages], { milliseconds: INSTALL_MS, token },
    'environment', (told) => typeof told === 'string', 'no environment of these packages could be had');
}

/** What a sandbox has changed in its copy of a folder, sorted by path, by `leeward diff --json`. */
async function diff({ command, socket, token, id, target }) {
  const args = ['diff', '--json', ...socketOption(socket), ...(target ? ['--target', target] : []), id];
  const done = await run(commandOf(command), args, { milliseconds: DIFF_MS, token });
  if (done.status !== 0) throw new errors.LeewardError(`the changes can't be told: ${done.stderr || done.signal}`);
  return done.stdout.toString('utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
}

/** A server in a sandbox on a port of 127.0.0.1: `leeward sandbox port`, until `close`, or this program's or the sandbox's end. */
class Published {
  /** Resolves when it listens. */
  static async open({ command, socket, token, id, port, hostPort }) {
    const [program, ...first] = commandOf(command);
    const args = ['sandbox', 'port', '--until-eof', '--on', String(hostPort), ...socketOption(socket), id, String(port)];
    const child = spawn(program, [...first, ...args], { stdio: 'pipe', env: environment(token) });
    let said = '';
    let complaint = '';
    child.stdin.on('error', () => {}); // it has ended, and says why
    child.stderr.on('data', (data) => { complaint = (complaint + data).slice(-4096); });
    const over = new Promise((resolve) => {
      child.once('error', (error) => resolve(missing(program, error)));
      child.once('close', (status) => resolve(status === 0 ? null : new errors.LeewardError(`the port is closed: ${complaint.trim() || `status ${status}`}`)));
    });
    const listens = new Promise((resolve) => {
      child.stdout.on('data', (data) => { said += data; if (said.includes('\n')) resolve(); });
    });
    await Promise.race([listens, over]);
    const found = /^127\.0\.0\.1:(\d+)\n/.exec(said);
    if (!found) throw (await over) || new errors.LeewardError('the port is closed: the command has ended');
    for (const one of [child, child.stdin, child.stdout, child.stderr]) one.unref();
    return Object.assign(new Published(), { port: Number(found[1]), child, over });
  }

  /** Close the port, and the connections. */
  async close() {
    this.child.ref();
    this.child.stdin.end();
    const timer = setTimeout(() => this.child.kill('SIGKILL'), CLOSE_MS);
    await this.over;
    clearTimeout(timer);
  }
}

/** A `leeward sandbox new --json --stay`, from its first request until `close` or this program's end. */
class Companion {
  constructor({ command, socket, token, fields, mounts }) {
    Object.assign(this, { command: commandOf(command), socket, token, fields, mounts, child: null, said: '', complaint: '', waiting: [], over: null, opened: false });
  }

  start() {
    const folders = openAll(this.mounts);
    const [program, ...first] = this.command;
    try {
      const stdio = ['pipe', 'pipe', 'pipe', ...folders.map(({ fd }) => fd)];
      this.child = spawn(program, [...first, 'sandbox', 'new', '--json', '--stay', ...socketOption(this.socket)], { stdio, env: environment(this.token) });
    } finally {
      for (const { fd } of folders) fs.closeSync(fd);
    }
    const { child } = this;
    if (!child.stdin) {
      child.once('error', () => {}); // this is what it says
      this.child = null;
      throw new errors.LeewardError(`the command ${JSON.stringify(program)} can't be run: no descriptor is left`);
    }
    this.ended = new Promise((resolve) => {
      child.once('error', (error) => { this.end(missing(program, error)); resolve(); });
      child.once('exit', resolve);
    });
    child.once('close', () => this.end(new errors.LeewardError(`the command ${JSON.stringify(program)} has ended: ${this.complaint.trim() || 'it says nothing'}`)));
    child.stdin.on('error', () => {}); // it has ended, and says why
    child.stderr.on('data', (data) => { this.complaint = (this.complaint + data).slice(-4096); });
    child.stdout.setEncoding('utf8');
    child.stdout.on('data', (data) => this.heard(data));
    this.ask({ ...this.fields, mounts: mountRows(folders) }).catch((error) => this.end(error)); // the options are wrong
  }

  heard(data) {
    this.said += data;
    if (this.said.length > MOST_SAID) this.child.kill('SIGKILL');
    if (!data.includes('\n')) return;
    const lines = this.said.split('\n');
    this.said = lines.pop();
    for (const line of lines) {
      let told = null;
      try {
        told = JSON.parse(line);
      } catch {
        // it is no such command
      }
      const waiting = this.waiting.shift();
      if (!waiting || told === null || typeof told !== 'object') {
        if (waiting) this.waiting.unshift(waiting);
        this.end(new errors.LeewardError(`no sandbox could be opened: the command says ${JSON.stringify(line.slice(0, 80))}`));
        return;
      }
      clearTimeout(waiting.timer);
      if (told.error) waiting.reject(toldError(told.error)); else waiting.resolve(told);
    }
    this.rest();
  }

  /** It keeps this program alive only while a request waits. */
  rest() {
    const how = this.waiting.length ? 'ref' : 'unref';
    for (const one of [this.child, this.child.stdin, this.child.stdout, this.child.stderr]) one[how]();
  }

  /** What it tells to a request, `{do: ...}`; they are answered in order. */
  ask(request) {
    if (!this.child && !this.over) {
      try {
        this.start();
      } catch (error) {
        return Promise.reject(error);
      }
    }
    if (this.over) return Promise.reject(this.over);
    const timer = setTimeout(() => this.child.kill('SIGKILL'), INSTALL_MS);
    const answer = new Promise((resolve, reject) => { this.waiting.push({ resolve, reject, timer }); });
    this.child.stdin.write(`${JSON.stringify(request)}\n`);
    this.rest();
    return answer;
  }

  end(error) {
    this.over = this.over || error;
    this.child.stdin.end();
    for (const { reject, timer } of this.waiting.splice(0)) {
      clearTimeout(timer);
      reject(this.over);
    }
  }

  /** End it, and with it a sandbox that it holds; resolves when it has ended. */
  async close() {
    const { child } = this;
    this.over = this.over || new errors.LeewardError('the sandbox was closed');
    if (!child) return;
    child.stdin.end();
    child.ref();
    const timer = setTimeout(() => child.kill('SIGKILL'), CLOSE_MS);
    await this.ended;
    clearTimeout(timer);
  }
}

module.exports = { openSandbox, ensure, diff, Companion, Published };
