'use strict';
/* Which failed calls are sent again, and when. */

const test = require('node:test');
const assert = require('node:assert/strict');
const net = require('node:net');
const { Calls, Retry } = require('../../leeward/clients/node/lib/calls.js');
const { encode } = require('../../leeward/clients/node/lib/msgpack.js');
const { Client, Sandbox } = require('../../leeward/clients/node/index.js');
const errors = require('../../leeward/clients/node/lib/errors.js');
const { PLAIN, rogue, rogueFor, folder, thrown } = require('./support.js');
const path = require('node:path');

const PONG = { version: '0.1.0', wire: 1 };

const INFO = (sandbox) => ({
  sandbox, profile: 'python', environment: '', egress: '', image: '', metadata: {}, age: 1.5, idle: 1.5, unused: 1.5, left: 1.5, held: false, processes: 0, calls: 0,
  memory_limit: 1, memory_peak: 1, memory: 1, cpu_time: 0.5, oom_kills: 0, forks_refused: 0, denied: {}, asleep: false,
});
const busy = (after) => new errors.Busy('full', { retry_after: after });

test('busy is tried again with jitter, never before the time that the daemon names', () => {
  const least = new Retry({}, null, () => 0);
  const most = new Retry({}, null, () => 1);
  assert.deepEqual([least.pause(busy(2), 0), most.pause(busy(2), 0)], [2 + 0.01, 3 + 0.02]);
  assert.deepEqual([least.pause(busy(null), 1), most.pause(busy(null), 1)], [0.02, 0.04]);
  for (let n = 0; n < 10; n++) most.pause(busy(null), 1);
  assert.equal(most.pause(busy(null), 1), 0.5); // it doesn't grow without end
  assert.equal(most.pause(busy(null), 29.6), null); // 30 s in all
});

test('a deadline is the bound where there is one', () => {
  const retry = new Retry({}, 100, () => 0);
  assert.equal(retry.pause(busy(50), 60), null);
  assert.ok(retry.pause(busy(30), 60) > 30);
});

test('only what has not run is sent again', () => {
  const tried = (error, options) => new Retry(options, null, () => 0).pause(error, 0) !== null;
  assert.ok(tried(new errors.DaemonAway('x', false)));
  assert.ok(!tried(new errors.DaemonAway('x', true)));
  assert.ok(tried(new errors.DaemonAway('x', true), { idempotent: true }));
  assert.ok(tried(new errors.ShuttingDown('x')));
  for (const kind of ['QueueTimeout', 'RequestRejected', 'Cancelled', 'SandboxOver', 'SessionOver', 'ProcessOver', 'PoolFailed', 'Forbidden', 'VersionMismatch']) {
    assert.ok(!tried(new errors[kind]('x')), kind);
  }
  for (const kind of ['NoAnswer', 'BadReply']) assert.ok(!tried(new errors[kind]('x')), kind);
  assert.ok(!tried(busy(0), { retryBusy: false }) && !tried(busy(0), { retry: false }) && !tried(new errors.ShuttingDown('x'), { retry: false }));
});

test('lost connections are counted, and one attempt that may have run marks the last error', () => {
  const retry = new Retry({ idempotent: true }, null, () => 0);
  for (let n = 0; n < 3; n++) assert.equal(retry.pause(new errors.DaemonAway('x', n === 0), 0), 0);
  const last = new errors.DaemonAway('x', false);
  assert.equal(retry.pause(last, 0), null);
  assert.equal(last.mayHaveRun, true);
});

test('a busy daemon takes the job in the end', async (t) => {
  let asked = 0;
  const client = new Client({
    socket: await rogueFor(t, 'execute', ({ id }, send) => {
      asked += 1;
      send(asked < 4 ? { id, error: { kind: 'busy', message: 'full', retry_after: 0.01 } } : { id, ok: PLAIN });
    }),
  });
  assert.equal((await client.execute('1')).stdoutText, 'out\n');
  assert.equal(asked, 4);
  client.close();
});

test('without patience the refusal is thrown, with what the daemon said', async (t) => {
  const client = new Client({ retryBusy: false, socket: await rogueFor(t, 'execute', ({ id }, send) => send({ id, error: { kind: 'busy', message: 'full', retry_after: 7 } })) });
  const error = await thrown(client.execute('1'));
  assert.ok(error instanceof errors.Busy && error instanceof errors.Refused && error instanceof errors.DaemonError);
  assert.deepEqual([error.name, error.kind, error.message, error.retryAfter, error.mayHaveRun], ['Busy', 'busy', 'full', 7, false]);
  client.close();
});

test('a sandbox has the patience that it is told, and that of its client', async (t) => {
  let asked = 0;
  const socket = await rogueFor(t, 'sandbox_open', ({ id }, send) => {
    asked += 1;
    send({ id, error: { kind: 'busy', message: 'full', retry_after: 0.001 } });
  });
  const client = new Client({ socket, retryBusy: false });
  for (const options of [{ socket, retryBusy: false }, { client }, { client, held: true }]) {
    const box = new Sandbox(options);
    assert.equal((await thrown(box.id())).name, 'Busy');
    await box.close();
  }
  assert.equal(asked, 3);
  client.close();
});

test('sandboxes share the connections of a client, and leave them open', async (t) => {
  const seen = new Set();
  const socket = await rogueFor(t, 'sandbox_info', ({ id, sandbox }, send, connection) => {
    seen.add(connection);
    send({ id, ok: INFO(sandbox) });
  });
  const client = new Client({ socket });
  const boxes = await Promise.all(['a', 'b', 'c'].map((one) => Sandbox.attach(one.repeat(26), { client })));
  for (const box of boxes) assert.equal((await box.info()).sandbox, await box.detach());
  assert.equal(seen.size, 1);
  assert.equal((await client.ping()).wire, 1);
  const held = await Sandbox.attach('d'.repeat(26), { client, held: true });
  assert.equal(seen.size, 2);
  await held.detach();
  client.close();
});

test('each kind of refusal is its own class', async (t) => {
  const kinds = { queue_timeout: 'QueueTimeout', bad_request: 'RequestRejected', version: 'VersionMismatch', session_over: 'SessionOver', process_over: 'ProcessOver', snapshot_failed: 'SnapshotFailed', pool_failed: 'PoolFailed', forbidden: 'Forbidden', cancelled: 'Cancelled', sandbox_over: 'SandboxOver', 'of another time': 'Refused' };
  let kind;
  const client = new Client({ socket: await rogueFor(t, 'execute', ({ id }, send) => send({ id, error: { kind, message: 'no', reason: 'idle', when: 5.5, limit: 'time' } })) });
  for (const [word, name] of Object.entries(kinds)) {
    kind = word;
    const error = await thrown(client.execute('1'));
    assert.deepEqual([error.name, error.kind], [name, word]);
    assert.equal(error.mayHaveRun, ['cancelled', 'sandbox_over', 'of another time'].includes(word), word);
    if (word === 'sandbox_over') assert.deepEqual([error.reason, error.when, error.limit], ['idle', 5.5, 'time']);
  }
  client.close();
});

test('nobody there', async (t) => {
  const client = new Client({ socket: path.join(folder(t), 'none') });
  const error = await thrown(client.ping());
  assert.deepEqual([error.name, error.mayHaveRun], ['DaemonAway', false]);
});

test('a connection that ends in the middle may have run, and is made anew by the next call', async (t) => {
  let times = 0;
  const where = await rogueFor(t, 'execute', ({ id }, send, connection) => {
    times += 1;
    if (times === 1) connection.destroy(); else send({ id, ok: PLAIN });
  });
  const client = new Client({ socket: where });
  const error = await thrown(client.execute('1'));
  assert.deepEqual([error.name, error.mayHaveRun], ['DaemonAway', true]);
  assert.equal((await client.execute('1')).ok, true);
  times = 0;
  assert.equal((await client.execute('1', { idempotent: true })).ok, true);
  assert.equal(times, 2);
  client.close();
});

test('bytes that are no protocol end the connection with one BadReply', async (t) => {
  for (const bytes of ['HTTP/1.1 200 OK\r\n\r\n', Buffer.from('ffffffff', 'hex'), Buffer.from('00000001c1', 'hex'), Buffer.from('0000000107', 'hex')]) {
    const client = new Client({ socket: await rogueFor(t, 'execute', (_, send, connection) => { connection.write(bytes); }) });
    const all = await Promise.all([1, 2, 3].map(() => thrown(client.execute('1'))));
    assert.deepEqual(all.map((error) => error.name), Array(3).fill('BadReply'));
    client.close();
  }
});

test('a result that is none is a BadReply of that call alone', async (t) => {
  let ok;
  const client = new Client({ socket: await rogueFor(t, 'execute', ({ id }, send) => send({ id, ok })) });
  for (ok of [{}, { ...PLAIN, stdout: 'text' }, { ...PLAIN, outcome: 'fine' }, { ...PLAIN, files: { '../x': Buffer.alloc(0) } }, { ...PLAIN, stdout: [0, 0, 1] }]) {
    assert.equal((await thrown(client.execute('1'))).name, 'BadReply');
  }
  ok = PLAIN;
  assert.equal((await client.execute('1')).ok, true);
  client.close();
});

test('memory files of a rogue: pieces that are cut off, and files that are never read, are dropped', async (t) => {
  const dropped = [];
  const client = new Client({
    socket: await rogue(t, (message, send) => {
      const { id, op } = message;
      if (op === 'execute') send({ id, ok: { ...PLAIN, stdout: [0, 0, 100], arenas: [100] } });
      else if (op === 'kept_read') send({ id, ok: { data: Buffer.alloc(50) } });
      else if (op === 'kept_drop') { dropped.push(message.target); send({ id, ok: { dropped: true } }); } else send({ id, ok: PONG });
    }),
  });
  const error = await thrown(client.execute('1'));
  assert.deepEqual([error.name, error.mayHaveRun], ['BadReply', true]);
  await client.ping();
  assert.equal(dropped.length, 1);
  client.close();
});

test('a daemon from before keep_results: small answers come, large ones are told', async (t) => {
  let ok = PLAIN;
  const client = new Client({
    socket: await rogue(t, ({ id, op }, send) => {
      if (op === 'execute') send({ id, ok });
      else if (op === 'ping') send({ id, ok: {} });
      else send({ id, error: { kind: 'bad_request', message: `operation ${op} is unknown` } });
    }),
  });
  assert.equal((await client.execute('1')).stdoutText, 'out\n');
  ok = { ...PLAIN, stdout: [0, 0, 100], arenas: [100] };
  assert.match((await thrown(client.execute('1'))).message, /older than this package/);
  client.close();
});

test('a deadline and a signal take the request back', async (t) => {
  const cancelled = [];
  const client = new Client({
    socket: await rogue(t, (message, send) => {
      if (message.op === 'cancel') cancelled.push(message.target);
      if (message.op !== 'execute') send({ id: message.id, ok: { ...PONG, cancelled: true } });
    }),
  });
  const late = await thrown(client.execute('1', { deadline: 0.05 }));
  assert.deepEqual([late.name, late.mayHaveRun], ['NoAnswer', true]);
  const control = new AbortController();
  const running = thrown(client.execute('1', { signal: control.signal }));
  setTimeout(() => control.abort(), 20);
  assert.equal((await running).name, 'Cancelled');
  const never = await thrown(client.execute('1', { signal: control.signal }));
  assert.deepEqual([never.name, never.mayHaveRun], ['Cancelled', false]);
  await client.ping();
  assert.equal(cancelled.length, 2);
  client.close();
});

test('a deadline and a signal end the wait for a connection', async (t) => {
  const server = net.createServer((socket) => socket.on('error', () => {})); // it accepts, and says nothing
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  const open = new Set();
  server.on('connection', (socket) => open.add(socket));
  t.after(() => { for (const one of open) one.destroy(); server.close(); });
  const where = `http://127.0.0.1:${server.address().port}`;
  const late = await thrown(new Client({ socket: where }).execute('1', { deadline: 0.05 }));
  assert.equal(late.name, 'NoAnswer');
  const control = new AbortController();
  const taken = thrown(new Client({ socket: where }).execute('1', { signal: control.signal }));
  setImmediate(() => control.abort());
  assert.equal((await taken).name, 'Cancelled');
});

test('more calls than a connection takes are spread, and wait in order', async (t) => {
  const connections = new Set();
  let most = 0;
  const open = new Map();
  const where = await rogue(t, ({ id, op }, send, connection) => {
    connections.add(connection);
    if (op !== 'execute') { send({ id, ok: {} }); return; } // it tells no bounds: 16 are for everybody
    const mine = (open.get(connection) || 0) + 1;
    open.set(connection, mine);
    most = Math.max(most, mine);
    setImmediate(() => { open.set(connection, open.get(connection) - 1); send({ id, ok: PLAIN }); });
  });
  const calls = new Calls({ socket: where });
  const all = await Promise.all(Array.from({ length: 500 }, () => calls.call('execute', { code: Buffer.from('1') })));
  assert.equal(all.length, 500);
  assert.ok(most <= 14 && connections.size <= 8, `${most} ${connections.size}`);
  calls.close();
  assert.equal((await thrown(calls.call('ping', {}))).name, 'DaemonAway');
});

test('a call that gives up while it waits for room takes the turn of no other', async (t) => {
  const asked = [];
  const where = await rogue(t, ({ id, op }, send) => { if (op === 'execute') asked.push(() => send({ id, ok: PLAIN })); else send({ id, ok: {} }); });
  const until = async (condition) => { while (!condition()) await new Promise((resolve) => { setImmediate(resolve); }); };
  const calls = new Calls({ socket: where });
  const job = (options) => calls.call('execute', { code: Buffer.from('1') }, options);
  const all = Array.from({ length: 8 * 14 }, () => job());
  await until(() => asked.length === all.length);
  const control = new AbortController();
  const given = [thrown(job({ deadline: 0.01 })), thrown(job({ signal: control.signal }))];
  await until(() => calls.waiting.length === given.length);
  all.push(job());
  assert.equal((await given[0]).name, 'NoAnswer');
  control.abort();
  assert.equal((await given[1]).name, 'Cancelled');
  asked.shift()();
  await until(() => asked.length === 8 * 14); // the one place that came free is the last one's
  for (const answer of asked) answer();
  assert.equal((await Promise.all(all)).length, 8 * 14 + 1);
  calls.close();
});

test('what cannot be sent is refused here', async (t) => {
  const client = new Client({ socket: await rogueFor(t, 'execute', ({ id }, send) => send({ id, ok: PLAIN })) });
  for (const [code, options] of [[1, {}], [null, { codee: 1 }], ['1', { args: 'x' }], ['1', { memory: '12 apples' }], ['1', { files: { a: 1 } }], ['1', { deadline: -1 }], ['1', { timeout: Symbol('x') }]]) {
    const error = await thrown(client.execute(code, options));
    assert.deepEqual([error.name, error.mayHaveRun], ['RequestRejected', false]);
  }
  assert.ok(encode({}).length);
  client.close();
});
