"""
JavaScript in a work folder, as cases: code, what it prints, how it ends.
"""

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
