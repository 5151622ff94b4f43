"""Live sandboxes with the real thing: programs under all locks, what stays between them, and every way to end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leeward
from kit.box import Box
from kit.live_daemon import PATIENCE, LiveDaemon, descendants, watched
from kit.sessions import Wire
from kit.waiting import poll_until
from leeward.spec.outcome import Limit, Outcome

WORKERS = 4
DAEMON = ("--pool-size", str(WORKERS))


def test_files_stay_and_processes_see_each_other(box: leeward.Sandbox) -> None:
    """One folder, one process table, one set of limits."""
    assert b"/workspace\n" == box.run(["pwd"]).stdout
    box.shell("mkdir -p a/b && echo kept > a/b/c")
    assert b"kept\n" == box.run(["cat", "b/c"], cwd="/workspace/a").stdout
    server = box.start(["sleep", "1000"], title="a server")
    assert str(server.pid).encode() in box.shell("ls /proc").stdout.split()
    assert 1 == box.info()["processes"]
    server.kill()
    ended = server.wait(PATIENCE)
    assert ended is not None
    assert (137, Outcome.SIGNALLED) == (ended.exit_code, ended.outcome)


def test_a_line_may_begin_with_a_hyphen(box: leeward.Sandbox) -> None:
    """It isn't an option of the shell's."""
    assert [(127, "/bin/sh: 1: -c: not found\n"), (127, "/bin/sh: 1: -e: not found\n")] == [
        (done.exit_code, done.stderr_text) for done in (box.shell("-c 'echo x'"), box.start("-e").result())]


def test_the_environment_is_the_sandboxs(daemon: LiveDaemon) -> None:
    """With what the client added, and nothing of the daemon's."""
    with leeward.Sandbox(socket=daemon.socket, env={"A": "1", "B": "1"}) as box:
        got = box.run(["env"], env={"B": "2", "É": "ü"}).stdout_text.splitlines()

    assert {"A=1", "B=2", "É=ü", "HOME=/workspace", "USER=sandbox"} <= set(got)
    assert not [line for line in got if line.startswith(("LEEWARD", "PYTHONPATH", "SSH"))]


def test_programs_that_cannot_be_started(box: leeward.Sandbox) -> None:
    """As a shell has it, for a program, a path and a folder."""
    said = {name: (got.exit_code, got.stderr_text) for name, got in {
        "missing": box.run(["no-such-program"]), "path": box.run(["/no/such"]), "file": box.run(["/etc/passwd"]),
        "folder": box.run(["true"], cwd="/no/such")}.items()}

    assert (127, "sh: no-such-program: not found\n") == said["missing"]
    assert (127, "sh: /no/such: No such file or directory\n") == said["path"]
    assert (126, "sh: /etc/passwd: Permission denied\n") == said["file"]
    assert (126, "sh: cannot start in /no/such: No such file or directory\n") == said["folder"]


def test_limits_end_the_program_and_all_below_it(box: leeward.Sandbox) -> None:
    """And what was written before is there."""
    late = box.shell("echo early; setsid sleep 1001 & sleep 1002", timeout=0.5)
    much = box.shell("yes", output=100_000, overflow="end")

    assert (Outcome.TIMED_OUT, Limit.TIME, 124, b"early\n") == (late.outcome, late.limit, late.exit_code, late.stdout)
    assert (Outcome.OUTPUT_LIMIT, 100_000) == (much.outcome, len(much.stdout))
    assert b"" == box.shell("grep -l 'sleep.100[12]' /proc/[0-9]*/cmdline").stdout
    assert b"still here\n" == box.run(["echo", "still here"]).stdout


def test_memory_ends_a_program_and_not_the_sandbox(daemon: LiveDaemon) -> None:
    """The program that takes too much is the one that goes. Where no controller counts, the whole sandbox is, and says so."""
    with leeward.Sandbox(socket=daemon.socket, memory="64M") as box:
        got = box.shell("head -c 200000000 /dev/zero | tail -c 190000000 | wc -c")
        assert b"190000000\n" != got.stdout
        assert _reason(box) in ("", "memory memory")
        with daemon.client() as client:
            counted = "active" == client.status()["layers"]["cgroup"]["state"]
        if counted:
            assert b"ok\n" == box.run(["echo", "ok"]).stdout


def _reason(box: leeward.Sandbox) -> str:
    """Why it is over, "" if it isn't."""
    try:
        box.info()
    except leeward.SandboxOver as over:
        return f"{over.reason} {over.limit}"
    return ""


def test_a_process_is_talked_to(box: leeward.Sandbox) -> None:
    """Line by line, from two threads."""
    process = box.start("while read line; do echo \"got $line\"; done; echo end >&2", stdin=None)
    for number in range(20):
        process.write(f"{number}\n")
        assert f"got {number}\n".encode() == b"".join(chunk.data for chunk in process.read(PATIENCE))
    process.close_stdin()
    assert [("stderr", b"end\n")] == [(chunk.stream, chunk.data) for chunk in process]


def test_a_signal_reaches_the_program(box: leeward.Sandbox) -> None:
    """Which may handle it."""
    process = box.start("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done")
    assert b"ready\n" == process.read(PATIENCE)[0].data
    assert process.signal(signal.SIGUSR1)
    result = process.result()

    assert (7, True) == (result.exit_code, result.stdout.endswith(b"caught\n"))


def test_the_last_output_tells_of_the_end(box: leeward.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is asked for, and a reader that comes later is told the same."""
    asked, ask = list[str](), box.ask
    monkeypatch.setattr(box, "ask", lambda op, *rest: asked.append(op) or ask(op, *rest))
    process = box.start("echo out; exit 7")
    result = process.result()

    assert (7, b"out\n") == (result.exit_code, result.stdout)
    assert (7, b"") == (process.wait(0).exit_code, process.wait().stdout)
    assert {"process_start", "process_read"} == set(asked)
    assert result.cpu_time == box.process(process.number).wait().cpu_time


SERVES = """\
import os, socket
for name in ("/tmp/socket", "\\0name"):
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    os.write(1, b"ready\\n")
    server.accept()[0].sendall(b"hello")
"""
ASKS = """\
import socket
client = socket.socket(socket.AF_UNIX)
client.connect({!r})
print(client.recv(5))
"""


@pytest.mark.parametrize("memory", [None, "300m"])
def test_programs_of_a_sandbox_reach_each_other(daemon: LiveDaemon, memory: str | None) -> None:
    """By their sockets, with a path or an abstract name: programs, and kernels."""
    with leeward.Sandbox(socket=daemon.socket, memory=memory) as box, box.kernel() as kernel:
        server = box.start(["python3", "-c", SERVES])
        assert b"ready\n" == server.read(PATIENCE)[0].data
        assert "b'hello'\n" == box.run(["python3", "-c", ASKS.format("/tmp/socket")]).stdout_text
        assert b"ready\n" == server.read(PATIENCE)[0].data
        assert "b'hello'\n" == kernel.execute(ASKS.format("\0name")).stdout_text
        assert server.result().ok


def test_a_slow_reader_slows_its_own_process_alone(box: leeward.Sandbox) -> None:
    """It waits in write(2) until somebody reads, and then writes on."""
    process = box.start("for i in 1 2 3 4 5 6 7 8 9 10; do head -c 100000 /dev/zero; done; echo done > flag")
    for _ in range(20):
        assert b"x\n" == box.run(["echo", "x"]).stdout
    assert 0 != box.shell("test -e flag").exit_code
    total = sum(len(chunk.data) for chunk in process)

    assert 1_000_000 == total
    assert 0 == box.shell("test -e flag").exit_code


def test_each_reader_gets_all_output_from_its_first_request_on(box: leeward.Sandbox) -> None:
    process = box.start("read x; seq 3; echo err >&2", stdin=None)
    readers = [process, *(box.process(process.number) for _ in range(2))]
    for each in readers:
        assert [] == each.read(0)
    process.write("\n")
    for each in readers:
        said = [(chunk.stream, chunk.data) for chunk in each]
        assert (b"1\n2\n3\n", b"err\n") == tuple(b"".join(data for of, data in said if of == stream)
                                                for stream in ("stdout", "stderr"))


def test_many_at_once(daemon: LiveDaemon) -> None:
    """In one sandbox, within its limit on processes."""
    async def go() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket, processes=24) as box:
            results = await asyncio.gather(*(box.shell(f"sleep 0.2; echo {number}") for number in range(10)))
            assert [f"{number}\n" for number in range(10)] == [result.stdout_text for result in results], results

    asyncio.run(go())
    daemon.idle()


def test_another_program_attaches(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """And finds files and processes; when it goes, they stay."""
    process = box.start("echo one; read x; echo $x", stdin=None)
    done = daemon.run("shell", box.id, "--", "sh", "-c", "echo from outside | tee file; exit 5")
    assert (5, b"from outside\n") == (done.returncode, done.stdout)
    other = leeward.Sandbox.attach(box.id, socket=daemon.socket)
    other.process(process.number).write("two\n")
    other.detach()

    assert b"one\ntwo\n" == process.result().stdout
    assert b"from outside\n" == box.run(["cat", "file"]).stdout


def test_closing_ends_everything_in_it(daemon: LiveDaemon) -> None:
    """Also what has left its session and its parent."""
    before = set(descendants(daemon.process.pid))
    box = leeward.Sandbox(socket=daemon.socket)
    box.start(["sleep", "1003"])
    box.shell("setsid sh -c 'sleep 1004 & sleep 1005' >/dev/null 2>&1 &")
    box.shell("(trap '' TERM HUP INT; (sleep 1006 &) ) </dev/null >/dev/null 2>&1 &")
    inside: list[int] = []
    while sum(b"sleep\0" in _command(pid) for pid in inside) < 4:
        inside = list(set(descendants(daemon.process.pid)) - before)
    with watched(inside) as wait:
        box.close()
        assert [] == wait(PATIENCE)
    daemon.idle()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_kill_answers_waiting_requests(box: leeward.Sandbox) -> None:
    """With the reason."""
    found: list[leeward.SandboxOver] = []

    def run() -> None:
        with pytest.raises(leeward.SandboxOver) as caught:
            box.run(["sleep", "1000"])
        found.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    while not box.info()["processes"]:
        pass
    box.kill()
    thread.join(PATIENCE)

    assert ["killed"] == [error.reason for error in found]


def test_the_daemon_ends_and_starts_anew(tmp_path: Path) -> None:
    """Its sandboxes are over, for that reason, and nothing of them is left."""
    with LiveDaemon(tmp_path) as first:
        box = leeward.Sandbox(socket=first.socket)
        box.start(["sleep", "1000"])
        inside = descendants(first.process.pid)
        with watched(inside) as wait:
            assert 0 == first.end()
            assert [] == wait(PATIENCE)
    with LiveDaemon(tmp_path) as second:
        with pytest.raises(leeward.SandboxOver, match="started anew") as caught:
            leeward.Sandbox.attach(box.id, socket=second.socket)
        assert "restart" == caught.value.reason
    box.close()


def _keeper(daemon: LiveDaemon, box: leeward.Sandbox) -> int:
    """The keeper of *box*, in which a program runs after this."""
    before = set(descendants(daemon.process.pid))
    box.start(["sleep", "1000"])
    sleepers: list[int] = []
    while not sleepers:
        sleepers = [pid for pid in set(descendants(daemon.process.pid)) - before if b"sleep\0" in _command(pid)]
    return int(_stat(sleepers[0])[1])


def _stat(pid: int) -> list[str]:
    """The fields after the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_keeper_that_dies_ends_its_sandbox_alone(daemon: LiveDaemon) -> None:
    """Which says so; the next one works."""
    with leeward.Sandbox(socket=daemon.socket) as other, leeward.Sandbox(socket=daemon.socket) as box:
        other.run(["true"])
        os.kill(_keeper(daemon, box), signal.SIGKILL)
        while any(box.id == row["sandbox"] for row in leeward.Sandbox.list(socket=daemon.socket)):
            pass
        with pytest.raises(leeward.SandboxOver) as caught:
            box.info()
        assert "lost" == caught.value.reason
        assert b"x\n" == other.run(["echo", "x"]).stdout
    with leeward.Sandbox(socket=daemon.socket) as again:
        assert b"x\n" == again.run(["echo", "x"]).stdout
    daemon.idle()


def test_a_file_call_ends_with_its_sandbox(daemon: LiveDaemon) -> None:
    """Not as one whose process alone has ended."""
    with leeward.Sandbox(socket=daemon.socket) as box, ThreadPoolExecutor(1) as pool:
        keeper = _keeper(daemon, box)
        before = set(descendants(keeper))
        box.files.write("evil", b"a" * 40 + b"!")
        [helper] = set(descendants(keeper)) - before
        begun = int(_stat(helper)[11])  # of processor time
        call = pool.submit(box.files.grep, "(a+)+$", path="evil", timeout=60.0)
        poll_until(lambda: int(_stat(helper)[11]) > begun + 10, "the call runs")
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(leeward.SandboxOver) as caught:
            call.result(PATIENCE)
        assert "lost" == caught.value.reason
    daemon.idle()


def test_a_sandbox_waits_for_a_worker() -> None:
    """In the queue, as a job does, and jobs behind it."""
    with Box(pool_size=1, max_sessions=1) as real, Wire(real) as wire:
        peer = wire.peer()
        job = peer.send("execute", code=b"import time; time.sleep(60)")
        opening = peer.send("sandbox_open")
        behind = peer.send("execute", code=b"pass")
        peer.ask("ping")
        assert not peer.has(opening)
        peer.ask("cancel", target=job, kill=True)
        name = peer.wait(opening)["ok"]["sandbox"]
        assert peer.has(job)
        assert not peer.has(behind)
        assert b"2\n" == peer.command(name, "echo", "2")["stdout"]
        peer.ask("sandbox_kill", sandbox=name)
        peer.wait(behind)
        assert b"3\n" == peer.ask("execute", code=b"print(3)")["stdout"]


def test_times_are_measured(box: leeward.Sandbox) -> None:
    """Of the program and what it waited for."""
    start = time.monotonic()
    got = box.shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.2")
    took = time.monotonic() - start

    assert 0.2 <= got.duration <= took
    assert 0 < got.cpu_time < took
    assert 1 << 18 < got.memory_peak < 256 << 20


# --- Python -------------------------------------------------------------------


def test_code_in_a_fresh_interpreter(box: leeward.Sandbox) -> None:
    """With the sandbox's files, and options as for a client's execute."""
    box.shell("echo data > f")
    got = box.execute("import os, sys; print(open('f').read(), open('given').read(), sys.argv[1:], input(),"
                      " os.environ['K']); open('made', 'w').write('x'); sys.exit(3)", args=["a"], stdin="in\n",
                      env={"K": "v"}, files={"given": b"1"}, collect=["made"])
    assert (3, b"data\n 1 ['a'] in v\n", {"made": b"x"}) == (got.exit_code, got.stdout, dict(got.files))
    assert b"x" == box.run(["cat", "made"]).stdout
    raised = box.execute("x = 1\n1 / 0")
    assert raised.error is not None
    assert ("ZeroDivisionError", Outcome.RAISED) == (raised.error.type, raised.outcome)
    assert "NameError" in box.execute("print(x)").stderr_text
    late = box.execute("print('early', flush=True)\nwhile True: pass", timeout=0.3)
    assert (Outcome.TIMED_OUT, b"early\n") == (late.outcome, late.stdout)
    assert 0 == box.info()["processes"]


def test_kernels_keep_their_own_state(box: leeward.Sandbox) -> None:
    """And share the files."""
    with box.kernel() as one, box.kernel() as other:
        one.execute("import math\nx = 41")
        assert b"42\n" == one.execute("print(x + 1)").stdout
        assert b"False\n" == other.execute("print('x' in globals())").stdout
        one.execute("open('from-one', 'w').write('1')")
        assert b"1\n" == other.execute("print(open('from-one').read())").stdout
        assert 2 == box.info()["processes"]
    assert 0 == box.info()["processes"]


def test_a_kernels_requests_wait_in_order(daemon: LiveDaemon) -> None:
    """Also before it has a process."""
    async def go() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket) as box:
            async with await box.kernel() as kernel:
                results = await asyncio.gather(kernel.execute("n = []"), *(
                    kernel.execute(f"n.append({number}); print(n)") for number in range(10)))
            assert [f"{[*range(number + 1)]}\n" for number in range(10)] == [
                result.stdout_text for result in results[1:]]
            assert 0 == (await box.info())["processes"]  # the kernel was closed

    asyncio.run(go())
    daemon.idle()


def test_a_kernel_is_interrupted_and_lives_on(box: leeward.Sandbox) -> None:
    """As it does at its time limit, if its code heeds the interrupt; else that ends it, and a reset gives another."""
    kernel = box.kernel()
    kernel.execute("x = 1")
    found: list[leeward.Result] = []
    thread = threading.Thread(target=lambda: found.append(kernel.execute("import time; time.sleep(1000)")))
    thread.start()
    while not kernel.interrupt():
        pass
    thread.join(PATIENCE)
    assert [130] == [result.exit_code for result in found]
    assert b"1\n" == kernel.execute("print(x)").stdout
    assert Outcome.TIMED_OUT is kernel.execute("while True: pass", timeout=0.2).outcome
    assert b"1\n" == kernel.execute("print(x)").stdout
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    assert Outcome.TIMED_OUT is kernel.execute(deaf, timeout=0.2).outcome
    with pytest.raises(leeward.SessionOver, match="time limit"):
        kernel.execute("print(x)")
    assert b"x\n" == box.run(["echo", "x"]).stdout
    kernel.reset()
    assert b"False\n" == kernel.execute("print('x' in globals())").stdout
    kernel.close()
    with pytest.raises(leeward.SessionOver, match="no kernel"):
        kernel.execute("1")


def test_a_kernel_that_exits_says_so(box: leeward.Sandbox) -> None:
    """To the next request."""
    kernel = box.kernel()
    assert 7 == kernel.execute("import os; os._exit(7)").exit_code
    with pytest.raises(leeward.SessionOver, match="has exited"):
        kernel.execute("1")


def test_a_waiting_python_request_is_told_of_the_sandboxs_end(box: leeward.Sandbox) -> None:
    """In a fresh interpreter and in a kernel."""
    found: list[str] = []
    kernel = box.kernel()

    def run(what: leeward.Sandbox | leeward.Kernel) -> None:
        with pytest.raises(leeward.SandboxOver) as caught:
            what.execute("import time; time.sleep(1000)")
        found.append(caught.value.reason)

    threads = [threading.Thread(target=run, args=(what,)) for what in (box, kernel, kernel)]
    for thread in threads:
        thread.start()
    while box.info()["calls"] < 3:
        pass
    box.kill()
    for thread in threads:
        thread.join(PATIENCE)

    assert ["killed"] * 3 == found


def test_a_sandbox_reports_its_memory_and_refused_calls(box: leeward.Sandbox) -> None:
    """Memory now, and the peak; refused calls of all processes that have ended in it."""
    box.shell("head -c 30000000 /dev/zero > /tmp/large")
    poll_until(lambda: 30_000_000 <= box.info()["memory"], "its files aren't in its memory")
    box.shell("rm /tmp/large")
    poll_until(lambda: box.info()["memory"] < 30_000_000 <= box.info()["memory_peak"], "its memory is what it was")
    assert {} == box.info()["denied"]
    for _ in range(2):
        box.execute("import os\ntry: os.chroot('/')\nexcept OSError: pass")
    assert {"chroot": 2} == box.info()["denied"]


def test_set_timeout_is_the_lifetime_from_now_on(box: leeward.Sandbox) -> None:
    """As `extend` has it."""
    box.set_timeout(50)
    assert 0 < box.info()["left"] <= 50


def test_some_jobs_later_an_interpreter_waits_for_the_next(box: leeward.Sandbox) -> None:
    """It has run nothing, is in no list, and another is started when a program of the sandbox has ended it."""
    def job() -> str:
        pid, seen = box.execute("import os; print(os.getpid(), 'seen' in globals()); seen = 1").stdout_text.split()
        assert "False" == seen
        return pid

    def waited() -> bool:
        there = box.run(["sh", "-c", "cd /proc; echo [0-9]*"]).stdout_text.split()
        return job() in there

    poll_until(waited, "an interpreter that waits")
    assert all(row["over"] for row in box.processes())
    for _ in range(3):
        box.shell("kill -9 -1")
        job()
