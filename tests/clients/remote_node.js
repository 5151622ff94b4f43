'use strict';
/* The package for Node with a daemon on another machine, by LEEWARD_HOST and LEEWARD_TOKEN: the cases that are named. */

const assert = require('node:assert/strict');
const { Client, Sandbox, DaemonAway, RequestRejected } = require('../../leeward/clients/node/index.js');

const command = JSON.parse(process.env.LEEWARD_TEST_COMMAND);

const CASES = {
  async jobs() {
    const client = new Client();
    assert.equal((await client.execute('print(6 * 7)')).stdoutText, '42\n');
    const large = await client.execute("import sys; sys.stdout.buffer.write(bytes(range(256)) * 50_000)", { output: '32M' });
    assert.ok(large.stdout.equals(Buffer.alloc(256 * 50_000, Buffer.from([...Array(256).keys()]))));
    const sent = Buffer.alloc(6_000_000, 7);
    assert.equal((await client.execute('import sys; print(sum(sys.stdin.buffer.read()))', { stdin: sent })).stdoutText, '42000000\n');
    const many = await Promise.all([...Array(20).keys()].map((number) => client.execute(`print(${number})`)));
    assert.deepEqual(many.map((each) => each.stdoutText), [...Array(20).keys()].map((number) => `${number}\n`));
    client.close();
  },

  async sandboxes() {
    const box = new Sandbox({ profile: 'workdir', metadata: { mine: '1' } });
    await box.files.write('/workspace/a', Buffer.alloc(3_000_000, 'x'));
    assert.equal((await box.files.read('/workspace/a')).length, 3_000_000);
    const pieces = [];
    await box.shell('for n in 1 2 3; do echo $n; done', { onStdout: (data) => pieces.push(data) });
    assert.equal(Buffer.concat(pieces).toString(), '1\n2\n3\n');
    assert.deepEqual({ ...(await box.info()).metadata }, { mine: '1' });
    assert.deepEqual((await Sandbox.list()).map((row) => row.sandbox), [await box.id()]);
    await box.close();
  },

  async ports() {
    const box = new Sandbox({ profile: 'workdir', command });
    await box.files.write('/workspace/f', 'from inside');
    const server = await box.start(['python3', '-u', '-m', 'http.server', '8000', '--bind', '127.0.0.1']);
    await server.read({ timeout: 30 });
    const published = await box.publish(8000);
    assert.equal(await (await fetch(`http://127.0.0.1:${published.port}/f`)).text(), 'from inside');
    await published.close();
    await box.close();
  },

  async folders() {
    const box = new Sandbox({ workdir: __dirname, command });
    await assert.rejects(box.shell('true'), (error) => error instanceof RequestRejected && /folders of this machine/.test(error.message));
    await box.close();
    const copied = new Sandbox({ workdir: __dirname, copy: true, command });
    assert.match((await copied.shell('ls')).stdoutText, /remote_node.js/);
    await copied.close();
  },

  async tokens() {
    const client = new Client({ token: 'e2b_no' });
    await assert.rejects(client.ping(), (error) => error instanceof DaemonAway && /another token/.test(error.message) && !error.mayHaveRun);
    assert.throws(() => new Client({ socket: 'http://far.example' }), RequestRejected);
    const none = new Client({ socket: 'http://127.0.0.1:1' });
    await assert.rejects(none.ping(), /no daemon answers at/);
  },
};

(async () => {
  for (const name of process.argv.slice(2)) await CASES[name]();
})();
