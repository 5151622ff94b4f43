'use strict';
/* Jobs over a live daemon. */

const test = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const leeward = require('../../leeward/clients/node/index.js');
const { socket, thrown } = require('./support.js');

const client = new leeward.Client({ socket });
test.after(() => client.close());

test('code, and what came of it', async () => {
  const got = await client.execute('import sys; print(6 * 7); print("no", file=sys.stderr); sys.exit(3)');
  assert.deepEqual([got.stdoutText, got.stderrText, got.exitCode, got.outcome, got.limit, got.ok], ['42\n', 'no\n', 3, 'finished', null, false]);
  assert.ok(got.duration > 0 && got.memoryPeak >= 0 && Object.isFrozen(got));
});

test('every option', async () => {
  const got = await client.execute('import os, sys; print(sys.argv[1:], os.environ["A"], sys.stdin.read(), open("in/f").read()); open("out", "w").write("made"); open("other", "w"); 1 + 1', {
    args: ['x', 'é'], env: { A: '1' }, stdin: 'typed', files: { 'in/f': 'given' }, collect: ['out', 'none-*'], display: true, timeout: 20, memory: '128M', processes: 8, output: 4096,
    name: 'named.py', label: 'a-label',
  });
  assert.equal(got.stdoutText, "['x', 'é'] 1 typed given\n");
  assert.deepEqual(Object.keys(got.files), ['out']);
  assert.equal(got.files.out.toString(), 'made');
  assert.deepEqual(got.leftOut, [{ name: 'none-*', reason: 'no_match' }]);
  assert.deepEqual([got.value, got.results[0]['text/plain'], got.label, got.job > 0], ['2', '2', 'a-label', true]);
  assert.match((await client.execute('1/0', { name: 'named.py' })).error.traceback, /named\.py/);
});

test('a module', async () => {
  assert.match((await client.execute(undefined, { module: 'this' })).stdoutText, /Zen of Python/);
});

test('output arrives in pieces while the job runs', async () => {
  const pieces = [];
  const got = await client.execute('import time\nfor n in range(4): print(n); time.sleep(0.1)', { onStdout: (data) => pieces.push(data) });
  assert.equal(Buffer.concat(pieces).toString(), '0\n1\n2\n3\n');
  assert.ok(got.ok && pieces.length > 1, String(pieces.length));
});

test('limits', async () => {
  const [slow, hungry, loud] = await Promise.all([
    client.execute('while True: pass', { timeout: 0.2 }), client.execute('x = bytearray(300 << 20)', { memory: '64M' }), client.execute('while True: print("x" * 1000)', { output: 10000 }),
  ]);
  assert.deepEqual([slow.outcome, slow.limit, slow.exitCode], ['timed_out', 'time', 124]);
  assert.ok(hungry.outcome === 'out_of_memory' || hungry.error.type === 'MemoryError', hungry.outcome);
  assert.deepEqual([loud.outcome, loud.truncated], ['output_limit', true]);
  assert.match(loud.hint, /^limit output: /);
  assert.match((await client.execute('import a_package_of_nobodys')).hint, /^a module is missing; .*packages=/);
});

test('output and files that are too large for a reply', async () => {
  const got = await client.execute('import sys; sys.stdout.write("o" * 3_000_001); sys.stderr.write("e" * 70_000); [open(f"f{n}", "wb").write(bytes([n]) * 700_000) for n in range(5)]', { collect: ['f*'], output: '16M' });
  assert.ok(got.ok, got.stderrText.slice(0, 300));
  assert.ok(got.stdout.equals(Buffer.alloc(3000001, 'o')) && got.stderr.equals(Buffer.alloc(70000, 'e')));
  assert.deepEqual(Object.entries(got.files).map(([name, data]) => [name, data.equals(Buffer.alloc(700000, Number(name[1])))]), [0, 1, 2, 3, 4].map((n) => [`f${n}`, true]));
});

test('what was read is let go of: more large results than may wait', async () => {
  for (let round = 0; round < 5; round++) {
    const all = await Promise.all(Array.from({ length: 32 }, (_, n) => client.execute(`print("${n % 10}" * 100_000)`)));
    assert.ok(all.every((got, n) => got.stdout.length === 100001 && got.stdout[0] === 48 + (n % 10)));
  }
});

test('much to send', async () => {
  const got = await client.execute('import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())', { stdin: Buffer.alloc(20 << 20, 'x') });
  assert.equal(got.stdoutText.trim(), require('node:crypto').createHash('sha256').update(Buffer.alloc(20 << 20, 'x')).digest('hex'));
});

test('what a job is asked to be is checked by the daemon', async () => {
  const error = await thrown(client.execute('1', { memory: '900G' }));
  assert.deepEqual([error.name, error.kind, error.mayHaveRun], ['RequestRejected', 'bad_request', false]);
});

test('a signal ends the job, and the daemon has its worker back', async () => {
  const control = new AbortController();
  const running = thrown(client.execute('import time; time.sleep(100)', { signal: control.signal, timeout: 60 }));
  setTimeout(() => control.abort(), 100);
  assert.equal((await running).name, 'Cancelled');
  assert.equal((await client.execute('print(1)')).stdoutText, '1\n');
});

test('ping and status', async () => {
  const [pong, status] = await Promise.all([client.ping(), client.status()]);
  assert.equal(pong.wire, 1);
  assert.ok(status.workers.total >= 1 && status.jobs.done > 0);
});

test('a program ends when nothing is asked any more, without close', () => {
  const code = `const { Client } = require(${JSON.stringify(path.join(__dirname, '../../leeward/clients/node'))}); new Client({ socket: ${JSON.stringify(socket)} }).execute('print(5)').then((got) => process.stdout.write(got.stdout));`;
  const done = spawnSync(process.execPath, ['-e', code], { timeout: 30000 });
  assert.deepEqual([done.status, done.stdout.toString(), done.stderr.toString()], [0, '5\n', '']);
});

test('as an ES module', () => {
  const code = `import Sandbox, { Client, Busy, WorkdirSandbox } from ${JSON.stringify(path.join(__dirname, '../../leeward/clients/node/index.mjs'))}; console.log(Sandbox === WorkdirSandbox, typeof Client, new Busy('x').kind)`;
  const done = spawnSync(process.execPath, ['--input-type=module', '-e', code], { timeout: 30000 });
  assert.deepEqual([done.status, done.stdout.toString()], [0, 'true function busy\n']);
});

test('both entries have the same names', async () => {
  const { default: _, ...names } = leeward;
  const { default: Default, ...others } = await import('../../leeward/clients/node/index.mjs');
  assert.deepEqual(Object.keys(others).sort(), Object.keys(names).sort());
  assert.equal(Default, leeward.WorkdirSandbox);
});

async function all(ends) {
  const found = [];
  for await (const one of ends) found.push(one);
  return found;
}

test('many jobs: each has its own end, in order or as they come', async () => {
  const seen = [];
  const codes = Array.from({ length: 60 }, (_, n) => `import time; time.sleep(${n % 7 ? 0 : 0.1}); print(${n})`);
  const ends = await all(client.map(codes, { ordered: true, atOnce: 20, progress: (one) => seen.push(one) }));
  assert.deepEqual(ends.map((one) => [one.number, one.result.stdoutText]), codes.map((_, n) => [n, `${n}\n`]));
  assert.deepEqual(seen.at(-1), { done: 60, refused: 0, total: 60 });
  const [refused, own] = await all(client.map([{ code: '1', timeout: 1e9 }, { code: 'import sys; print(sys.argv[1])', args: ['x'] }], { ordered: true, timeout: 20 }));
  assert.deepEqual([refused.error.name, refused.result, own.result.stdoutText], ['RequestRejected', null, 'x\n']);
});

test('many jobs: who leaves the iteration, or waits no longer, ends what runs', async () => {
  for await (const one of client.map(['1', 'import time; time.sleep(60)'])) {
    assert.equal(one.number, 0);
    break;
  }
  const error = await thrown(all(client.map(['import time; time.sleep(60)'], { deadline: 0.5 })));
  assert.match(error.message, /1 jobs have no answer before the deadline/);
});

test('processor time, and time without starvation', async () => {
  const [spent, waits] = await Promise.all([
    client.execute('while True: pass', { cpuTime: 0.2, timeout: 30 }), client.execute('import time; time.sleep(60)', { timeout: 0.3, wall: 60 }),
  ]);
  assert.deepEqual([spent.outcome, spent.limit, spent.starved], ['timed_out', 'cpu', null]);
  assert.deepEqual([waits.outcome, waits.limit, typeof waits.starved], ['timed_out', 'time', 'number']);
});
