"""
Code that reaches a kernel by a number of the connection's, on the fast path: the same as by the kernel's name, and
every other request to that kernel, of whatever connection, finds what it would find without the fast path.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

import leeward
from integration.test_begin_early import LOCKS_SEEN
from kit import reactors
from kit.live_daemon import PATIENCE, LiveDaemon, held
from kit.waiting import poll_until
from leeward.client.connection import BlockingConnection
from leeward.client.results import result_of
from leeward.daemon.serving.sandboxes import FIRST_SEAT, MOST_SEATS
from leeward.errors import DaemonError, RequestRejected, SandboxOver, SessionOver
from leeward.spec.outcome import Limit, Outcome
from leeward.wire.job_frames import NOTHING_FRAME

DAEMON, REACTORS = ("--pool-size", "4"), reactors.WAYS


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket, env={"GIVEN": "here"}) as made:
        yield made
    daemon.idle()


@pytest.fixture
def kernel(box: leeward.Sandbox) -> leeward.Kernel:
    """One that takes the fast path from the next call on."""
    made = box.kernel()
    for _ in range(3):
        assert b"1\n" == made.execute("print(1)").stdout
    return made


class Bound:
    """A kernel bound on a connection of the test's own."""

    def __init__(self, socket: str, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
        self.connection = BlockingConnection(socket)
        reply, _ = self.connection.call("kernel_bind", {"sandbox": box.id, "kernel": kernel.number})
        assert reply.ok is not None
        self.number = reply.ok["session"]

    def execute(self, code: str) -> leeward.Result:
        return result_of(*self.connection.call("execute", {"session": self.number, "code": code.encode()}))

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def test_state_values_output_and_errors_are_those_of_the_kernel(box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """What is printed, shown and raised; variables of before; the sandbox's own environment."""
    assert (b"", None) == ((quiet := kernel.execute("x = 20")).stdout, quiet.value)
    assert b"21\n" == kernel.execute("print(x + 1)").stdout
    assert "22" == kernel.execute("x + 2").value
    assert "22" == kernel.execute("_").value
    raised = kernel.execute("1 / 0")
    assert raised.error is not None
    assert (Outcome.RAISED, "ZeroDivisionError") == (raised.outcome, raised.error.type)
    assert "'here'" == kernel.execute("import os; os.environ['GIVEN']").value
    assert b"both\n" == kernel.execute("import sys; print('both'); print('err', file=sys.stderr)").stdout
    assert [{"text/plain": "7"}] == [dict(each) for each in kernel.execute("display(7)").results]
    assert [] == list(kernel.execute("pass").results)


def test_options_go_by_the_kernels_name_in_between(kernel: leeward.Kernel) -> None:
    for at in range(3):
        assert f"{at}\n".encode() == kernel.execute(f"print({at})").stdout
        assert kernel.execute("1 + 1", display=False).value is None
        assert {"f": b"x"} == dict(kernel.execute("open('f', 'w').write('x')", collect=["f"]).files)


def test_code_that_shows_nothing_has_a_number_of_its_own(box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """By turns with code that does; both see the same state."""
    kernel.execute("count = 0", display=False)
    for at in range(1, 9):
        shown = kernel.execute("count += 1\ncount", display=bool(at % 3))
        assert (str(at) if at % 3 else None) == shown.value
    with box._connections.one() as connection:
        numbers = {display: number for (_, _, display), number in connection.seats.items()}
    assert {True, False} == set(numbers)
    assert FIRST_SEAT <= min(numbers.values()) < max(numbers.values())


def test_tasks_reach_a_kernel_by_its_number(daemon: LiveDaemon) -> None:
    """In the order of their calls, also while it gets the number; and by name, where the connection is gone."""
    async def use() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket) as box:
            kernel = await box.kernel()
            await kernel.execute("seen = []")
            await asyncio.gather(*(kernel.execute(f"seen.append({at})", display=bool(at % 2)) for at in range(30)))
            for _ in range(4):
                assert (str([*range(30)]), None) == ((await kernel.execute("seen")).value,
                                                     (await kernel.execute("seen", display=False)).value)
            state = box._connections._calls._state()
            assert {True, False} == {display for each in state.connections for _, _, display in each.seats}
            assert FIRST_SEAT <= min(number for each in state.connections for number in each.seats.values())
            for each in state.connections:
                each._socket.shutdown(socket.SHUT_RDWR)
            for _ in range(4):
                assert "30" == (await kernel.execute("len(seen)")).value
            slow = asyncio.create_task(kernel.execute("open('/tmp/begun', 'w')\nimport time; time.sleep(100)"))
            while not await box.files.exists("/tmp/begun"):
                await asyncio.sleep(0)
            slow.cancel()
            with pytest.raises(SessionOver):
                await kernel.execute("seen")
    asyncio.run(use())
    daemon.idle()


def test_refused_calls_are_reported(kernel: leeward.Kernel) -> None:
    """And those of one job alone."""
    code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert [1, 1] == [kernel.execute(code).denied.get("unshare") for _ in range(2)]
    assert {} == kernel.execute("print(1)").denied


def test_times_and_memory_are_reported(kernel: leeward.Kernel) -> None:
    busy = kernel.execute("import time\nt = time.process_time()\nwhile time.process_time() - t < 0.05: pass")
    idle = kernel.execute("print(1)")
    assert 0.04 < busy.cpu_time < 5
    assert 0.04 < busy.duration
    assert idle.cpu_time < 0.04
    assert idle.memory_peak >= busy.memory_peak


def test_two_connections_take_turns(daemon: LiveDaemon, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """Each sees what the other one has left, and none is answered with the other's output."""
    kernel.execute("count = 0")
    with Bound(daemon.socket, box, kernel) as other:
        for at in range(1, 41):
            user = other.execute if at % 3 else kernel.execute
            assert f"{at}\n".encode() == user("count += 1; print(count)").stdout
    assert "40" == kernel.execute("count").value


def test_many_threads_on_many_connections(daemon: LiveDaemon, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    kernel.execute("count = 0")
    got: list[int] = []

    def calls() -> None:
        with Bound(daemon.socket, box, kernel) as mine:
            got.extend(int(mine.execute("count += 1; print(count)").stdout) for _ in range(25))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert list(range(1, 101)) == sorted(got)


def test_a_request_that_waits_is_served_behind_one_of_the_fast_path(daemon: LiveDaemon, box: leeward.Sandbox,
                                                                     kernel: leeward.Kernel) -> None:
    got: list[leeward.Result] = []
    code = """
import os, time
open("/tmp/begun", "w")
while not os.path.exists("/tmp/go"): time.sleep(0.005)
print("slow")
served = "slow"
"""
    slow = threading.Thread(target=lambda: got.append(kernel.execute(code)))
    slow.start()
    poll_until(lambda: box.files.exists("/tmp/begun"), "a file inside a sandbox")
    with Bound(daemon.socket, box, kernel) as other:
        quick = threading.Thread(target=lambda: got.append(other.execute("print('quick behind', served)")))
        quick.start()
        box.files.write("/tmp/go", b"")
        for thread in (slow, quick):
            thread.join(PATIENCE)
    assert {b"slow\n", b"quick behind slow\n"} == {each.stdout for each in got}


def test_an_interrupt_and_a_time_limit_end_a_job_of_the_fast_path(daemon: LiveDaemon) -> None:
    with leeward.Sandbox(socket=daemon.socket, timeout=1) as box:
        kernel = box.kernel()
        for _ in range(3):
            kernel.execute("import time; x = 1")
        late = kernel.execute("while True: time.sleep(0.01)")
        assert (Outcome.TIMED_OUT, Limit.TIME) == (late.outcome, late.limit)
        assert "1" == kernel.execute("x").value  # it has heeded the interrupt
    with leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        for _ in range(3):
            kernel.execute("import time; x = 1")
        got: list[leeward.Result] = []
        runs = threading.Thread(target=lambda: got.append(kernel.execute(
            "open('/tmp/begun', 'w')\nwhile True: time.sleep(0.01)")))
        runs.start()
        poll_until(lambda: box.files.exists("/tmp/begun"), "a file inside a sandbox")
        assert kernel.interrupt()
        runs.join(PATIENCE)
        assert got[0].error is not None
        assert "KeyboardInterrupt" == got[0].error.type
        assert "1" == kernel.execute("x").value


def test_a_branch_a_reset_and_a_close(daemon: LiveDaemon, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    kernel.execute("x = 1")
    with kernel.fork() as branch:
        for made in (branch, kernel) * 3:
            assert "1" == made.execute("x").value
            assert b"p\n" == made.execute("print('p')").stdout
    kernel.reset()
    error = kernel.execute("x").error
    assert error is not None
    assert "NameError" == error.type
    assert b"1\n" == kernel.execute("print(1)").stdout
    with Bound(daemon.socket, box, kernel) as other:
        assert b"2\n" == other.execute("print(2)").stdout
        kernel.close()
        for execute in (kernel.execute, other.execute):
            with pytest.raises(SessionOver, match=f"no kernel {kernel.number}"):
                execute("print(1)")


@pytest.fixture
def bare(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    """A sandbox without variables, whose next `execute` of code alone takes the fast path."""
    with leeward.Sandbox(socket=daemon.socket) as made:
        for _ in range(4):
            assert b"1\n" == made.execute("print(1)").stdout
        yield made
    daemon.idle()


def test_each_fresh_interpreter_has_nothing_of_the_last_one(daemon: LiveDaemon, bare: leeward.Sandbox) -> None:
    """On the fast path and beside it: by two connections, with options, and after an error."""
    leave = "import os; print('x' in globals(), os.getpid()); x = 1; open('f', 'a').write('.')"
    seen = [bare.execute(leave).stdout.split() for _ in range(8)]
    assert {b"False"} == {first for first, _ in seen}
    assert len(seen) == len({pid for _, pid in seen})
    assert "ZeroDivisionError" in bare.execute("1 / 0").stderr_text
    assert "2" == bare.execute("1 + 1", display=True).value
    assert b"given\n" == bare.execute("import os; print(os.environ['G'])", env={"G": "given"}).stdout
    threads = [threading.Thread(target=lambda: [bare.execute(leave) for _ in range(3)]) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert b"14\n" == bare.execute("print(len(open('f').read()))").stdout
    with bare._connections.one() as connection:
        assert [(0, False)] == [key[1:] for key, number in connection.seats.items() if number >= FIRST_SEAT]


def test_a_fresh_interpreter_has_the_same_locks_on_the_fast_path_and_beside_it(daemon: LiveDaemon) -> None:
    """Limits, too, which its sandbox has for itself. Only the numbers of processes differ."""
    with leeward.Sandbox(socket=daemon.socket, descriptors=100) as box:
        for _ in range(4):
            assert b"1\n" == box.execute("print(1)").stdout
        seen = [json.loads(re.sub(r"NSpid:.t[0-9]+", "", got.stdout_text)) for got in (
            box.execute(LOCKS_SEEN), box.execute(LOCKS_SEEN), box.execute(LOCKS_SEEN, stdin=b"not by the fast path"))]
    assert [100] * 3 == [int(re.findall(r"Max open files +(\d+)", each["files"]["/proc/self/limits"])[0]) for each in seen]
    for each in seen:
        each["ids"][:3] = []
    assert seen[0] == seen[1] == seen[2]
    daemon.idle()


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_the_end_of_its_process(kernel: leeward.Kernel, end: str) -> None:
    """By a job of the fast path: that has its result, and the next one is told."""
    gone = kernel.execute(end)
    assert gone.outcome in (Outcome.FINISHED, Outcome.RAISED, Outcome.SIGNALLED)
    with pytest.raises(SessionOver):
        kernel.execute("print(1)")
    kernel.reset()
    for _ in range(3):
        assert b"1\n" == kernel.execute("print(1)").stdout


def test_a_process_that_writes_a_reply_between_two_jobs(box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """No request has that as its answer: the next one isn't run, is told why, and the kernel is over."""
    forged = kernel.execute(f"""
import os, threading, time

def write():
    while not os.path.exists("/tmp/go"): time.sleep(0.005)
    for fd in range(3, 10):
        try: os.write(fd, {NOTHING_FRAME!r})
        except OSError: pass
    open("/tmp/written", "w").close()

threading.Thread(target=write).start()
""")
    assert Outcome.FINISHED is forged.outcome
    box.files.write("/tmp/go", b"")
    poll_until(lambda: box.files.exists("/tmp/written"), "a file inside a sandbox")
    after = kernel.execute("open('/tmp/run', 'w').close(); print('mine')")
    assert after.error is not None
    assert (Outcome.INTERNAL, b"") == (after.outcome, after.stdout)
    assert "broke the protocol of its reply pipe" in after.error.message
    assert not box.files.exists("/tmp/run")
    with pytest.raises(SessionOver):
        kernel.execute("print('mine')")
    kernel.reset()
    assert b"mine\n" == kernel.execute("print('mine')").stdout


def test_a_connection_that_vanishes_ends_its_running_job(daemon: LiveDaemon, box: leeward.Sandbox,
                                                         kernel: leeward.Kernel) -> None:
    """
    As for a request by name: the kernel's state is lost. A connection without a running job leaves the kernel as it
    was.
    """
    with Bound(daemon.socket, box, kernel) as idle:
        assert b"1\n" == idle.execute("print(1)").stdout
        assert b"2\n" == idle.execute("y = 2; print(y)").stdout
    assert "2" == kernel.execute("y").value
    with Bound(daemon.socket, box, kernel) as busy:
        for _ in range(2):
            busy.execute("print(1)")
        busy.connection.post("execute", {"session": busy.number,
                                   "code": b"open('/tmp/begun', 'w')\nimport time\nwhile True: time.sleep(1)"})
        poll_until(lambda: box.files.exists("/tmp/begun"), "a file inside a sandbox")

    def lost() -> bool:
        try:
            kernel.execute("print(1)")
        except SessionOver:
            return True
        return False
    poll_until(lost, "the loss of state that only a request can see")


def test_a_sandbox_that_rests_wakes(daemon: LiveDaemon, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """Its descriptors are closed meanwhile; they are no others' when the fast path has the kernel again."""
    before = held(daemon.process.pid)
    poll_until(lambda: held(daemon.process.pid) < before, "descriptors of another process")
    for at in range(4):
        result = kernel.execute(f"print({at})")
        assert (f"{at}\n".encode(), Outcome.FINISHED) == (result.stdout, result.outcome)


def test_a_connection_that_the_daemon_has_closed(daemon: LiveDaemon, box: leeward.Sandbox,
                                                 kernel: leeward.Kernel) -> None:
    """The kernel is there still, whatever its number was."""
    kernel.execute("x = 1")
    with box._connections.one() as connection:
        number = connection.seats[box.id, kernel.number, True]
        assert connection._socket is not None
        connection._socket.shutdown(socket.SHUT_RDWR)
    assert FIRST_SEAT <= number
    for _ in range(3):
        assert "1" == kernel.execute("x").value


def test_the_sandboxs_end_is_reported_by_every_number(daemon: LiveDaemon) -> None:
    with leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        with Bound(daemon.socket, box, kernel) as bound:
            for _ in range(3):
                assert b"1\n" == bound.execute("print(1)").stdout
            box.kill()
            with pytest.raises(SandboxOver, match="killed"):
                bound.execute("print(1)")


def test_a_request_of_more_than_code_is_refused_by_number(daemon: LiveDaemon, box: leeward.Sandbox,
                                                          kernel: leeward.Kernel) -> None:
    with Bound(daemon.socket, box, kernel) as bound:
        for more in ({"args": ["a"]}, {"limits": {"time": 1.0}}, {"functions": {"names": ["f"]}}, {"env": {"A": "b"}}):
            with pytest.raises(RequestRejected, match="code and nothing else"):
                bound.connection.call("execute", {"session": bound.number, "code": b"1", **more})
        with pytest.raises(SessionOver, match="bound no kernel"):
            bound.connection.call("execute", {"session": bound.number + 1, "code": b"1"})
        assert b"1\n" == bound.execute("print(1)").stdout


def test_a_connection_binds_so_many(daemon: LiveDaemon, box: leeward.Sandbox, kernel: leeward.Kernel) -> None:
    """Those that are over leave their places to others."""
    connection = BlockingConnection(daemon.socket)
    fields = {"sandbox": box.id, "kernel": kernel.number}
    numbers = [(connection.call("kernel_bind", fields)[0].ok or {})["session"] for _ in range(MOST_SEATS)]
    assert list(range(FIRST_SEAT, FIRST_SEAT + MOST_SEATS)) == numbers
    with pytest.raises(DaemonError, match="bound 64 kernels"):
        connection.call("kernel_bind", fields, retry_busy=False)
    with pytest.raises(SessionOver):
        connection.call("kernel_bind", {**fields, "kernel": 60})
    kernel.close()
    connection.call("kernel_bind", {**fields, "kernel": box.kernel().number})
    connection.close()
