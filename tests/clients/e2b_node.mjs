// E2B's clients for Node as they are, against `leeward serve e2b`; test_serve_e2b.py runs this beside their packages.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const require = createRequire(process.argv[2])
const { Sandbox, CommandExitError } = require('e2b')
const { Sandbox: Interpreter } = require('@e2b/code-interpreter')

const text = bytes => new TextDecoder().decode(bytes)
const box = await Sandbox.create({ timeoutMs: 60000, metadata: { k: 'v' }, envs: { X: '1' } })
assert.equal((await box.commands.run('echo $X; echo err >&2')).stdout, '1\n')
await assert.rejects(box.commands.run('exit 4'), error => error instanceof CommandExitError && error.exitCode === 4)
await box.files.write('a/b.txt', 'hello')
assert.equal(await box.files.read('a/b.txt'), 'hello')
assert.equal(await box.files.exists('none'), false)
await box.files.write([{ path: 'm1', data: 'one' }, { path: 'm2', data: new Blob(['two']) }])
assert.equal(await box.files.read('m2'), 'two')
assert.deepEqual((await box.files.list('.')).map(each => each.name), ['a', 'm1', 'm2'])
await assert.rejects(box.files.read('none'), { name: 'FileNotFoundError' })

await new Promise(async resolve => {
  const watch = await box.files.watchDir('a', async event => {
    assert.equal(event.name, 'c.txt')
    await watch.stop()
    resolve()
  })
  await box.files.write('a/c.txt', 'x')
})

const typed = await box.commands.run('cat', { background: true, stdin: true })
await box.commands.sendStdin(typed.pid, 'typed\n')
await box.commands.closeStdin(typed.pid)
assert.equal((await typed.wait()).stdout, 'typed\n')
const long = await box.commands.run('sleep 300', { background: true })
assert.deepEqual([await box.commands.kill(long.pid), await box.commands.kill(long.pid)], [true, false])

let shown = ''
const terminal = await box.pty.create({ cols: 90, rows: 20, onData: data => { shown += text(data) } })
await box.pty.resize(terminal.pid, { cols: 77, rows: 11 })
await box.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
await terminal.wait()
assert.match(shown, /11 77/)

const again = await Sandbox.connect(box.sandboxId)
assert.equal((await again.commands.run('cat a/b.txt')).stdout, 'hello')
assert.deepEqual((await Sandbox.list({ query: { metadata: { k: 'v' } } }).nextItems()).map(row => row.sandboxId), [box.sandboxId])
assert.equal(await box.kill(), true)
assert.equal(await box.isRunning(), false)
await assert.rejects(Sandbox.create('none-such'), { name: 'SandboxError' })

const code = await Interpreter.create()
let goesOn
const waits = 'print("a")\nimport os, time\nwhile not os.path.exists("/workspace/go"): time.sleep(0.01)\nprint("b")\n6 * 7'
// It ends only if what is printed comes while it runs.
const ran = await code.runCode(waits, { onStdout: () => { goesOn ??= code.files.write('/workspace/go', '') } })
await goesOn
assert.equal(ran.text, '42')
assert.deepEqual(ran.logs.stdout, ['a\n', 'b\n'])
assert.equal((await code.runCode('1 / 0')).error.name, 'ZeroDivisionError')
await code.kill()
