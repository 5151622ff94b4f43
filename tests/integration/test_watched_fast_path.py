"""Short jobs where no controller counts: the fast path looks after them by itself, and tells what the watch would."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from kit.box import Box
from kit.sessions import Peer, Wire
from leeward._native.loop import JobSeen
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_runner import LiveRunner
from leeward.isolation.cgroup.none import OTHERS, NoneLeaf
from leeward.spec.limits import MIB, Limits

HELLO = "print('hello')"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box(cgroup="none", reactor=NativeReactor("auto", fast_path=True), spares=1, max_sessions=1) as made:
        yield made


@pytest.fixture
def peer(box: Box) -> Iterator[Peer]:
    with Wire(box) as wire:
        box.settle()
        yield wire.peer()


@pytest.fixture
def by_c(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The peaks of memory of jobs that the fast path has answered, as it told Python."""
    peaks: list[float] = []
    completed, ran = Execution.completed, Lease.ran

    def note_job(job: Execution, ended: float, cpu_time: float, memory_peak: int) -> None:
        peaks.append(memory_peak)
        completed(job, ended, cpu_time, memory_peak)

    def note_turn(lease: Lease, told: Any) -> None:
        peaks.append(told.memory_peak)
        ran(lease, told)

    monkeypatch.setattr(Execution, "completed", note_job)
    monkeypatch.setattr(Lease, "ran", note_turn)
    return peaks


def fresh(peer: Peer, code: str) -> dict[str, Any]:
    peer._wire.box.settle()
    return peer.ask("execute", code=code.encode())


def until_by_c(peer: Peer, by_c: list[float], code: str, session: int = 0) -> dict[str, Any]:
    """Run *code* until the fast path has answered it, and not Python, to which a busy machine leaves a job."""
    for _ in range(50):
        by_c.clear()
        got = peer.run(session, code) if session else fresh(peer, code)
        peer._wire.box.reactor.turn(0.0)
        if by_c:
            return got
    raise AssertionError("no job took the fast path")


def test_a_fresh_job_has_its_limits_and_figures(peer: Peer, by_c: list[float]) -> None:
    got = until_by_c(peer, by_c, "import resource\nprint(resource.getrlimit(resource.RLIMIT_NPROC)[1], "
                                 "resource.getrlimit(resource.RLIMIT_DATA)[0])")
    tasks, data = map(int, got["stdout"].split())

    held = peer._wire.box.engine.main.pool.workforce.workers[0].arming.runners
    most = next(iter(held.values())).held()
    assert (most[resource.RLIMIT_NPROC], most[resource.RLIMIT_DATA]) == (tasks, data)
    assert Limits().processes + OTHERS <= tasks
    assert ["cgroup"] == got["degraded"]
    assert [got["memory_peak"]] == by_c
    assert MIB < got["memory_peak"] < 64 * MIB
    assert 0 < got["cpu_time"] < 1


def test_turns_of_a_session_are_answered_by_it_too(peer: Peer, by_c: list[float]) -> None:
    number = peer.open()

    first = until_by_c(peer, by_c, HELLO, number)
    more = until_by_c(peer, by_c, "kept = b'x' * (8 << 20)", number)

    assert b"hello\n" == first["stdout"]
    assert more["memory_peak"] - first["memory_peak"] > 7 * MIB
    peer.ask("session_close", session=number)


@pytest.mark.parametrize("code", [
    "import os, signal\nif os.fork() == 0: signal.pause()",
    "import os, signal\nif os.fork() == 0:\n    if os.fork() == 0: signal.pause()\n    os._exit(0)\nos.wait()",
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
], ids=["a child", "an orphan", "a thread"])
def test_what_is_more_than_one_task_is_left_to_the_watch(peer: Peer, by_c: list[float], code: str) -> None:
    number = peer.open()
    until_by_c(peer, by_c, HELLO, number)
    by_c.clear()

    peer.run(number, code)
    after = [peer.run(number, HELLO) for _ in range(5)]

    assert [] == by_c
    assert {b"hello\n"} == {got["stdout"] for got in after}
    peer.ask("session_close", session=number)


def test_a_little_more_in_each_turn_ends_at_the_limit(peer: Peer, by_c: list[float]) -> None:
    """However short they are: here by turns of half a mebibyte, fewer pages than make the fast path read them again."""
    number = peer.open(limits={"memory": 64 * MIB})
    until_by_c(peer, by_c, "kept = []", number)
    turns = 0
    while "finished" == peer.run(number, "kept.append(b'x' * (500 << 10))").get("outcome") and turns < 400:
        turns += 1

    assert 64 < turns < 144  # an eighth more, at the most


@pytest.mark.parametrize(("code", "least"), [
    ("open('f', 'wb').write(bytes(20 << 20))", 20 * MIB),
    ("import socket\nends = [socket.socketpair() for _ in range(40)]", 48 * 208 << 10),
    ("import mmap\nm = mmap.mmap(-1, 20 << 20)", 20 * MIB),
], ids=["files", "sockets", "shared memory"])
def test_what_is_in_no_resident_set_counts(peer: Peer, by_c: list[float], code: str, least: int) -> None:
    number = peer.open()
    before = until_by_c(peer, by_c, HELLO, number)
    peer.run(number, code)

    after = until_by_c(peer, by_c, HELLO, number)

    assert after["memory_peak"] - before["memory_peak"] >= least
    peer.ask("session_close", session=number)


GROWS = """
import time
held = []
while True:
    held.append(b"x" * (4 << 20))
    time.sleep(0.005)
"""


@pytest.mark.parametrize("in_session", [False, True])
def test_a_job_that_grows_is_ended_at_its_limit_by_glances(peer: Peer, monkeypatch: pytest.MonkeyPatch,
                                                           in_session: bool) -> None:
    """While it is one process within its limit C looks; the last look, which ends it, is the watch's."""
    seen: dict[NoneLeaf, list[int]] = {}
    glanced = NoneLeaf.glanced

    def note(leaf: NoneLeaf, what: JobSeen) -> bool:
        seen.setdefault(leaf, []).append(what.memory)
        return glanced(leaf, what)

    monkeypatch.setattr(NoneLeaf, "glanced", note)
    limit = Limits().memory
    number = peer.open() if in_session else 0
    got = peer.run(number, GROWS) if in_session else fresh(peer, GROWS)

    assert "out_of_memory" == got["outcome"]
    assert limit <= got["memory_peak"] <= limit * 5 // 4
    most = max(seen.values(), key=max)  # the others are of runners that end
    assert 10 < len(most)
    assert sorted(most) == most
    assert limit >= most[-1] > limit // 2


def test_a_job_that_takes_long_is_told_its_processor_time_by_glances(peer: Peer) -> None:
    got = fresh(peer, "import time\nwhile time.process_time() < 0.2: pass")

    assert 0.15 < got["cpu_time"] < 0.4


#: Gives back 800 MiB while only C looks, which may see the last of a mapping missing, and has 140 MiB when it forks.
WEARS = """
import mmap, os, time
kept = bytearray(b"x") * (140 << 20)
for _ in range(10):
    mmap.mmap(-1, 80 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
time.sleep(0.05)
if not os.fork():
    time.sleep(0.1)
    os._exit(0)
os.wait()
print("shared")
"""


@pytest.mark.parametrize("in_session", [False, True])
def test_a_child_is_not_charged_what_its_parent_gave_back_before(peer: Peer, in_session: bool) -> None:
    number = peer.open() if in_session else 0
    got = peer.run(number, WEARS) if in_session else fresh(peer, WEARS)

    assert b"shared\n" == got["stdout"], got
    assert 200 * MIB < got["memory_peak"] < Limits().memory


def in_sandbox(peer: Peer, **fields: Any) -> tuple[str, int, LiveRunner]:
    """A new sandbox, its kernel by its number on the connection, and what the daemon has of it."""
    name = peer.box(**fields)
    kernel = peer.ask("kernel_open", sandbox=name)["kernel"]
    seat = peer.ask("kernel_bind", sandbox=name, kernel=kernel)["session"]
    live, = (worker.leasing.execution for worker in peer._wire.box.engine.main.pool.workforce.workers
             if isinstance(worker.leasing.execution, LiveRunner))
    return name, seat, live


def test_a_kernels_jobs_are_told_what_the_looks_at_its_sandbox_find(peer: Peer, by_c: list[float]) -> None:
    """Its own processor time, and the memory of all processes there, also after the sandbox has rested."""
    name, seat, live = in_sandbox(peer)
    first = until_by_c(peer, by_c, HELLO, seat)
    peer.ask("process_start", sandbox=name, argv=["python3", "-c", "import time; b = b'x' * (24 << 20); time.sleep(60)"])
    while live.memory() < 24 * MIB:
        peer._wire.box.reactor.turn(0.01)
    for _ in range(2):
        told = [until_by_c(peer, by_c, HELLO, seat) for _ in range(5)]
        for each in told:
            assert first["memory_peak"] + 16 * MIB <= each["memory_peak"] <= live.usage().memory_peak
        # The kernel takes off what the machine's host has used meanwhile, which may be all of a short job.
        assert 0 < sum(each["cpu_time"] for each in told) < 1
        live.rest()
        assert -1 == live.runner.leaf._told  # type: ignore[attr-defined]
    peer.ask("sandbox_close", sandbox=name)


def test_a_kernel_that_grows_by_short_jobs_ends_its_sandbox_at_the_limit(peer: Peer, by_c: list[float]) -> None:
    name, seat, _ = in_sandbox(peer, limits={"memory": 64 * MIB})
    until_by_c(peer, by_c, "kept = []", seat)
    turns = 0
    while "finished" == (got := peer.run(seat, "kept.append(b'x' * (500 << 10))")).get("outcome") and turns < 400:
        turns += 1

    assert len(by_c) > turns // 2
    assert 32 < turns < 160
    assert "memory" in str(got)
    peer.ask("sandbox_close", sandbox=name)
