"""A program whose output nobody reads: it waits, and comes to its end all the same when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leeward.isolation.cgroup.entry import Usage
from leeward.loop.reactor import Timer
from leeward.run.launch import Exit
from leeward.run.report import Report
from leeward.sandboxes.chunks import ROOM, STDOUT
from leeward.sandboxes.program import LiveProgram, Order


class Clock:
    """A reactor, as far as it is used."""

    def now(self) -> float:
        return 0.0

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return Timer(seconds, call)

    at = after

    def soon(self, call: Callable[[], None]) -> None:
        call()


class Child:
    pid, stdin, ends, ended_by_watchdog = 7, -1, 0.0, None

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self.killed = 0

    def pause(self, stream: int) -> None:
        self.paused.add(stream)

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


def started() -> tuple[LiveProgram, Child]:
    clock: Any = Clock()
    reports: list[Report] = []
    program = LiveProgram(clock, 1, Order(("yes",), "yes", "/workspace", None, None, kept=False), Usage, reports.append)
    child: Any = Child()
    program.begin(child)
    return program, child


def test_a_program_that_writes_more_than_is_read_waits() -> None:
    """Until somebody reads."""
    program, child = started()
    while not child.paused:
        program.output(STDOUT, b"x" * 4096)
    assert {1, 2} == child.paused
    program.read(program.chunks.last)
    assert not child.paused


def test_a_killed_program_is_read_to_its_end_without_a_reader() -> None:
    """What it writes until the kill has hit it makes it wait no more, or its end would be told to nobody. It isn't kept."""
    program, child = started()
    while not child.paused:
        program.output(STDOUT, b"x" * 4096)
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
    assert [b"last words"] == [chunk.data for chunk in program.read(0)]


def test_a_kill_after_the_end_reaches_the_descendants_that_are_left() -> None:
    """Their group is the process's, and the process is reported as it has ended."""
    program, child = started()
    program.exited(Exit(0))
    assert program.report is not None
    program.kill()
    assert 1 == child.killed
    assert 0 == program.report.result.exit_code
