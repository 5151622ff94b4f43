'use strict';
/* MessagePack: what goes in comes out, and hostile bytes give a value or one PeerError. */

const test = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { decode, decodeAll, encode } = require('../../leeward/clients/node/lib/msgpack.js');
const { FrameReader, MAX_REPLY } = require('../../leeward/clients/node/lib/frames.js');
const { parseReply } = require('../../leeward/clients/node/lib/connection.js');
const { parse } = require('../../leeward/clients/node/lib/results.js');
const { PeerError } = require('../../leeward/clients/node/lib/errors.js');
const { PLAIN, numbers } = require('./support.js');

const FUZZ = Number(process.env.LEEWARD_TEST_FUZZ || 8000);

test('values survive the way there and back', () => {
  const texts = ['', 'a', 'é'.repeat(31), 'x'.repeat(255), 'x'.repeat(65535), 'x'.repeat(65536), '\0', '\u{1f600}'];
  const wholes = [0, 1, 127, 128, 255, 256, 65535, 65536, 2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1, -1, -32, -33, -128, -129, -(2 ** 31), -(2 ** 31) - 1, -(2 ** 53) + 1];
  const bigs = [2n ** 53n, 2n ** 63n - 1n, 2n ** 64n - 1n, -(2n ** 63n), -(2n ** 53n)];
  const others = [null, true, false, 0.5, -1.5e-300, NaN, Infinity, [], [1, [2]], Buffer.from([0, 255]), Buffer.alloc(70000, 7)];
  for (const value of [...texts, ...wholes, ...bigs, ...others]) assert.deepEqual(decode(encode(value)), value);
  assert.deepEqual({ ...decode(encode({ a: 1, b: undefined, c: null })) }, { a: 1, c: null });
  assert.deepEqual(decode(encode(Array(4096).fill(0))).length, 4096);
});

test('what JavaScript does with names is left out of maps', () => {
  const map = decode(Buffer.concat([Buffer.from([0x82, 0xa9]), Buffer.from('__proto__'), Buffer.from([0x81, 0xa1, 0x78, 0x01, 0xa1, 0x78, 0x02])]));
  assert.deepEqual(Object.keys(map), ['__proto__', 'x']);
  assert.equal(map.x, 2);
  assert.equal({}.x, undefined);
});

test('what cannot be sent is a TypeError', () => {
  let deep = null;
  for (let n = 0; n < 40; n++) deep = [deep];
  for (const value of [undefined, () => {}, Symbol('x'), 2 ** 60, 2n ** 64n, deep, { a: () => {} }]) assert.throws(() => encode(value), TypeError);
});

test('binary is memory of its own', () => {
  const frame = encode(Buffer.from('abc'));
  const got = decode(frame);
  frame.fill(0);
  assert.equal(got.toString(), 'abc');
});

test('values one after the other', () => {
  assert.deepEqual([...decodeAll(Buffer.concat([encode(1), encode('a'), encode(null)]))], [1, 'a', null]);
  assert.throws(() => [...decodeAll(Buffer.concat([encode(1), Buffer.from([0xc1])]))], PeerError);
});

test('random bytes give a value or one PeerError', () => {
  const next = numbers(7);
  let values = 0;
  for (let n = 0; n < FUZZ; n++) {
    const data = Buffer.from(Array.from({ length: next.next().value % 40 }, () => next.next().value & 0xff));
    try {
      decode(data);
      values += 1;
    } catch (error) {
      assert.ok(error instanceof PeerError, `${error.stack} of ${data.toString('hex')}`);
    }
  }
  assert.ok(values > 0 && values < FUZZ);
});

test('replies that are wrong by some bytes give a reply or one PeerError', () => {
  const next = numbers(11);
  const good = encode({ id: 1, ok: { ...PLAIN, files: { 'a/b': Buffer.from('x'), c: [0, 0, 4] }, arenas: [16], left_out: [['a', 'link']], results: [{ 'text/plain': '1' }], value: '1', label: 'x', job: 7 } });
  let taken = 0;
  for (let n = 0; n < FUZZ; n++) {
    const data = Buffer.from(good);
    for (let m = next.next().value % 4; m >= 0; m--) data[next.next().value % data.length] = next.next().value & 0xff;
    try {
      const reply = parseReply(decode(data.subarray(0, next.next().value % 9 ? data.length : next.next().value % data.length)));
      if (reply.ok) parse(reply.ok, reply.arenas);
      taken += 1;
    } catch (error) {
      assert.ok(error instanceof PeerError, `${error.stack} of ${data.toString('hex')}`);
    }
  }
  assert.ok(taken > 0 && taken < FUZZ);
});

test('lengths that lie take no memory', () => {
  const before = process.memoryUsage().rss;
  for (const head of ['dfffffffff', 'ddffffffff', 'c6ffffffff', 'dbffffffff', '81a161ddffffffff']) assert.throws(() => decode(Buffer.from(head, 'hex')), PeerError);
  assert.throws(() => decode(Buffer.alloc(1 << 20, 0x91)), PeerError); // a million levels
  assert.throws(() => decode(Buffer.concat([Buffer.from([0xdc, 0x0f, 0xff]), ...Array(4095).fill(Buffer.from('dc0fff'.repeat(1), 'hex'))])), PeerError);
  assert.throws(() => [...new FrameReader().feed(Buffer.from('ffffffff', 'hex'))], PeerError);
  assert.ok(process.memoryUsage().rss - before < 64 << 20);
});

test('frames come in whatever pieces', () => {
  const bodies = [encode({ a: 1 }), Buffer.alloc(100000, 0xc0), encode({})];
  const all = Buffer.concat(bodies.flatMap((body) => { const head = Buffer.alloc(4); head.writeUInt32BE(body.length); return [head, body]; }));
  for (const size of [1, 3, 4, 5, 4096, all.length]) {
    const reader = new FrameReader();
    const found = [];
    for (let at = 0; at < all.length; at += size) found.push(...[...reader.feed(all.subarray(at, at + size))].map((one) => Buffer.from(one)));
    assert.deepEqual(found.map((one) => one.length), bodies.map((one) => one.length));
    assert.ok(found.every((one, at) => one.equals(bodies[at])));
  }
  assert.equal(MAX_REPLY, 16 << 20);
});

/** Of tests/conformance/frames.json: what only a client that maps files has to see, and a fraction that is whole. */
const NOT_OURS = /^a memory file that|1\.0$|0\.0, 1\]$/;

test('the replies of the conformance file', () => {
  const { replies } = JSON.parse(fs.readFileSync(path.join(__dirname, '../conformance/frames.json'), 'utf8'));
  const bytes = (parts) => Buffer.concat(parts.map((part) => (Array.isArray(part) ? Buffer.from(part[0].repeat(part[1]), 'hex') : Buffer.from(part, 'hex'))));
  let tried = 0;
  for (const one of replies) {
    if (one.broken && NOT_OURS.test(one.what)) continue;
    tried += 1;
    let made;
    try {
      const [payload, ...more] = new FrameReader().feed(bytes(one.frame));
      assert.deepEqual(more, []);
      const reply = parseReply(decode(payload));
      if (reply.ok && reply.id !== 1) throw new PeerError('an answer to somebody else');
      made = reply.ok ? parse(reply.ok, reply.arenas) : { refused: reply.error };
    } catch (error) {
      if (!(error instanceof PeerError)) throw error;
      made = null;
    }
    assert.equal(made === null, Boolean(one.broken), one.what);
    if (one.refused) {
      assert.deepEqual({ ...made.refused }, one.refused, one.what);
    } else if (one.result) {
      const { result } = one;
      assert.deepEqual([made.outcome, made.exitCode, made.limit, made.truncated, [...made.degraded], made.memoryPeak],
        [result.outcome, result.exit_code, result.limit, result.truncated, result.degraded, result.memory_peak], one.what);
      assert.deepEqual([Math.round(made.duration * 1e6), Math.round(made.cpuTime * 1e6)], [result.duration_us, result.cpu_time_us], one.what);
      assert.deepEqual(made.leftOut.map(({ name, reason }) => [name, reason]), result.left_out, one.what);
      assert.deepEqual([made.stdoutOmitted, made.stderrOmitted], result.omitted, one.what);
      assert.deepEqual(made.error, result.error, one.what);
      if (Buffer.isBuffer(made.stdout)) assert.equal(made.stdout.toString('hex'), result.stdout, one.what);
    }
  }
  assert.ok(tried > 170, `${tried}`);
});
