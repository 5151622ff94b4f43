"""
JavaScript in a work folder: a real Node, confined and bounded like everything else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import leeward
from kit.live_daemon import LiveDaemon

pytestmark = pytest.mark.needs("usr-node")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "4") as made:
        yield made


@pytest.fixture(scope="module")
def work(daemon: LiveDaemon) -> Iterator[leeward.WorkdirSandbox]:
    with (tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder,
          leeward.WorkdirSandbox(folder, env_vars={"GIVEN": "yes"}, cpu=5, socket=daemon.socket) as work):
        work.write_file("own.js", "exports.seven = 7")
        work.write_file("own.mjs", "export const eight = 8")
        work.write_file("page.js", "console.log(process.argv.slice(2), require('./own').seven)")
        yield work


@dataclass(frozen=True, slots=True)
class Case:
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


CASES: dict[str, Case] = {
    "a value": Case("console.log(6 * 7)", says="42\n"),
    "values of all kinds": Case("console.log([1, 'a'], {b: null}, undefined, true, 10n, new Map([[1, 2]]))",
                                says=r"\[ 1, 'a' \] { b: null } undefined true 10n Map\(1\) { 1 => 2 }\n"),
    "standard error": Case("console.error('told')", error="^told\n$"),
    "an error": Case("throw new RangeError('too far')", status=1, error="RangeError: too far"),
    "a syntax error": Case("let =", status=1, error="SyntaxError"),
    "a rejected promise": Case("Promise.reject(new Error('why'))", status=1, error="Error: why"),
    "an error that is caught": Case("try { null.x } catch (e) { console.log(e.name) }", says="TypeError\n"),
    "promises before the end": Case("(async () => { await null; console.log(1); await null; console.log(2) })()",
                                    says="1\n2\n"),
    "microtasks before timers": Case("setTimeout(() => console.log('t')); queueMicrotask(() => console.log('m'));"
                                     " process.nextTick(() => console.log('n'))", says="n\nm\nt\n"),
    "timers in order": Case("setTimeout(() => console.log('late'), 20); setTimeout(() => console.log('soon'), 1)",
                            says="soon\nlate\n"),
    "JSON": Case("console.log(JSON.stringify(JSON.parse('{\"a\":[1,{\"b\":2}]}')))", says='{"a":\\[1,{"b":2}\\]}\n'),
    "a regular expression": Case("console.log('2026-11'.match(/(?<y>\\d+)-(\\d+)/).groups.y)", says="2026\n"),
    "classes": Case("class A { #x = 1; get x() { return this.#x } } class B extends A {} console.log(new B().x)",
                    says="1\n"),
    "a module of the folder": Case("console.log(require('./own').seven)", says="7\n"),
    "a module of the other kind": Case("import('./own.mjs').then(m => console.log(m.eight))", says="8\n"),
    "a module of Node's": Case("console.log(require('path').join('a', 'b'))", says="a/b\n"),
    "a module that isn't there": Case("require('/root/x')", status=1, error="Cannot find module"),
    "a status": Case("console.log(1); process.exit(3)", says="1\n", status=3),
    "arguments": Case(args=("page.js", "x", "y z"), says=r"\[ 'x', 'y z' \] 7\n"),
    "a value by -p": Case(args=("-p", "[1].concat(2)"), says=r"\[ 1, 2 \]\n"),
    "its version": Case(args=("--version",), says=r"v\d+\.\d+\.\d+\n"),
    "empty standard input": Case("process.stdin.on('data', d => console.log('data', d)).on('end', () =>"
                                 " console.log('end'))", says="end\n"),
    "no arguments": Case(args=(), status=2, error="^usage: node "),
    "a file that isn't there": Case(args=("none.js",), status=1, error="Cannot find module"),
    "the environment": Case("console.log(process.env.GIVEN, process.env.HOME)", says="yes undefined\n"),
    "the sandbox's users, not the host's": Case("console.log(require('fs').readFileSync('/etc/passwd', 'utf8')"
                                                ".split('\\n').length)", says="4\n"),
    "files of the host's": Case("for (const f of ['/etc/shadow', '/root', '/proc/1/environ', '/etc/machine-id'])"
                                " try { require('fs').readFileSync(f); console.log(f) } catch (e) {}"),
    "the system's files are read-only": Case("try { require('fs').writeFileSync('/usr/x', '') } catch (e) {"
                                             " console.log(e.code) }", says="EROFS\n|EACCES\n"),
    "a file of the folder": Case("const fs = require('fs'); fs.writeFileSync('made', 'x');"
                                 " console.log(fs.readFileSync('made', 'utf8'))", says="x\n"),
    "a worker": Case("new (require('worker_threads').Worker)('require(\"worker_threads\").parentPort.postMessage(7)',"
                     " {eval: true}).on('message', console.log)", says="7\n"),
    "code that V8 compiles": Case("let s = 0; for (let i = 0; i < 3e6; i++) s = (s + i * i) % 1000003; console.log(s)",
                                  says=r"\d+\n"),
    "WebAssembly": Case("WebAssembly.instantiate(new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,"
                        "102,0,0,10,6,1,4,0,65,42,11])).then(m => console.log(m.instance.exports.f()))", says="42\n"),
    "a program": Case("console.log(require('child_process').execFileSync('echo', ['hi']).toString())", says="hi\n\n"),
    "compressed bytes": Case("const z = require('zlib'); console.log(z.gunzipSync(z.gzipSync('x')).toString())",
                             says="x\n"),
    "a hash": Case("console.log(require('crypto').createHash('md5').update('').digest('hex'))",
                   says="d41d8cd98f00b204e9800998ecf8427e\n"),
    "fetch": Case("fetch('http://example.com').catch(e => console.log(e instanceof TypeError, e.message))",
                  says="true fetch failed: networking disabled: configure fetch_policy to enable\n"),
    "fetch that waits": Case("try { fetchSync('http://example.com') } catch (e) { console.log(e instanceof TypeError,"
                             " e.message) }",
                             says="true fetch failed: networking disabled: configure fetch_policy to enable\n"),
    "fetch that nobody catches": Case("fetch('http://example.com')", status=1,
                                      error="TypeError: fetch failed: networking disabled"),
    "fetch of data": Case("fetch('data:text/plain,hi').then(r => r.text()).then(console.log)", says="hi\n"),
    "fetch in a file": Case(args=("-e", "fetch(new URL('http://a/')).catch(e => console.log(e.name))"),
                            says="TypeError\n"),
}


@pytest.mark.parametrize("name", CASES)
def test_node_does_what_the_table_says(work: leeward.WorkdirSandbox, name: str) -> None:
    """
    By its status, and by what it prints. No system call of it is refused.
    """
    case = CASES[name]
    got = work.exec_js(case.code) if case.args is None else work.exec("node", case.args)

    assert case.status == got.exit_code, got.stderr_text
    assert re.fullmatch(case.says, got.text), got.text
    assert re.search(case.error, got.stderr_text), got.stderr_text
    assert case.error or not got.stderr_text
    assert not got.denied


def test_an_endless_loop_is_a_timeout(daemon: LiveDaemon) -> None:
    """
    Of time, or of the processor's time where that is shorter.
    """
    for limits, limit in (({"timeout": 0.5}, leeward.Limit.TIME), ({"cpu": 0.5}, leeward.Limit.CPU)):
        with (tempfile.TemporaryDirectory() as folder,
              leeward.WorkdirSandbox(folder, socket=daemon.socket, **limits) as work):  # type: ignore[arg-type]
            with pytest.raises(leeward.Timeout) as caught:
                work.exec_js("console.log('begun'); for (;;);")
            assert limit is caught.value.limit


@pytest.mark.parametrize("code", [
    "const a = []; for (;;) a.push(new Array(1e4).fill(1.5))",  # the heap, bit by bit
    "const a = []; for (;;) a.push(Buffer.alloc(1e6, 1))",      # beside the heap
    "new Array(9e7).fill(1.5)",                                 # the heap, at once
    "let s = 'x'.repeat(1 << 20); const a = []; for (;;) a.push([...s])",
])
def test_too_much_memory_is_out_of_memory(daemon: LiveDaemon, code: str) -> None:
    """
    And no abort, nor a core file; the next code runs.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", timeout=120, socket=daemon.socket) as work):
        got = work.exec_js(code)
        assert (leeward.Outcome.OUT_OF_MEMORY, leeward.Limit.MEMORY, 137) == (got.outcome, got.limit, got.exit_code)
        assert [] == work.list_dir()
        assert "1\n" == work.exec_js("console.log(1)").text


def test_most_of_the_memory_is_there_for_the_heap(daemon: LiveDaemon) -> None:
    """
    What is kept and fits is no reason to run out of it.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="256M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 120; i++) kept.push(new Array(1 << 17).fill(1.5));"
                           " console.log(kept.length)")
    assert ("120\n", 0) == (got.text, got.exit_code), got


def test_garbage_is_no_reason_to_run_out_of_memory(daemon: LiveDaemon) -> None:
    """
    A heap that may be as large as all of the memory is collected before it is.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 5e5; i++) kept.push({i}); let gone;"
                           " for (let i = 0; i < 2e7; i++) gone = {i}; console.log(kept.length)")
    assert ("500000\n", 0) == (got.text, got.exit_code), got
