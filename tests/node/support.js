'use strict';
/* What the tests share: the daemon that test_node_client.py has started, and daemons that aren't one. */

const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { FrameReader, header } = require('../../leeward/clients/node/lib/frames.js');
const { decode, encode } = require('../../leeward/clients/node/lib/msgpack.js');

const socket = process.env.LEEWARD_TEST_SOCKET || '/nonexistent/leeward.sock'; // never the default one
const command = process.env.LEEWARD_TEST_COMMAND ? JSON.parse(process.env.LEEWARD_TEST_COMMAND) : undefined;

/** A folder that goes with the test. */
function folder(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'leeward-node-'));
  t.after(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Something that listens as a daemon does; `answer(message, send, connection)` is asked for each request. */
async function rogue(t, answer) {
  const where = path.join(folder(t), 'socket');
  const open = new Set();
  const server = net.createServer((connection) => {
    open.add(connection);
    connection.on('error', () => {});
    connection.on('close', () => open.delete(connection));
    const reader = new FrameReader();
    const send = (message) => { const body = encode(message); connection.write(Buffer.concat([header(body.length), body])); };
    connection.on('data', (data) => { for (const payload of reader.feed(data)) answer(decode(payload), send, connection); });
  });
  await new Promise((resolve) => { server.listen(where, resolve); });
  t.after(() => { for (const one of open) one.destroy(); server.close(); });
  return where;
}

/** A rogue that is one for `op` alone: keep_results and ping are answered as a daemon does. */
function rogueFor(t, op, answer) {
  return rogue(t, (message, send, connection) => {
    if (message.op === op) answer(message, send, connection);
    else send({ id: message.id, ok: message.op === 'ping' ? { version: '0', wire: 1, caps: { requests: 256 } } : {} });
  });
}

const PLAIN = {
  outcome: 'finished', exit_code: 0, limit: null, duration: 0.5, cpu_time: 0.25, memory_peak: 4096, denied: {}, truncated: false, degraded: [],
  error: null, stdout: Buffer.from('out\n'), stderr: Buffer.alloc(0),
};

/** The error that a promise is rejected with. */
async function thrown(promise) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`nothing was thrown, but this returned: ${String(value)}`);
}

/** Numbers that look random, the same in each run. */
function* numbers(seed) {
  let state = seed >>> 0;
  while (true) {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 12), 0x297a2d39);
    mixed ^= mixed >>> 15;
    yield mixed >>> 0;
  }
}

module.exports = { socket, command, folder, rogue, rogueFor, PLAIN, thrown, numbers };
