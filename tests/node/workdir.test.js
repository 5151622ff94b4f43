'use strict';
/* Folders of the host, and the folder with tools, over a live daemon. */

const test = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const leeward = require('../../leeward/clients/node/index.js');
const TOOLS = require('../../leeward/clients/node/lib/tools.js');
const { socket, command, folder, rogueFor, PLAIN, thrown } = require('./support.js');

const { Sandbox } = leeward;
const Workdir = leeward.default;
const HAVE_NODE = fs.existsSync('/usr/bin/node') || fs.existsSync('/usr/local/bin/node');

function work(t, options = {}) {
  const where = options.workDir || folder(t);
  const made = new Workdir({ workDir: where, socket, command, ...options });
  t.after(() => made.destroy());
  return [made, where];
}

test('a folder of the host, written at once', async (t) => {
  const where = folder(t);
  fs.writeFileSync(path.join(where, 'in'), 'given\n');
  const box = new Sandbox({ socket, command, workdir: where, env: { SECRET: 'not for ps' }, metadata: { a: 'b' }, timeout: 30 });
  t.after(() => box.close());
  assert.equal((await box.shell('cat in; echo $SECRET; echo made > out')).stdoutText, 'given\nnot for ps\n');
  assert.equal(fs.readFileSync(path.join(where, 'out'), 'utf8'), 'made\n');
  const [mount] = (await box.info()).mounts;
  assert.deepEqual([mount.target, mount.path], ['/workspace', fs.realpathSync(where)]);
});

test('mounts are read-only unless they are writable, whatever their names', async (t) => {
  const where = folder(t);
  const odd = path.join(where, 'a:b c\n$(x)');
  fs.mkdirSync(odd);
  fs.writeFileSync(path.join(odd, 'f'), 'x\n');
  fs.writeFileSync(path.join(where, 'single'), 'one file\n');
  const box = new Sandbox({ socket, command, mounts: [{ source: odd, target: '/data' }, { source: odd, target: '/more', writable: true }, { source: path.join(where, 'single'), target: '/one' }] });
  t.after(() => box.close());
  const got = await box.shell('cat /data/f /one; echo no > /data/g; echo yes > /more/g');
  assert.match(got.stderrText, /Read-only file system|Permission denied/);
  assert.equal(got.stdoutText, 'x\none file\n');
  assert.equal(fs.readFileSync(path.join(odd, 'g'), 'utf8'), 'yes\n');
});

test('an overlay leaves the folder as it is, and diff says what has changed', async (t) => {
  const where = folder(t);
  fs.writeFileSync(path.join(where, 'kept'), 'old');
  fs.writeFileSync(path.join(where, 'gone'), 'old');
  const [made] = work(t, { workDir: where, overlay: true });
  await made.exec('sh', ['-c', 'printf new > kept; rm gone; mkdir d; printf x > d/f']);
  const rows = await made.diff();
  assert.deepEqual(rows.map(({ path: name, kind }) => [name, kind]), [['d', 'created'], ['d/f', 'created'], ['gone', 'deleted'], ['kept', 'modified']]);
  assert.equal(await made.readFile('kept', 'utf8'), 'new');
  assert.equal(fs.readFileSync(path.join(where, 'kept'), 'utf8'), 'old');
});

test('a folder is compared with what it was before the first call', async (t) => {
  for (const compare of [false, true]) {
    const where = folder(t);
    for (const name of ['same', 'old', 'gone']) fs.writeFileSync(path.join(where, name), 'old');
    const [made] = work(t, { workDir: where, compare });
    fs.writeFileSync(path.join(where, 'before'), 'the first call comes later');
    await made.exec('sh', ['-c', 'printf new > old; rm gone; printf old > same']);
    await made.box.kill();
    await made.writeFile('sub/f', 'x').catch(() => made.writeFile('sub/f', 'x'));
    assert.deepEqual((await made.diff()).map(({ path: name, kind }) => [name, kind]), [
      ['gone', 'deleted'], ['old', 'modified'], ...(compare ? [] : [['same', 'modified']]), ['sub', 'created'], ['sub/f', 'created']]);
  }
  assert.throws(() => work(t, { overlay: true, compare: true }), { name: 'RequestRejected' });
});

test('a sandbox compares folders, by target', async (t) => {
  const where = folder(t);
  const data = folder(t);
  const box = new Sandbox({ socket, command, workdir: where, compare: true, mounts: [{ source: data, target: '/data', writable: true, compare: true }] });
  t.after(() => box.close());
  await box.shell('touch a /data/b');
  assert.deepEqual((await box.diff({ target: '/data' })).map((row) => row.path), ['b']);
  assert.deepEqual((await box.diff({ target: '/workspace' })).map((row) => row.path), ['a']);
  assert.match((await thrown(box.diff())).message, /which target/);
  assert.throws(() => new Sandbox({ socket, compare: true }), /needs a workdir/);
  assert.throws(() => new Sandbox({ socket, mounts: [{ source: data, target: '/data', compare: true }] }), /for a folder that is written/);
});

test('what programs on the host run at once is protected', async (t) => {
  const where = folder(t);
  fs.mkdirSync(path.join(where, '.vscode'));
  const [made] = work(t, { workDir: where, protect: true });
  const evil = 'echo 1 > .vscode/tasks.json || echo 1 > .mcp.json || mkdir -p app/.vscode && echo 1 > app/.vscode/tasks.json';
  assert.equal((await made.exec('sh', ['-c', evil])).exitCode, 0);
  assert.deepEqual([made.putAway, fs.readdirSync(path.join(where, 'app'))], [['app/.vscode'], ['not-obeyed.vscode.txt']]);
  assert.deepEqual((await made.listDir()).map(({ name }) => name), ['.vscode', 'app']);
  fs.symlinkSync('app', path.join(where, 'link'));
  const errors = [await thrown(made.writeFile('.envrc', 'x')), await thrown(made.writeFile('app/.git/config', 'x')), await thrown(made.writeFile('link/f', 'x'))];
  assert.deepEqual(errors.map((error) => [error.kind, error.code]), [['io', 'EROFS'], ['io', 'EROFS'], ['io', 'ELOOP']]);
  await made.writeFile('app/f', 'x');
  await made.destroy();
  assert.deepEqual(fs.readdirSync(where).sort(), ['.vscode', 'app', 'link']);
  // control: without it they are written
  const [open] = work(t, { workDir: where });
  assert.equal((await open.exec('sh', ['-c', 'echo 1 > .vscode/tasks.json && echo 1 > .mcp.json'])).exitCode, 0);
});

test('what a command leaves running ends with it, unless it is asked for', async (t) => {
  const [made] = work(t);
  const left = async () => (await made.exec('sh', ['-c', "grep -las '427[3]' /proc/[0-9]*/cmdline; :"])).stdoutText.split('\n').length - 1;
  const line = ['-c', 'sleep 4273 >/dev/null 2>&1 & sleep 4273 & echo told'];
  assert.equal((await made.exec('sh', line)).stdoutText, 'told\n');
  await made.exec('sh', line, { onStdout: () => {} });
  assert.equal(await left(), 0);
  await made.exec('sh', line, { background: true });
  assert.ok(await left() > 0);
});

test('names that other programs have for options are told', (t) => {
  const where = folder(t);
  assert.throws(() => work(t, { mounts: [{ hostPath: where, guestPath: '/x' }] }), /no option "hostPath"; it is called source; there are compare, copy, overlay, source, target, writable/);
  assert.throws(() => new Sandbox({ socket, mounts: [{ source: where, guestPath: '/x' }] }), /it is called target/);
  assert.throws(() => new Sandbox({ workDir: where }), /it is called workdir/);
  assert.throws(() => work(t, { timeout: 3 }), /it is called timeoutMs/);
});

test('folders that cannot be shown are refused, by name', async (t) => {
  const where = folder(t);
  const cases = [
    [{ mounts: [{ source: path.join(where, 'none'), target: '/x' }] }, 'RequestRejected'], [{ mounts: [{ source: '/dev/null', target: '/x' }] }, 'RequestRejected'],
    [{ mounts: [{ source: where, target: 'relative' }] }, 'RequestRejected'], [{ workdir: where, memory: '900T' }, 'RequestRejected'],
  ];
  for (const [options, name] of cases) {
    const error = await thrown(new Sandbox({ socket, command, ...options }).run(['true']));
    assert.deepEqual([error.name, error.mayHaveRun], [name, false], error.message);
  }
  assert.throws(() => new Sandbox({ socket, mounts: [{ source: where }] }), { name: 'RequestRejected' });
  assert.throws(() => new Sandbox({ socket, overlay: true }), { name: 'RequestRejected' });
});

test('without the command there are no folders, and it is said', async (t) => {
  const box = new Sandbox({ socket, command: ['/no/such/leeward'], workdir: folder(t) });
  assert.match((await thrown(box.run(['true']))).message, /option `command`/);
  const other = new Sandbox({ socket, command: ['sh', '-c', 'echo nonsense'], workdir: folder(t) });
  assert.match((await thrown(other.run(['true']))).message, /no sandbox could be opened/);
  for (const [words, said] of [[['/no/such/leeward'], /option `command`/], [['sh', '-c', 'echo nonsense'], /no sandbox could be opened/], [['sh', '-c', 'echo why >&2; exit 3'], /has ended: why/]]) {
    const held = new Sandbox({ socket, command: words, workdir: folder(t), held: true });
    assert.match((await thrown(held.run(['true']))).message, said);
    await held.close();
  }
  const away = new Sandbox({ socket: path.join(folder(t), 'none'), command, workdir: folder(t) });
  assert.equal((await thrown(away.run(['true']))).name, 'DaemonAway');
});

test('exec: a fresh process, an environment of its own, no shell', async (t) => {
  const [made, where] = work(t, { env: { A: '1', B: 'x y' } });
  fs.writeFileSync(path.join(where, 'numbers'), '40\n2\n');
  assert.equal((await made.exec('awk', ['{ sum += $1 } END { print sum }', 'numbers'])).stdoutText, '42\n');
  const env = (await made.exec('env')).stdoutText.trimEnd().split('\n').sort();
  assert.deepEqual(env.filter((line) => !line.startsWith('PATH=')), ['A=1', 'B=x y']);
  assert.equal(env.length, 3);
  assert.equal((await made.exec('echo', ['$(whoami)', '*'])).stdoutText, '$(whoami) *\n');
  assert.equal((await made.exec('cat')).stdoutText, '');
  assert.equal((await made.exec('false')).exitCode, 1);
  assert.equal((await made.exec('sh', ['-c', 'no-such-thing'])).exitCode, 127);
});

test('exec: what is no tool, what takes too long, what has no network', async (t) => {
  const [made] = work(t, { timeoutMs: 400 });
  for (const name of ['python3', 'no-such-tool', '/bin/cat', '']) assert.deepEqual([(await thrown(made.exec(name))).kind], ['command_not_found']);
  assert.match((await thrown(made.exec('python3'))).message, /^command not found/);
  const late = await thrown(made.exec('sh', ['-c', 'echo before; sleep 100']));
  assert.deepEqual([late.name, late.kind, late.limit, late.result.stdoutText], ['Timeout', 'timeout', 'time', 'before\n']);
  assert.equal((await thrown(made.exec('curl', ['http://127.0.0.1/']))).kind, 'networking_disabled');
  assert.equal((await thrown(made.fetch('https://example.org/'))).message, 'networking disabled: configure fetch_policy to enable');
  assert.deepEqual([(await thrown(made.fetch('file:///etc/passwd'))).kind, (await thrown(made.fetch('x'))).kind], ['fetch', 'fetch']);
  assert.equal((await thrown(made.exec('cat', 'x'))).name, 'RequestRejected');
});

test('exec: processor time has a bound of its own', async (t) => {
  const [made] = work(t, { cpu: 0.2 });
  const late = await thrown(made.exec('sh', ['-c', 'while :; do :; done']));
  assert.deepEqual([late.name, late.limit], ['Timeout', 'cpu']);
  assert.match(late.message, /limit of processor time/);
  assert.match((await made.exec('sh', ['-c', 'curl http://127.0.0.1/'])).stderrText, /^networking disabled/);
});

test('files, with the folders that lead to them', async (t) => {
  const [made, where] = work(t);
  await made.writeFile('a/b/c.txt', 'text');
  await made.writeFile('bytes', Buffer.from([0, 255]));
  assert.equal(fs.readFileSync(path.join(where, 'a/b/c.txt'), 'utf8'), 'text');
  assert.equal(await made.readFile('./a//b/../b/c.txt', 'utf8'), 'text');
  assert.deepEqual(await made.readFile('bytes'), Buffer.from([0, 255]));
  fs.symlinkSync('a/b', path.join(where, 'link'));
  assert.equal(await made.readFile('link/c.txt', 'utf8'), 'text');
  assert.deepEqual(await made.listDir(), [
    { name: 'a', isDir: true, isFile: false, size: 0 }, { name: 'bytes', isDir: false, isFile: true, size: 2 }, { name: 'link', isDir: false, isFile: false, size: 0 }]);
  assert.deepEqual((await made.listDir('a/b')).map(({ name, size }) => [name, size]), [['c.txt', 4]]);
  const missing = await thrown(made.readFile('none'));
  assert.deepEqual([missing.name, missing.kind, missing.code], ['WorkdirIoError', 'io', 'ENOENT']);
  assert.deepEqual([(await thrown(made.readFile('a'))).code, (await thrown(made.listDir('bytes'))).code, (await thrown(made.readFile(''))).code], ['EISDIR', 'ENOTDIR', 'EINVAL']);
});

test('traversal: no path leads out, for reading, writing and listing', async (t) => {
  const outside = folder(t);
  fs.writeFileSync(path.join(outside, 'secret'), 'canary');
  const [made, where] = work(t);
  fs.mkdirSync(path.join(where, 'foo'));
  for (const [name, to] of [['etc', '/etc'], ['out', outside], ['up', '../..'], ['deep', 'foo/../../..'], ['file', path.join(outside, 'secret')], ['new', path.join(outside, 'new')]]) fs.symlinkSync(to, path.join(where, name));
  fs.symlinkSync('round', path.join(where, 'round'));
  const paths = ['../../../etc/passwd', '../../etc/shadow', 'foo/../../..', './../../etc/hosts', '/etc/passwd', path.join(outside, 'secret'), '..', 'etc/passwd', 'etc/new', 'out/secret', 'out/new', 'up/etc/passwd', 'deep/x', 'file', 'new'];
  for (const name of paths) {
    for (const call of [() => made.readFile(name), () => made.writeFile(name, 'x'), () => made.listDir(name)]) {
      const error = await thrown(call());
      assert.deepEqual([error.name, error.kind], ['PathTraversal', 'path_traversal'], name);
      assert.match(error.message, /^path traversal blocked: .* escapes sandbox root$/);
    }
  }
  assert.equal((await thrown(made.readFile('round'))).code, 'ELOOP');
  assert.deepEqual(fs.readdirSync(outside), ['secret']);
  assert.equal(fs.readFileSync(path.join(outside, 'secret'), 'utf8'), 'canary');
});

test('traversal: links that are laid between the look and the use reach nothing of the host', async (t) => {
  const outside = folder(t);
  fs.writeFileSync(path.join(outside, 'f'), 'canary');
  const [made, where] = work(t, { timeoutMs: 30000 });
  fs.mkdirSync(path.join(where, 'real'));
  fs.writeFileSync(path.join(where, 'real/f'), 'mine');
  fs.symlinkSync(outside, path.join(where, 'bait'));
  // control: whoever follows the link on the host has the canary
  assert.equal(fs.readFileSync(path.join(where, 'bait/f'), 'utf8'), 'canary');
  const swapping = new AbortController();
  const swap = thrown(made.exec('sh', ['-c', 'while :; do ln -sfn real d; ln -sfn bait d; done'], { signal: swapping.signal }));
  const seen = new Set();
  for (let n = 0; n < 40; n++) {
    await made.readFile('d/f', 'utf8').then((text) => seen.add(text), (error) => seen.add(error.kind));
    await made.writeFile('d/new', 'x').catch(() => {});
  }
  swapping.abort();
  await swap;
  await made.destroy(); // nothing changes the folder after that
  assert.ok(!seen.has('canary') && seen.size > 0, [...seen].join());
  assert.deepEqual(fs.readdirSync(outside), ['f']);
});

test('JavaScript', { skip: !HAVE_NODE && 'needs usr-node' }, async (t) => {
  const [made, where] = work(t);
  const got = await made.execJs('console.log(6 * 7); Promise.resolve().then(() => console.log("then")); process.exitCode = 3');
  assert.deepEqual([got.stdoutText, got.exitCode], ['42\nthen\n', 3]);
  const thrownThere = await made.execJs('throw new TypeError("oh")');
  assert.deepEqual([thrownThere.exitCode, /TypeError: oh/.test(thrownThere.stderrText)], [1, true]);
  fs.writeFileSync(path.join(where, 'm.js'), 'module.exports = 5');
  assert.equal((await made.exec('node', ['-p', 'require("./m.js") + 1'])).stdoutText, '6\n');
  assert.equal((await made.execJs('fetch("http://127.0.0.1/").catch((e) => console.log(`${e.name}: ${e.message}`))')).stdoutText, 'TypeError: fetch failed: networking disabled: configure fetch_policy to enable\n');
  assert.equal((await made.execJs('fetch("data:,x").then((r) => r.text()).then(console.log)')).stdoutText, 'x\n');
  assert.equal((await made.exec('node')).exitCode, 2);
});

test('JavaScript that takes too much', { skip: !HAVE_NODE && 'needs usr-node' }, async (t) => {
  const [made] = work(t, { memoryLimit: '64M', timeoutMs: 20000 });
  const got = await made.execJs('const all = []; for (;;) all.push(new Array(1e5).fill({}));');
  assert.deepEqual([got.outcome, got.exitCode, got.limit], ['out_of_memory', 137, 'memory']);
  const [quick] = work(t, { timeoutMs: 500 });
  assert.equal((await thrown(quick.execJs('for (;;);'))).name, 'Timeout');
});

test('the tools that there are', async (t) => {
  const [made] = work(t);
  const mine = await made.availableTools();
  assert.deepEqual(await Workdir.availableTools({ socket }), mine);
  for (const name of ['cat', 'grep', 'sed', 'awk', 'sh', '[', 'tar']) assert.ok(mine.includes(name), name);
  assert.deepEqual(mine, TOOLS.filter((name) => mine.includes(name)));
});

test('destroy: twice, and nothing after it; the files stay', async (t) => {
  const [made, where] = work(t);
  await made.writeFile('f', 'x');
  await made.destroy();
  await made.destroy();
  for (const call of [() => made.exec('true'), () => made.execJs('1'), () => made.readFile('f'), () => made.writeFile('f', ''), () => made.listDir(), () => made.diff(), () => made.fetch('http://x'), () => made.availableTools()]) {
    assert.deepEqual([(await thrown(call())).kind], ['destroyed']);
  }
  assert.equal(fs.readFileSync(path.join(where, 'f'), 'utf8'), 'x');
});

test('a sandbox that was ended by others: its copy is lost, and a folder gets another one', async (t) => {
  const [copy] = work(t, { overlay: true });
  await copy.exec('true');
  await copy.box.kill();
  assert.equal((await thrown(copy.exec('true'))).kind, 'destroyed');
  const [made] = work(t);
  await made.exec('true');
  await made.box.kill();
  const first = await made.exec('true').catch((error) => error); // of a daemon that can't tell whether it had begun
  assert.ok(first.ok || first.kind === 'runtime', first.message);
  assert.equal((await made.exec('true')).ok, true);
});

test('what a sandbox had not begun when it was over is done in the next one', async (t) => {
  let asked = 0;
  const where = await rogueFor(t, 'process_run', ({ id, sandbox }, send) => {
    asked += 1;
    if (asked === 1) send({ id, error: { kind: 'sandbox_over', message: 'over', reason: 'idle', when: 1.5, limit: null, begun: false } });
    else send({ id, ok: { ...PLAIN, stdout: Buffer.from(sandbox) } });
  });
  const made = new Workdir({ workDir: folder(t), socket: where, command: ['sh', '-c', `while read line; do echo '{"sandbox": "${'a'.repeat(26)}", "made": []}'; done`] });
  assert.equal((await made.exec('true')).stdoutText, 'a'.repeat(26));
  assert.equal(asked, 2);
  await made.destroy();
});

test('what is wrong is said at construction', (t) => {
  const where = folder(t);
  fs.writeFileSync(path.join(where, 'f'), '');
  const name = (options) => { try { return new Workdir({ socket, ...options }) && 'nothing'; } catch (error) { return `${error.name} ${error.code || ''}`; } };
  assert.deepEqual([name({}), name({ workDir: path.join(where, 'none') }), name({ workDir: path.join(where, 'f') }), name({ workDir: where, mounts: [{ source: path.join(where, 'no'), target: '/x' }] })],
    ['WorkdirIoError EINVAL', 'WorkdirIoError ENOENT', 'WorkdirIoError ENOTDIR', 'WorkdirIoError ENOENT']);
  assert.deepEqual([name({ workDir: where, fetchPolicy: ['*'] }), name({ workDir: where, timeout: 3 }), name({ workDir: where, memoryLimit: 'much' })],
    ['RequestRejected ', 'RequestRejected ', 'RequestRejected ']);
});
