'use strict';
/* A daemon on another machine: its URL, and the bytes of a WebSocket, whose server is played here. */

const test = require('node:test');
const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const path = require('node:path');
const { connect, hostUrl, isHost } = require('../../leeward/clients/node/lib/remote.js');
const { socketPath } = require('../../leeward/clients/node/lib/socket.js');
const { DaemonAway, RequestRejected } = require('../../leeward/clients/node/lib/errors.js');
const { folder, thrown } = require('./support.js');

/** A server that upgrades each connection and gives it to `serve(socket, request)`; its URL. */
async function upgrading(t, serve, accept = (key) => crypto.createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')) {
  const open = new Set();
  const server = http.createServer((request, response) => { response.writeHead(404); response.end(); });
  server.on('connection', (socket) => { open.add(socket); socket.on('error', () => {}); });
  server.on('upgrade', (request, socket) => {
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept(request.headers['sec-websocket-key'])}\r\n\r\n`);
    serve(socket, request);
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  t.after(() => { for (const one of open) one.destroy(); server.close(); });
  return `http://127.0.0.1:${server.address().port}`;
}

/** A frame of a server's. */
function frame(kind, data, { fin = true } = {}) {
  const length = data.length > 65535 ? Buffer.alloc(9) : data.length > 125 ? Buffer.alloc(3) : Buffer.alloc(1);
  length[0] = length.length === 9 ? 127 : length.length === 3 ? 126 : data.length;
  if (length.length === 3) length.writeUInt16BE(data.length, 1);
  if (length.length === 9) length.writeBigUInt64BE(BigInt(data.length), 1);
  return Buffer.concat([Buffer.from([(fin ? 128 : 0) | kind]), length, Buffer.from(data)]);
}

/** What arrives until the end. */
async function all(stream) {
  const found = [];
  for await (const piece of stream) found.push(piece);
  return Buffer.concat(found);
}

test('URLs of hosts are known from paths', () => {
  assert.deepEqual(['https://a', 'http://a', 'ssh://a', '/run/x.sock', 'x://a', undefined].map(isHost), [true, true, true, false, false, false]);
});

test('hosts are https, http of this machine, or ssh', () => {
  for (const url of ['https://lw.example', 'https://lw.example:1/', 'http://localhost:1', 'http://127.0.0.1', 'http://[::1]:1', 'ssh://me@lw.example:22/run/x.sock']) hostUrl(url);
  for (const url of ['https://', 'https://a/b', 'https://a?b', 'https://me@a', 'ssh://me:x@a', 'ssh://-oProxyCommand=x', 'http://far.example', 'nothing']) {
    assert.throws(() => hostUrl(url), RequestRejected, url);
  }
});

test('what is named wins, and then LEEWARD_HOST', () => {
  const env = { LEEWARD_HOST: 'https://lw.example', LEEWARD_SOCKET: '/run/x.sock' };
  assert.equal(socketPath('/run/own.sock', env), '/run/own.sock');
  assert.equal(socketPath('ssh://other', env), 'ssh://other');
  assert.equal(socketPath(undefined, env), 'https://lw.example');
  assert.equal(socketPath(undefined, { LEEWARD_SOCKET: '/run/x.sock' }), '/run/x.sock');
  assert.throws(() => socketPath(undefined, { LEEWARD_HOST: 'http://far.example' }), RequestRejected);
});

test('the token is a head, and only if there is one', async (t) => {
  const heads = [];
  const url = await upgrading(t, (socket, request) => { heads.push([request.url, request.headers.authorization]); socket.end(); });
  await all(await connect(url, 'secret'));
  await all(await connect(url, ''));
  assert.deepEqual(heads, [['/leeward', 'Bearer secret'], ['/leeward', undefined]]);
});

test('messages of all lengths are one stream, however they are cut', async (t) => {
  const sent = crypto.randomBytes(200_000);
  const frames = Buffer.concat([
    frame(2, sent.subarray(0, 100)), frame(9, Buffer.from('ping')), frame(2, sent.subarray(100, 1100), { fin: false }), frame(10, Buffer.alloc(0)),
    frame(0, sent.subarray(1100, 2000)), frame(2, Buffer.alloc(0)), frame(2, sent.subarray(2000)), frame(8, Buffer.alloc(0)),
  ]);
  const url = await upgrading(t, async (socket) => {
    for (let at = 0; at < frames.length; at += at < 300 || frames.length - at < 300 ? 1 : 7001) {
      const step = at < 300 || frames.length - at < 300 ? 1 : 7001;
      socket.write(frames.subarray(at, at + step));
      if (step === 1) await new Promise(setImmediate);
    }
  });
  assert.ok((await all(await connect(url, ''))).equals(sent));
});

test('what is written is masked, and whole', async (t) => {
  const sent = crypto.randomBytes(3_000_000);
  let done;
  const received = new Promise((resolve) => { done = resolve; });
  const url = await upgrading(t, (socket) => {
    let held = Buffer.alloc(0);
    const found = [];
    socket.on('data', (data) => {
      held = Buffer.concat([held, data]);
      for (;;) {
        if (held.length < 14) return;
        const short = held[1] & 127;
        const head = short === 127 ? 10 : short === 126 ? 4 : 2;
        const length = short === 127 ? Number(held.readBigUInt64BE(2)) : short === 126 ? held.readUInt16BE(2) : short;
        if (held.length < head + 4 + length) return;
        assert.deepEqual([held[0], held[1] & 128], [130, 128]);
        const mask = held.subarray(head, head + 4);
        found.push(Buffer.from(held.subarray(head + 4, head + 4 + length)).map((byte, at) => byte ^ mask[at & 3]));
        held = held.subarray(head + 4 + length);
        if (Buffer.concat(found).length === sent.length) done(Buffer.concat(found));
      }
    });
  });
  const stream = await connect(url, '');
  t.after(() => stream.destroy());
  stream.write(sent);
  assert.ok((await received).equals(sent));
});

test('frames that a server may not send end the stream', async (t) => {
  const wrong = [
    frame(1, Buffer.from('text')), frame(3, Buffer.from('x')), Buffer.from([0xC2, 1, 0]), Buffer.from([0x82, 0x81, 0, 0, 0, 0, 1]),
    frame(9, Buffer.alloc(200)), frame(9, Buffer.from('x'), { fin: false }),
  ];
  for (const bytes of wrong) {
    const url = await upgrading(t, (socket) => socket.write(bytes));
    const error = await thrown(all(await connect(url, '')));
    assert.equal(error.code, 'EPROTO', bytes.toString('hex').slice(0, 20));
  }
});

test('a server that is none is told', async (t) => {
  const wrong = await upgrading(t, () => {}, () => 'no');
  const error = await thrown(connect(wrong, ''));
  assert.ok(error instanceof DaemonAway);
  assert.match(error.message, /no daemon answers at http:.*speaks no WebSocket/);
  assert.equal(error.mayHaveRun, false);
});

test('a server that never ends its answer is given up', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const server = net.createServer((socket) => { socket.on('error', () => {}); socket.once('data', () => socket.write('HTTP/1.1 103 Wait\r\n\r\nHTTP/1.1 101 Wait\r\n')); });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  t.after(() => server.close()); // which ends only when the connection has ended
  const opening = thrown(connect(`http://127.0.0.1:${server.address().port}`, ''));
  const [socket] = await once(server, 'connection');
  for (let passed = 0; passed < 15; passed += 1) {
    t.mock.timers.tick(1000);
    socket.write(`a${passed}: b\r\n`);
  }
  assert.match((await opening).message, /it answers nothing/);
});

test('a status is told by what it means', async (t) => {
  for (const [status, says] of [[401, /another token/], [404, /leeward serve leeward/], [429, /as many connections/], [500, /status 500/]]) {
    const server = http.createServer((request, response) => { response.writeHead(status); response.end(); });
    server.on('upgrade', (request, socket) => { socket.end(`HTTP/1.1 ${status} No\r\nContent-Length: 0\r\n\r\n`); });
    await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
    t.after(() => server.close());
    assert.match((await thrown(connect(`http://127.0.0.1:${server.address().port}`, ''))).message, says);
  }
});

test('of pings whose answers nobody reads only the last is answered', async (t) => {
  const count = 60_000;
  const pings = Buffer.concat([Buffer.alloc(127 * count, frame(9, 'a'.repeat(125))), frame(9, 'b'.repeat(125)), frame(2, 'x')]);
  let far;
  const url = await upgrading(t, (socket) => {
    far = socket;
    socket.pause();
    socket.write(pings);
  });
  const stream = await connect(url, '');
  t.after(() => stream.destroy());
  await once(stream, 'data');
  assert.ok(stream.socket.writableLength < 1 << 20, `${stream.socket.writableLength} bytes of answers wait`);

  let [size, held] = [0, Buffer.alloc(0)];
  while (held.length < 131 || (held[2] ^ held[130]) !== 98) { // the last byte of the last whole answer isn't yet b
    far.resume();
    const [data] = await once(far, 'data');
    far.pause();
    size += data.length;
    held = Buffer.concat([held, data]).subarray(-131 - (size % 131));
  }
  assert.ok(size < 131 * count);
});

test('many small frames cost no copies of those behind them', async (t) => {
  const frames = Buffer.concat([Buffer.alloc(1 << 18, frame(2, '')), frame(2, 'x')]);
  const url = await upgrading(t, (socket) => socket.write(frames));
  const stream = await connect(url, '');
  const { concat } = Buffer;
  let copied = 0;
  t.mock.method(Buffer, 'concat', (pieces, ...more) => {
    const made = concat(pieces, ...more);
    copied += made.length;
    return made;
  });
  await once(stream, 'data');
  assert.ok(copied <= 2 * frames.length, `${copied} bytes were copied`);
});

test('a reader that is slow slows the sender', async (t) => {
  let held = 0;
  const url = await upgrading(t, (socket) => {
    const piece = frame(2, Buffer.alloc(60_000));
    const more = () => {
      for (let room = true; room && held < 4000; held += 1) room = socket.write(piece);
      if (held < 4000) socket.once('drain', more); else socket.end();
    };
    more();
  });
  const stream = await connect(url, '');
  const first = await new Promise((resolve) => { stream.once('readable', () => resolve(stream.read(10))); });
  assert.equal(first.length, 10);
  assert.ok(held < 4000, `${held} were sent to nobody`);
  let size = first.length;
  for await (const data of stream) size += data.length;
  assert.equal(size, 4000 * 60_000);
});

test('what the other end of ssh prints is no path that ssh would change', async (t) => {
  const here = folder(t);
  t.after(() => { delete process.env.LEEWARD_SSH; });
  process.env.LEEWARD_SSH = path.join(here, 'ssh');
  for (const [number, said] of ['/run/${LEEWARD_TOKEN}', '/run/%u', '/run/a:b', `/${'a'.repeat(100000)}`].entries()) {
    fs.writeFileSync(path.join(here, 'said'), `${said}\n`);
    fs.writeFileSync(process.env.LEEWARD_SSH, `#!/bin/sh\ncase "$*" in *'-O forward'*) : > ${here}/forwards;; *) cat ${here}/said; exec cat > /dev/null;; esac\n`, { mode: 0o755 });
    const error = await thrown(connect(`ssh://${number}.example`));
    assert.match(error.message, /no path of a socket/);
  }
  assert.equal(fs.existsSync(path.join(here, 'forwards')), false);
});
