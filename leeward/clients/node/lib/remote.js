'use strict';
/*
 * A daemon on another machine: a stream to it by WebSocket over TLS (its `leeward serve leeward`), or by ssh, which forwards
 * its socket. As leeward/client/over_websocket.py and over_ssh.py have it. Node's WebSocket takes no headers, and is young.
 */

const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { Duplex } = require('node:stream');
const { DaemonAway, RequestRejected } = require('./errors.js');

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
/** Bytes of one message; milliseconds until it is open. */
const MOST_MESSAGE = 1 << 20;
const OPEN_MS = 15000;
/** Milliseconds until ssh has forwarded the socket, in which it may ask for a password. */
const SSH_MS = 120000;
/** Characters of the line in which the other end says a path. */
const MOST_LINE = 4096;
const STATUSES = {
  401: 'it wants another token: the option token, or LEEWARD_TOKEN', 404: 'it serves no `leeward serve leeward`',
  421: "it doesn't have this name: `leeward serve --name`", 429: 'the token has as many connections as it may',
};
const CONTINUATION = 0;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

const isHost = (named) => /^(https?|ssh):\/\//.test(String(named));

function away(where, why, mayHaveRun = false) {
  return new DaemonAway(`no daemon answers at ${where} (${why})`, mayHaveRun);
}

/** The URL of a host; RequestRejected if it is none, or would show the token. */
function hostUrl(where) {
  let url = null;
  try {
    url = new URL(where);
  } catch {
    // it is none
  }
  const plain = url && !url.search && !url.hash && !url.password && url.hostname && !url.hostname.startsWith('-');
  if (!plain || (url.protocol !== 'ssh:' && (url.username || !['', '/'].includes(url.pathname)))) {
    throw new RequestRejected('a host is https://NAME or ssh://USER@NAME/SOCKET, where each part but NAME may be missing');
  }
  if (url.protocol === 'http:' && !['localhost', '127.0.0.1', '[::1]'].includes(url.hostname)) {
    throw new RequestRejected('http beyond this machine shows the token to everybody on the way: https');
  }
  return url;
}

/** A connected stream; rejects with DaemonAway. */
async function connect(where, token = process.env.LEEWARD_TOKEN || '') {
  const url = hostUrl(where);
  return url.protocol === 'ssh:' ? overSsh(where, url) : overWebSocket(where, url, token);
}

// --- WebSocket ------------------------------------------------------------------

function overWebSocket(where, url, token) {
  return new Promise((resolve, reject) => {
    const key = crypto.randomBytes(16).toString('base64');
    const asked = (url.protocol === 'https:' ? https : http).request(new URL('/leeward', url), {
      headers: { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': key, 'Sec-WebSocket-Version': '13', ...(token ? { Authorization: `Bearer ${token}` } : {}) },
    });
    const refuse = (why) => { clearTimeout(timer); asked.destroy(); reject(away(where, why)); };
    const timer = setTimeout(() => refuse('it answers nothing'), OPEN_MS); // for all: a head may come a byte at a time
    asked.once('error', (error) => refuse(error.code || error.message));
    asked.once('response', ({ statusCode }) => refuse(STATUSES[statusCode] || `it answers with status ${statusCode}`));
    asked.once('upgrade', (response, socket, head) => {
      const wanted = crypto.createHash('sha1').update(key + GUID).digest('base64');
      if (response.headers['sec-websocket-accept'] !== wanted) {
        socket.destroy();
        refuse('it speaks no WebSocket');
        return;
      }
      clearTimeout(timer);
      socket.setTimeout(0); // the agent's, which is for connections without a request
      resolve(new MessageStream(socket, head));
    });
    asked.end();
  });
}

/** The bytes of a WebSocket's messages as a stream. Nothing is read until its user reads, who has listeners then. */
class MessageStream extends Duplex {
  constructor(socket, head) {
    super({ allowHalfOpen: false });
    this.socket = socket;
    this.held = Buffer.alloc(0); // of a frame's head, or of a ping's payload
    this.left = 0; // bytes of a frame that are this stream's
    this.owed = null; // the payload of the last ping, until the other end reads
    this.over = false;
    this.on('error', () => {}); // of a server that breaks the protocol: it ends this stream, and no program without a listener
    socket.pause();
    if (head.length) socket.unshift(head);
    socket.on('data', (data) => { if (!this.received(data)) socket.pause(); });
    socket.on('drain', () => this.pong());
    socket.on('error', (error) => this.destroy(error));
    socket.on('close', () => this.finish());
  }

  /** There is nothing more to read but what has come. */
  finish() {
    if (!this.over) this.push(null);
    this.over = true;
  }

  /** Take bytes; false if the reader is slow. */
  received(data) {
    let room = true;
    let rest = this.held.length ? Buffer.concat([this.held, data]) : data;
    this.held = Buffer.alloc(0);
    while (rest.length && !this.over) {
      let used = Math.min(this.left, rest.length);
      if (used) {
        this.left -= used;
        room = this.push(rest.subarray(0, used));
      } else {
        used = this.frame(rest);
        if (!used) this.held = Buffer.from(rest);
      }
      rest = rest.subarray(used || rest.length);
    }
    return room;
  }

  /** The bytes of `held` that are a frame's head, or a whole frame of the protocol's own; 0 if there is more to come. */
  frame(held) {
    if (held.length < 2) return 0;
    const kind = held[0] & 15;
    const short = held[1] & 127;
    const size = 2 + (short < 126 ? 0 : short === 126 ? 2 : 8);
    if (held.length < size) return 0;
    const length = short < 126 ? short : short === 126 ? held.readUInt16BE(2) : Number(held.readBigUInt64BE(2));
    if (held[0] & 112 || held[1] & 128 || (kind > BINARY && (length > 125 || held[0] < 128))) return this.broken(held.length);
    if (kind === BINARY || kind === CONTINUATION) {
      this.left = length;
      return size;
    }
    if (held.length < size + length) return 0;
    if (kind === PING) this.pong(Buffer.from(held.subarray(size, size + length)));
    else if (kind === CLOSE) this.finish();
    else if (kind !== PONG) return this.broken(held.length);
    return size + length;
  }

  broken(all) {
    this.over = true;
    this.destroy(Object.assign(new Error('it breaks the protocol of WebSocket'), { code: 'EPROTO' }));
    return all;
  }

  /** Answer the last ping, when the other end reads: else the answers to many would fill the memory (RFC 6455, 5.5.3). */
  pong(asked = this.owed) {
    this.owed = asked;
    if (!asked || this.socket.writableNeedDrain) return;
    this.owed = null;
    this.send(PONG, asked);
  }

  send(kind, data, done) {
    const long = data.length > 65535 ? 8 : data.length > 125 ? 2 : 0;
    const frame = Buffer.allocUnsafe(6 + long + data.length);
    frame[0] = 128 | kind;
    frame[1] = 128 | (long === 8 ? 127 : long === 2 ? 126 : data.length);
    if (long === 2) frame.writeUInt16BE(data.length, 2);
    if (long === 8) frame.writeBigUInt64BE(BigInt(data.length), 2);
    const mask = crypto.randomBytes(4);
    mask.copy(frame, 2 + long);
    for (let at = 0; at < data.length; at += 1) frame[6 + long + at] = data[at] ^ mask[at & 3];
    return this.socket.write(frame, done);
  }

  _read() { this.socket.resume(); }

  _write(data, encoding, done) {
    for (let at = 0; at < data.length; at += MOST_MESSAGE) {
      const piece = data.subarray(at, at + MOST_MESSAGE);
      this.send(BINARY, piece, at + piece.length === data.length ? done : undefined);
    }
    if (!data.length) done();
  }

  _final(done) {
    if (this.socket.destroyed) done(); else this.send(CLOSE, Buffer.alloc(0), () => done());
  }

  _destroy(error, done) {
    this.socket.destroy();
    done(error);
  }

  ref() { this.socket.ref(); }

  unref() { this.socket.unref(); }
}

// --- ssh ------------------------------------------------------------------------

/** Prints the path of the socket that leeward's clients on that machine would take, and waits; as over_ssh.py has it. */
const WHERE = 's=$LEEWARD_SOCKET; if [ -z "$s" ]; then u=$(id -u); if [ "$u" = 0 ]; then s=/run/leeward/leeward.sock; else '
  + 'd=${XDG_RUNTIME_DIR:-/run/user/$u}; [ -w "$d" ] && s=$d/leeward/leeward.sock || { d=/tmp/leeward-$u; '
  + 's=$d/leeward.sock; [ -O "$d" ] && [ ! -L "$d" ] || s=/run/leeward/leeward.sock; }; '
  + '[ -S "$s" ] || [ ! -S /run/leeward/leeward.sock ] || s=/run/leeward/leeward.sock; fi; fi; echo "$s"; exec cat >/dev/null';

const forwarded = new Map(); // by host: a promise of {child, near}

async function overSsh(where, url) {
  let known = forwarded.get(where);
  if (!known) {
    known = forward(where, url);
    forwarded.set(where, known);
    const forget = () => { if (forwarded.get(where) === known) forwarded.delete(where); };
    known.then(({ child }) => child.once('close', forget), forget);
  }
  const { near } = await known;
  return new Promise((resolve, reject) => {
    const socket = net.connect({ path: near });
    socket.once('error', (error) => reject(away(where, error.code || error.message)));
    socket.once('connect', () => { socket.removeAllListeners(); resolve(socket); });
  });
}

async function forward(where, url) {
  const [program, ...first] = (process.env.LEEWARD_SSH || 'ssh').split(' ').filter(Boolean);
  const name = url.hostname.replace(/^\[(.*)\]$/, '$1');
  const there = [...(url.port ? ['-p', url.port] : []), '--', url.username ? `${decodeURIComponent(url.username)}@${name}` : name];
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'leeward-ssh-'));
  const remove = () => fs.rmSync(folder, { recursive: true, force: true });
  const [control, near] = [path.join(folder, 'c'), path.join(folder, 's')];
  const child = spawn(program, [...first, '-T', '-M', '-S', control, '-o', 'ControlPersist=no', ...there, `exec sh -c '${WHERE}'`], { stdio: ['pipe', 'pipe', 'inherit'] });
  process.once('exit', remove);
  child.once('close', () => { process.removeListener('exit', remove); remove(); });
  child.stdin.on('error', () => {}); // it has ended, and says why
  const timer = setTimeout(() => child.kill('SIGKILL'), SSH_MS);
  try {
    const said = await new Promise((resolve, reject) => {
      let line = '';
      child.stdout.on('data', (data) => { // for as long as it runs, whatever comes
        if (line.length < MOST_LINE) line += data;
        if (line.includes('\n') || line.length >= MOST_LINE) resolve(line.split('\n')[0]);
      });
      child.once('error', (error) => reject(away(where, `${program}: ${error.code || error.message}`)));
      child.once('close', () => reject(away(where, 'ssh has ended, and says why')));
    });
    const far = ['', '/'].includes(url.pathname) ? said : decodeURIComponent(url.pathname);
    // ssh would put this process's variables into a path, which the other end may have said.
    if (!/^\/[^:$%]*$/.test(far) || far.length >= MOST_LINE) throw away(where, 'no path of a socket that ssh can forward');
    const status = await new Promise((resolve) => {
      const asked = spawn(program, [...first, '-S', control, '-O', 'forward', '-L', `${near}:${far}`, ...there], { stdio: ['ignore', 'ignore', 'inherit'] });
      asked.once('error', () => resolve(-1));
      asked.once('close', resolve);
    });
    if (status !== 0) throw away(where, 'ssh forwards no socket there, and says why');
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  } finally {
    clearTimeout(timer);
  }
  for (const one of [child, child.stdin, child.stdout]) one.unref();
  return { child, near };
}

module.exports = { isHost, hostUrl, connect, away };
