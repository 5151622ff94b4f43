"""
Limits while the event loop stands still: the watchdog's thread holds them.

The daemon is a test build whose loop blocks in a client's ping (kit/stalling.py). A control runs each without the
thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import leeward
from kit import features, reactors
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.reactors import OPTIONS
from kit.stalling import standing_still
from kit.waiting import poll_until
from leeward.daemon.pool.watchdog import Watchdog
from leeward.daemon.run.runner import state_of
from leeward.daemon.run.runner_states import ProcessState
from leeward.daemon.run.verdict import Stop
from leeward.isolation.cgroup.watch import key_of

#: Seconds that the loop stands still, and that a job may run: it is late by the difference.
STALL_S, LIMIT_S = 5.0 * features.SLOWER, 1.5 * features.SLOWER

#: Runs for as long as it is let.
ENDLESS = "import time\nwhile True:\n    time.sleep(0.01)\n"

#: Takes 100 MB in half a second, and says how far it has come.
GROWING = ("import time\nkept = []\nfor megabytes in range(300):\n    kept.append(bytearray(b'x') * (1 << 20))\n"
           "    print(megabytes, flush=True)\n    time.sleep(0.005)\n")


@contextlib.contextmanager
def stalled(daemon: LiveDaemon) -> Iterator[None]:
    """The loop stands still from when something runs that the block has begun."""
    over, stood = threading.Event(), []

    def ping() -> None:
        with leeward.Client(str(daemon.socket), retry=False) as client:
            while not over.is_set():
                with contextlib.suppress(leeward.Busy):
                    stood.append(client.ping(timeout=60))
                    return
                over.wait(0.02)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert stood


def ended_meanwhile(daemon: LiveDaemon) -> list[tuple[int, int]]:
    """How many were ended for their time and for their memory in each time that the loop stood still; it was the ping."""
    told = "the event loop stood still"
    daemon.logged(lambda rows: any(told == row["event"] for row in rows))
    rows = [row for row in daemon.log if told == row["event"]]
    assert all(any("stalling.py" in each for each in row["where"]) for row in rows)
    return [(row["timed_out"], row["out_of_memory"]) for row in rows]


@pytest.mark.parametrize("watchdog", [True, False], ids=["held", "control"])
@pytest.mark.parametrize("way", [reactors.REFERENCE, *reactors.WAYS])
def test_a_time_limit(tmp_path: Path, way: str, watchdog: bool) -> None:
    with standing_still(tmp_path, *OPTIONS[way], seconds=STALL_S, watchdog=watchdog) as daemon, \
            daemon.client() as client, stalled(daemon):
        result = client.execute(ENDLESS, timeout=LIMIT_S)

        assert leeward.Outcome.TIMED_OUT is result.outcome
        if watchdog:
            assert [(1, 0)] == ended_meanwhile(daemon)
        else:
            assert result.duration > STALL_S


@pytest.mark.parametrize("watchdog", [True, False], ids=["held", "control"])
def test_a_memory_limit_without_controllers(tmp_path: Path, watchdog: bool) -> None:
    with standing_still(tmp_path, "--pool-size", "1", seconds=PATIENCE, enough=200 << 20, watchdog=watchdog,
                        cgroup="none") as daemon, daemon.client() as client, stalled(daemon):
        result = client.execute("import time; time.sleep(1)\n" + GROWING, memory=64 << 20, timeout=2 * PATIENCE)

        assert leeward.Outcome.OUT_OF_MEMORY is result.outcome
        reached = int(result.stdout_text.split()[-1])
        if watchdog:
            assert [(0, 1)] == ended_meanwhile(daemon)
        else:
            assert reached > 100


def test_a_sessions_job_is_ended_and_not_interrupted(tmp_path: Path) -> None:
    """Nobody interrupts its job, which then has the time that it would have had to see to that."""
    with standing_still(tmp_path, seconds=2 * STALL_S) as daemon, daemon.client() as client:
        with client.session() as session, stalled(daemon):
            result = session.execute(ENDLESS, timeout=LIMIT_S)

            assert leeward.Outcome.TIMED_OUT is result.outcome
            assert [(1, 0)] == ended_meanwhile(daemon)
            with pytest.raises(leeward.SessionOver, match="time limit"):
                session.execute("1")
        assert b"1\n" == client.execute("print(1)").stdout


@pytest.mark.parametrize("cgroup", [pytest.param({}, id="groups"), pytest.param({"cgroup": "none"}, id="none")])
def test_a_process_of_a_live_sandbox(tmp_path: Path, cgroup: dict[str, str]) -> None:
    """With what descends from it. The sandbox lives on."""
    with standing_still(tmp_path, seconds=STALL_S, **cgroup) as daemon, \
            leeward.Sandbox(socket=daemon.socket) as sandbox:
        with stalled(daemon):
            result = sandbox.run(["sh", "-c", "(while :; do sleep 0.05; done) & wait"], timeout=LIMIT_S)

            assert leeward.Outcome.TIMED_OUT is result.outcome
            assert [(1, 0)] == ended_meanwhile(daemon)
        assert b"on\n" == sandbox.run(["echo", "on"]).stdout


def test_code_in_a_live_sandbox(tmp_path: Path) -> None:
    with standing_still(tmp_path, seconds=STALL_S) as daemon, \
            leeward.Sandbox(socket=daemon.socket) as sandbox:
        with stalled(daemon):
            result = sandbox.execute(ENDLESS, timeout=LIMIT_S)

            assert leeward.Outcome.TIMED_OUT is result.outcome
            assert [(1, 0)] == ended_meanwhile(daemon)
        assert b"on\n" == sandbox.run(["echo", "on"]).stdout


def test_a_reply_that_was_complete_counts(tmp_path: Path) -> None:
    """The job was over in time, and the loop hears of it late."""
    with standing_still(tmp_path, seconds=STALL_S) as daemon, daemon.client() as client, stalled(daemon):
        result = client.execute("import time; time.sleep(1); print(1)", timeout=STALL_S - 1.0 * features.SLOWER)

        assert (leeward.Outcome.FINISHED, b"1\n") == (result.outcome, result.stdout)


class Owner:
    """Whoever has a pidfd, and closes it as `Runner.dispose` does."""

    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd

    def dispose(self) -> None:
        pidfd, self.pidfd = self.pidfd, -1
        os.close(pidfd)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def watchdog() -> Watchdog:
    made = Watchdog(reactors.reactor(reactors.REFERENCE), list, time=1.0, report=print)
    made._null = os.open("/dev/null", os.O_RDONLY)
    made._slot = os.dup(made._null)
    return made


def test_a_descriptor_that_passes_on_between_two_steps_is_not_signalled() -> None:
    """
    The owner closes its pidfd, and its number is a stranger's, after the watchdog has read the number and before
    it makes the duplicate: the worst moment.
    """
    thread, mine, stranger = watchdog(), sleeper(), sleeper()
    owner = Owner(os.pidfd_open(mine.pid))
    number = owner.pidfd
    passed = []

    def owned() -> int:
        if passed:
            return owner.pidfd
        owner.dispose()
        passed.append(os.pidfd_open(stranger.pid))
        return number

    try:
        with thread._borrowed(owned) as fd:
            assert passed == [number]  # the kernel gives the lowest free number
            assert -1 == fd
            with open(f"/proc/self/fdinfo/{thread._slot}") as info:  # control: without the second look it was this
                assert f"Pid:\t{stranger.pid}\n" in info.read()
        with thread._borrowed(lambda: number) as fd:
            signal.pidfd_send_signal(fd, signal.SIGKILL)  # control: it can
        assert -signal.SIGKILL == stranger.wait()
    finally:
        for process in (mine, stranger):
            process.kill()
            process.wait()
        thread.stop()
        os.close(number)


def test_branches_of_a_kernel_are_spared() -> None:
    """Without groups they are below it; and they are others' kernels."""
    code = "import os, signal\npid = os.fork()\npid and print(pid, flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as kernel:
        assert kernel.stdout is not None
        branch, thread = int(kernel.stdout.readline()), watchdog()
        process: Any = SimpleNamespace(state=ProcessState.RUNNING, host_pid=kernel.pid, root=key_of(kernel.pid),
                                       group=None, spare=lambda: {branch}, runner=SimpleNamespace(pid=os.getpid()))
        try:
            poll_until(lambda: thread._end_process(process, Stop.TIME) and kernel.poll() is not None,
                       "the thread takes a few steps each time, in which the kernel may not have stopped")
            assert b"S" == state_of(branch)
        finally:
            os.kill(branch, signal.SIGKILL)
            thread.stop()


def test_foreign_processes_are_never_signalled(tmp_path: Path) -> None:
    """
    One thread closes pidfds and is given their numbers for pidfds of foreign processes, another borrows and signals
    all the time.
    """
    thread, stranger = watchdog(), sleeper()
    over, owners = threading.Event(), [Owner(-1)]
    signalled = 0

    def churn() -> None:
        while not over.is_set():
            mine = sleeper()
            owners[0] = owner = Owner(os.pidfd_open(mine.pid))
            number = owner.pidfd
            over.wait(0.002)  # the other thread meets some in time
            owner.dispose()
            other = os.pidfd_open(stranger.pid)
            assert other == number
            os.close(other)
            mine.kill()
            mine.wait()

    churning = threading.Thread(target=churn)
    churning.start()
    until = time.monotonic() + PATIENCE
    try:
        while signalled < 100 and time.monotonic() < until:
            owner = owners[0]
            with thread._borrowed(lambda: owner.pidfd) as fd:  # noqa: B023  # called in this turn
                if fd >= 0:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        signalled += 1
    finally:
        over.set()
        churning.join()
        alive = stranger.poll() is None
        stranger.kill()
        stranger.wait()
        thread.stop()
    assert alive
    assert signalled  # control: some were met in time


def test_the_service_manager_hears_of_an_idle_loop_and_not_of_one_that_stands_still(tmp_path: Path) -> None:
    """
    A sign comes each eighth of a second or so, and a loop that is late by half a second is answered for no more: in
    five seconds there are four or five, where there would be forty.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.05)

        def hears(until: Callable[[int], bool]) -> int:
            end, count = time.monotonic() + PATIENCE, 0
            while not until(count) and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    count += b"WATCHDOG=1" in manager.recv(4096)
            return count

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            patch.setenv("WATCHDOG_USEC", "500000")
            with standing_still(tmp_path, seconds=STALL_S, idle=True) as daemon:
                def told(event: str) -> Callable[[int], bool]:
                    return lambda _: any(event == row["event"] for row in daemon.log)

                assert hears(lambda count: count >= 3) >= 3  # idle
                with stalled(daemon):
                    hears(told("standstill begins"))
                    assert hears(told("standstill is over")) < STALL_S / 0.125 / 2
                assert hears(lambda count: count >= 3) >= 3
