"""A program whose output nobody reads: it waits, and comes to its end all the same when it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from leeward.daemon.loop.reactor import Timer
from leeward.daemon.run.launch import Exit
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes.program import LiveProgram, Order
from leeward.daemon.sandboxes.streams import ROOM, STALE_S, STDERR, STDOUT
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.outcome import Limit, Outcome


class Clock:
    """A reactor, as far as it is used; `pass_time` calls what is due."""

    def __init__(self) -> None:
        self._now, self._timers = 0.0, list[Timer]()

    def now(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds
        due = [timer for timer in self._timers if timer.when <= self._now and timer.call is not None]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            call, timer.call = timer.call, None
            assert call is not None
            call()

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self._now + seconds, call))
        return self._timers[-1]

    at = after

    def soon(self, call: Callable[[], None]) -> None:
        call()


class Child:
    pid, stdin, ends, ended_by_watchdog = 7, -1, 0.0, None

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self.killed = 0
        self.slowed = False

    def pause(self, stream: int) -> None:
        self.paused.add(stream)

    def gather(self) -> None: ...

    def slow(self) -> None:
        self.slowed = True

    def resume(self, stream: int) -> None:
        self.paused.discard(stream)

    def kill(self) -> None:
        self.killed += 1

    def close_stdin(self) -> None:
        self.stdin = -1

    def denied(self) -> dict[str, int]:
        return {}

    def spent(self) -> float:
        return 0.0


def started(output: int | None = None, *, cuts: bool = True, kept: bool = False, usage: Callable[[], Usage] = Usage,
            unseen: bool | None = None) -> tuple[LiveProgram, Child]:
    clock: Any = Clock()
    reports: list[Report] = []
    order = Order(("yes",), "yes", "/workspace", None, output, cuts=cuts, kept=kept)
    program = LiveProgram(clock, 1, order, usage, lambda _most: unseen, reports.append)
    child: Any = Child()
    program.begin(child)
    return program, child


def test_a_program_that_writes_more_than_is_read_waits() -> None:
    """Until somebody reads."""
    program, child = started()
    fill(program, child)
    assert {1, 2} == child.paused
    program.read(0, program.chunks.last)
    assert not child.paused


def fill(program: LiveProgram, child: Child) -> None:
    while not child.paused:
        program.output(STDOUT, b"x" * 4096)


def test_a_program_waits_for_the_slowest_of_its_readers() -> None:
    program, child = started()
    for reader in (1, 2):
        assert [] == program.read(reader, 0)
    fill(program, child)
    last = program.chunks.last
    program.read(1, last)
    assert child.paused
    program.read(2, last - 1)
    assert not child.paused


def test_a_reader_that_has_stopped_holds_the_others_up_for_a_while_alone() -> None:
    """The program goes on then, also when it filled its room for a second time; alone a reader is waited for without end."""
    program, child = started()
    clock: Any = program._reactor
    for _ in range(2):
        for reader in (1, 2):
            program.read(reader, program.chunks.last)
        fill(program, child)
        program.read(1, program.chunks.last)
        clock.pass_time(STALE_S - 1)
        program.read(1, program.chunks.last)
        assert child.paused
        clock.pass_time(STALE_S)
        assert not child.paused
    fill(program, child)
    clock.pass_time(100 * STALE_S)
    assert child.paused


def test_a_reader_that_comes_late_waits_for_what_is_to_come() -> None:
    """What it asks for from the beginning on isn't there any more: that is no news."""
    program, _ = started()
    program.output(STDOUT, b"early")
    program.read(1, 1)

    assert not program.more(0)
    assert [] == program.read(2, 0)
    program.output(STDOUT, b"late")
    assert program.more(0)
    assert [b"late"] == [chunk.data for chunk in program.read(2, 0)]


def test_a_killed_program_is_read_to_its_end_without_a_reader() -> None:
    """What it writes until the kill has hit it makes it wait no more, or its end would be told to nobody. It isn't kept."""
    program, child = started()
    fill(program, child)
    program.kill()
    assert (set(), 1) == (child.paused, child.killed)
    for _ in range(100):
        program.output(STDOUT, b"x" * 65536)
    assert not child.paused
    assert program.chunks.size < ROOM + 8192


def test_output_of_a_killed_program_can_be_read_afterwards() -> None:
    program, _ = started()
    program.kill()
    program.output(STDOUT, b"last words")
    assert [b"last words"] == [chunk.data for chunk in program.read(0, 0)]


def test_a_kill_after_the_end_reaches_the_descendants_that_are_left() -> None:
    """Their group is the process's, and the process is reported as it has ended."""
    program, child = started()
    program.exited(Exit(0))
    assert program.report is not None
    program.kill()
    assert 1 == child.killed
    assert 0 == program.report.result.exit_code


# --- limits that it tells of itself ----------------------------------------------------


@pytest.mark.parametrize(("text", "limit"), [
    ("cp: error writing 'b': No space left on device", Limit.FILES),
    ("Error: ENOSPC: no space left on device, write", Limit.FILES),
    ("OSError: [Errno 24] Too many open files: '/dev/null'", Limit.DESCRIPTORS),
    ("Error: EMFILE: too many open files, open 'x'", Limit.DESCRIPTORS),
    ("sh: 1: Cannot fork", Limit.PROCESSES), ("bash: fork: Resource temporarily unavailable", Limit.PROCESSES),
    ("RuntimeError: can't start new thread", Limit.PROCESSES),
    ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", Limit.MEMORY),
    ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', Limit.MEMORY),
    ("terminate called after throwing an instance of 'std::bad_alloc'", Limit.MEMORY), ("all is well", None)])
@pytest.mark.parametrize("cut", [0, 30])
def test_a_limit_that_a_program_tells_of_is_named(text: str, limit: Limit | None, cut: int) -> None:
    """On stderr, also where the text comes in two pieces; what a program prints on stdout is its own affair."""
    program, _ = started()
    program.output(STDERR, text[:cut].encode())
    program.output(STDERR, text[cut:].encode())
    program.exited(Exit(0))
    other, _ = started()
    other.output(STDOUT, text.encode())
    other.exited(Exit(0))

    assert program.report is not None
    assert other.report is not None
    assert (limit, None) == (program.report.result.limit, other.report.result.limit)


# --- more output than its limit ----------------------------------------------------------


def _written(program: LiveProgram) -> bytes:
    found = bytearray()
    while chunks := program.read(0, program.chunks._waiting[0].number - 1 if program.chunks._waiting else 0):
        found += b"".join(chunk.data for chunk in chunks)
        program.read(0, chunks[-1].number)
    return bytes(found)


def test_output_in_chunks_goes_on_and_its_end_comes_last() -> None:
    program, child = started(1000)
    for number in range(1000):
        program.output(STDOUT, b"%04d" % number)
    program.output(STDERR, b"why")
    program.exited(Exit(0))

    said = _written(program)
    assert program.report is not None
    result = program.report.result
    assert said.startswith(b"000000010002")
    assert b"\n[3003 bytes left out]\n" in said
    assert said.endswith(b"0998" b"0999" b"why")
    assert (0, True, 3003, 0) == (result.exit_code, result.truncated, result.stdout_omitted, result.stderr_omitted)
    assert (0, True) == (child.killed, child.slowed)


def test_a_program_that_is_within_its_limit_is_read_without_pauses() -> None:
    program, child = started(1000)
    program.output(STDOUT, b"x" * 400)
    program.exited(Exit(0))

    assert b"x" * 400 == _written(program)
    assert not child.slowed


def test_a_hard_limit_ends_the_program() -> None:
    program, child = started(1000, cuts=False)
    program.output(STDOUT, b"x" * 1001)

    assert (1, b"x" * 1000) == (child.killed, _written(program))


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_kept_output_is_cut_in_the_middle(size: int) -> None:
    program, child = started(size, kept=True)
    reports: list[Report] = []
    program._over = reports.append
    for _ in range(4):
        program.output(STDERR, b"e" * size)
    program.output(STDOUT, b"end")
    program.exited(Exit(0))

    result, arena = reports[0].result, reports[0].arena
    assert result is not None
    assert (True, 0, True) == (result.truncated, result.stdout_omitted, child.slowed)
    if arena is None:
        out, err = result.stdout, result.stderr
    else:
        assert arena.stdout
        assert arena.stderr
        out, err = (os.pread(arena.fd, length, at) for at, length in (arena.stdout, arena.stderr))
        arena.close()
    assert b"end" == out
    assert len(out) + len(err) - len(b"\n[%d bytes left out]\n" % result.stderr_omitted) <= size
    assert result.stderr_omitted == 4 * size - err.count(b"e") + 2  # two are in the note


OVER = Usage(oom_kills=1, limit_hits=1), Usage(oom_kills=1)


@pytest.mark.parametrize(("status", "after", "unseen", "said"), [
    (signal.SIGKILL, OVER[0], None, (Outcome.OUT_OF_MEMORY, Limit.MEMORY)),
    (signal.SIGKILL, OVER[1], None, (Outcome.INTERNAL, None)), (signal.SIGKILL, Usage(), False, (Outcome.INTERNAL, None)),
    (signal.SIGKILL, Usage(), True, (Outcome.OUT_OF_MEMORY, Limit.MEMORY)),
    (signal.SIGKILL, Usage(), None, (Outcome.SIGNALLED, None)),
    (137 << 8, OVER[0], None, (Outcome.FINISHED, Limit.MEMORY)),  # what a shell says of its child
    (137 << 8, OVER[1], None, (Outcome.INTERNAL, None)), (0, OVER[1], None, (Outcome.FINISHED, None))])
def test_a_program_is_not_blamed_for_the_memory_of_the_host(
        status: int, after: Usage, unseen: bool | None, said: tuple[Outcome, Limit | None]) -> None:
    """Another process of its sandbox may have been killed, where its own end isn't of that."""
    seen = [Usage(), after]
    program, _child = started(usage=lambda: seen.pop(0), unseen=unseen)
    program.exited(Exit(status))

    assert program.report is not None
    assert program.report.result is not None
    assert said == (program.report.result.outcome, program.report.result.limit)
