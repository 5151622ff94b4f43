"""JavaScript in a work folder, as cases: code, what it prints, how it ends; and what a program can see of its Node."""

from __future__ import annotations

from dataclasses import dataclass

#: Files of the folder.
JS_FILES: dict[str, str] = {
    "own.js": "exports.seven = 7", "own.mjs": "export const eight = 8",
    "page.js": "console.log(process.argv.slice(2), require('./own').seven)",
}


@dataclass(frozen=True, slots=True)
class JavaScriptCase:
    """
    Attributes:
        code: for `exec_js`; or
        args: for `exec("node", ...)`.
        says: what it prints, as a pattern of all of it.
        error: what is on stderr, as a pattern of a part.
    """

    code: str = ""
    args: tuple[str, ...] | None = None
    says: str = ""
    status: int = 0
    error: str = ""


_js = JavaScriptCase

CASES: dict[str, JavaScriptCase] = {
    "a value": _js("console.log(6 * 7)", says="42\n"),
    "values of all kinds": _js("console.log([1, 'a'], {b: null}, undefined, true, 10n, new Map([[1, 2]]))",
                                says=r"\[ 1, 'a' \] { b: null } undefined true 10n Map\(1\) { 1 => 2 }\n"),
    "standard error": _js("console.error('told')", error="^told\n$"),
    "an error": _js("throw new RangeError('too far')", status=1, error="RangeError: too far"),
    "a syntax error": _js("let =", status=1, error="SyntaxError"),
    "a rejected promise": _js("Promise.reject(new Error('why'))", status=1, error="Error: why"),
    "an error that is caught": _js("try { null.x } catch (e) { console.log(e.name) }", says="TypeError\n"),
    "promises before the end": _js("(async () => { await null; console.log(1); await null; console.log(2) })()",
                                    says="1\n2\n"),
    "microtasks before timers": _js("setTimeout(() => console.log('t')); queueMicrotask(() => console.log('m'));"
                                     " process.nextTick(() => console.log('n'))", says="n\nm\nt\n"),
    "timers in order": _js("setTimeout(() => console.log('late'), 20); setTimeout(() => console.log('soon'), 1)",
                            says="soon\nlate\n"),
    "JSON": _js("console.log(JSON.stringify(JSON.parse('{\"a\":[1,{\"b\":2}]}')))", says='{"a":\\[1,{"b":2}\\]}\n'),
    "a regular expression": _js("console.log('2026-11'.match(/(?<y>\\d+)-(\\d+)/).groups.y)", says="2026\n"),
    "classes": _js("class A { #x = 1; get x() { return this.#x } } class B extends A {} console.log(new B().x)",
                    says="1\n"),
    "a module of the folder": _js("console.log(require('./own').seven)", says="7\n"),
    "a module of the other kind": _js("import('./own.mjs').then(m => console.log(m.eight))", says="8\n"),
    "a module of Node's": _js("console.log(require('path').join('a', 'b'))", says="a/b\n"),
    "a module that isn't there": _js("require('/root/x')", status=1, error="Cannot find module"),
    "a status": _js("console.log(1); process.exit(3)", says="1\n", status=3),
    "arguments": _js(args=("page.js", "x", "y z"), says=r"\[ 'x', 'y z' \] 7\n"),
    "a value by -p": _js(args=("-p", "[1].concat(2)"), says=r"\[ 1, 2 \]\n"),
    "its version": _js(args=("--version",), says=r"v\d+\.\d+\.\d+\n"),
    "empty standard input": _js("process.stdin.on('data', d => console.log('data', d)).on('end', () =>"
                                 " console.log('end'))", says="end\n"),
    "no arguments": _js(args=(), status=2, error="^usage: node "),
    "a file that isn't there": _js(args=("none.js",), status=1, error="Cannot find module"),
    "the environment": _js("console.log(process.env.GIVEN, process.env.HOME)", says="yes undefined\n"),
    "the sandbox's users, not the host's": _js("console.log(require('fs').readFileSync('/etc/passwd', 'utf8')"
                                                ".split('\\n').length)", says="4\n"),
    "files of the host's": _js("for (const f of ['/etc/shadow', '/root', '/proc/1/environ', '/etc/machine-id'])"
                                " try { require('fs').readFileSync(f); console.log(f) } catch (e) {}"),
    "the system's files are read-only": _js("try { require('fs').writeFileSync('/usr/x', '') } catch (e) {"
                                             " console.log(e.code) }", says="EROFS\n|EACCES\n"),
    "a file of the folder": _js("const fs = require('fs'); fs.writeFileSync('made', 'x');"
                                 " console.log(fs.readFileSync('made', 'utf8'))", says="x\n"),
    "a worker": _js("new (require('worker_threads').Worker)('require(\"worker_threads\").parentPort.postMessage(7)',"
                     " {eval: true}).on('message', console.log)", says="7\n"),
    "code that V8 compiles": _js("let s = 0; for (let i = 0; i < 3e6; i++) s = (s + i * i) % 1000003; console.log(s)",
                                  says=r"\d+\n"),
    "WebAssembly": _js("WebAssembly.instantiate(new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,"
                        "102,0,0,10,6,1,4,0,65,42,11])).then(m => console.log(m.instance.exports.f()))", says="42\n"),
    "a program": _js("console.log(require('child_process').execFileSync('echo', ['hi']).toString())", says="hi\n\n"),
    "compressed bytes": _js("const z = require('zlib'); console.log(z.gunzipSync(z.gzipSync('x')).toString())",
                             says="x\n"),
    "a hash": _js("console.log(require('crypto').createHash('md5').update('').digest('hex'))",
                   says="d41d8cd98f00b204e9800998ecf8427e\n"),
    "fetch": _js("fetch('http://example.com').catch(e => console.log(e instanceof TypeError, e.message))",
                  says="true fetch failed: networking disabled: configure fetch_policy to enable\n"),
    "fetch that waits": _js("try { fetchSync('http://example.com') } catch (e) { console.log(e instanceof TypeError,"
                             " e.message) }",
                             says="true fetch failed: networking disabled: configure fetch_policy to enable\n"),
    "fetch that nobody catches": _js("fetch('http://example.com')", status=1,
                                      error="TypeError: fetch failed: networking disabled"),
    "fetch of data": _js("fetch('data:text/plain,hi').then(r => r.text()).then(console.log)", says="hi\n"),
    "fetch in a file": _js(args=("-e", "fetch(new URL('http://a/')).catch(e => console.log(e.name))"),
                            says="TypeError\n"),
}

#: What a program can see of the Node that runs it, beyond CASES: a Node that waited for its code says the same to the
#: letter, on both streams.
SEEN: dict[str, str] = {
    "what is there": (
        "const d = o => Object.entries(Object.getOwnPropertyDescriptors(o)).map(([k, v]) =>"
        " [k, Object.keys(v), v.writable, v.enumerable, v.configurable]); const M = require('module');"
        " const vm = require('vm'); console.log(JSON.stringify([process.argv, process.execArgv, process._eval,"
        " d(globalThis), d(process), d(module), Object.keys(require.cache), Object.keys(M._pathCache), d(M),"
        " d(M.prototype), d(vm.Script.prototype),"
        " d(Object.getPrototypeOf(vm.Script.prototype)), d(Error), RegExp.lastMatch, RegExp.input, RegExp.$1,"
        " module.children, module.paths, module.filename, __filename, __dirname, require.main === module,"
        " process.eventNames(), String(M.prototype._compile)]))"),
    "frames": (
        "Error.prepareStackTrace = (e, s) => s.map(c => [c.getTypeName(), c.getFunctionName(), c.getMethodName(),"
        " c.getFileName(), c.getLineNumber(), c.getColumnNumber(), c.isNative(), c.isToplevel(), c.isConstructor(),"
        " String(c.getThis()), typeof c.getFunction()]); console.log(JSON.stringify(new Error().stack))"),
    "a stack that is deep": "function f(n) { if (!n) throw new Error('deep'); f(n - 1) } f(20)",
    "all of a stack": "Error.stackTraceLimit = 50; throw new Error('all')",
    "an error on a later line": "console.log(1)\r\n\n  throw new Error('x')",
    "a stack that is caught": "try { null.x } catch (e) { console.log(e.stack) }",
    "a trace": "console.trace('here'); const o = {}; Error.captureStackTrace(o); console.log(o.stack)",
    "an error later": "(async () => { await null; throw new Error('later') })()",
    "an error in a timer": "setTimeout(() => { throw new Error('t') }, 5)",
    "a rejection of null": "Promise.reject(null)",
    "a text that is thrown": "throw 'text'",
    "an assertion": "require('assert').strictEqual(1, 2)",
    "a module that isn't there": "try { require('./none') } catch (e) { console.log(e.requireStack, e.stack) }",
    "a deprecation": "new Buffer(1); process.emitWarning('w')",
    "a syntax error": "foo(\n\nbar bar",
    "an import": "import fs from 'fs'; console.log(typeof fs.readFileSync)",
    "an import that fails": "import('./none.mjs')",
    "an import in text": "eval('im' + 'port(\"./none.mjs\")').catch(e => console.log(e.stack))",
    "an await at the top": "const x = await Promise.resolve(3); console.log(x, typeof require)",
    "a return at the top": "return 1",
    "types": "const x: number = 3; console.log(x)",
    "crypto by its name": "console.log(typeof crypto.createHash, typeof globalThis.crypto.subtle)",
    "sloppy, and global": "var a = 1; let b = 2; console.log(this === globalThis, globalThis.a, globalThis.b)",
    "a hash and a bang": "#!/usr/bin/env node\nconsole.log(1)",
    "nothing": "", "text of all kinds": "console.log('\u00e4\u20ac\U0001f600'); throw new Error('\u00fc')",
    "a name of its own": "throw new Error('a') //# sourceURL=foo.js",
    "who hears of errors": "process.on('uncaughtException', (e, o) => console.log(o, e.stack)); null.x",
    "an exit code": "process.on('exit', c => console.log('bye', c)); process.exitCode = 4",
    "a signal": "process.kill(process.pid, 'SIGKILL')", "an abort": "process.abort()",
    "standard input": (
        "const s = require('fs').fstatSync(0); console.log(s.isFIFO(), s.isCharacterDevice());"
        " process.stdin.on('end', () => console.log(process.stdin.constructor.name)).resume()"),
    "descriptors": "const fs = require('fs'); console.log(fs.readdirSync('/proc/self/fd').length, fs.openSync('/'))",
    "order": (
        "setImmediate(() => setTimeout(() => console.log('t'), 5)); process.nextTick(() =>"
        " console.log('n')); Promise.resolve().then(() => console.log('p'))"),
    "times": "const t = Date.now(); setTimeout(() => console.log(Date.now() - t >= 149), 150)",
    "a child with its options": (
        "require('fs').writeFileSync('child.js', 'console.log(process.execArgv.length, process.argv.length)');"
        " require('child_process').fork('child.js')"),
    "who is asked": "const a = require('async_hooks'); console.log(a.executionAsyncId(), a.triggerAsyncId())",
}
