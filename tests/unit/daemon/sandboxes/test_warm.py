"""The process that waits for its request: given once, to whom it was started for, and never for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leeward.daemon.loop.reactor import Timer
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes.warm import HOLD_S, MOST_FAILED, WaitingProgram, WarmProcess, has_room
from leeward.errors import Bug, LeewardError
from leeward.spec.limits import Limits


class Clock:
    """A reactor, as far as it is used."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.next: list[Callable[[], None]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)


class Child:
    def __init__(self) -> None:
        self.killed = 0
        self.ready = lambda: True

    def is_ready(self) -> bool:
        return self.ready()

    def spent(self) -> float:
        return 0.25

    def kill(self) -> None:
        self.killed += 1


class Starts:
    def __init__(self) -> None:
        self.fails = False
        self.children: list[Child] = []
        self.tells: list[tuple[Callable[[int, bytes], None], Callable[[Any], None]]] = []

    def __call__(self, output: Callable[[int, bytes], None], exited: Callable[[Any], None]) -> Any:
        if self.fails:
            raise LeewardError("no room")
        self.children.append(Child())
        self.tells.append((output, exited))
        return self.children[-1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def warm(clock: Clock) -> WaitingProgram:
    return WaitingProgram(clock)  # type: ignore[arg-type]


def test_a_waiting_process_is_given_once_and_to_the_same_request_alone(warm: WaitingProgram, starts: Starts,
                                                                       clock: Clock) -> None:
    """From then on its output and its end are told to whoever has it; what it used before is said."""
    assert warm.take("a") is None
    warm.hold("a", starts)
    assert warm.take("b") is None
    got = warm.take("a")
    assert got is not None
    assert warm.take("a") is None
    assert clock.timers[0].call is None

    seen: list[Any] = []
    assert (starts.children[0], 0.25) == got.give(lambda *what: seen.append(what), seen.append)
    output, exited = starts.tells[0]
    output(1, b"x")
    exited("ended")
    assert [(1, b"x"), "ended"] == seen
    assert not starts.children[0].killed


def test_one_warm_node_waits_for_a_while(warm: WaitingProgram, starts: Starts, clock: Clock) -> None:
    """Another one replaces it; the same isn't started twice."""
    warm.hold("a", starts)
    warm.hold("a", starts)
    assert [0] == [child.killed for child in starts.children]
    warm.hold("b", starts)
    assert [1, 0] == [child.killed for child in starts.children]
    assert warm._held is not None
    assert HOLD_S == clock.timers[-1].when
    call = clock.timers[-1].call
    assert call is not None
    call()
    assert [1, 1] == [child.killed for child in starts.children]
    assert warm._held is None
    assert warm.take("b") is None


@pytest.mark.parametrize("how", ["written", "ended"])
def test_what_happened_to_a_process_is_known_before_it_is_given(warm: WaitingProgram, starts: Starts, how: str) -> None:
    """Though nothing has been told yet."""
    warm.hold("a", starts)
    child, (output, _) = starts.children[0], starts.tells[0]
    child.ready = (lambda: False) if "ended" == how else (lambda: output(1, b"x") is None)
    assert warm.take("a") is None
    assert child.killed


@pytest.mark.parametrize("how", ["output", "exited"])
def test_a_process_that_has_written_or_ended_is_given_to_no_request(warm: WaitingProgram, starts: Starts, how: str) -> None:
    """Whoever wrote it. After some of them in a row no more are started; one that is used begins the count again."""
    def spoil() -> None:
        output, exited = starts.tells[-1]
        output(2, b"")
        assert warm._held is not None
        if "output" == how:
            output(2, b"words")
        else:
            exited("ended")

    warm.hold("a", starts)
    spoil()
    assert warm.take("a") is None
    assert (1 if "output" == how else 0) == starts.children[-1].killed  # it was over

    warm.hold("a", starts)
    assert warm.take("a") is not None
    for _ in range(MOST_FAILED):
        warm.hold("a", starts)
        spoil()
    count = len(starts.children)
    warm.hold("a", starts)
    assert count == len(starts.children)
    starts.tells[-1][1]("ended")  # told late, of one that was given up


def test_a_process_that_cannot_be_started_is_no_error(warm: WaitingProgram, starts: Starts) -> None:
    starts.fails = True
    warm.hold("a", starts)
    assert warm._held is None
    assert warm.take("a") is None


def test_the_next_process_is_started_after_the_answer(warm: WaitingProgram, starts: Starts, clock: Clock) -> None:
    told: list[Report] = []
    report = Report()
    warm.follow("a", starts, told.append)(report)
    assert [report] == told
    assert not starts.children
    clock.next.pop()()
    assert warm._held is not None


@pytest.mark.parametrize("end", [WaitingProgram.close, lambda warm: warm.broken(ValueError("x"))])
def test_no_process_is_started_once_the_sandbox_is_over(warm: WaitingProgram, starts: Starts, clock: Clock,
                                                        end: Callable[[WaitingProgram], None]) -> None:
    warm.hold("a", starts)
    end(warm)
    assert clock.timers[0].call is None
    warm.hold("b", starts)
    assert 1 == len(starts.children)
    assert warm.take("a") is None


def test_a_process_that_was_never_made_cannot_be_given() -> None:
    with pytest.raises(Bug):
        WarmProcess("a", lambda _: None).give(lambda *_: None, lambda _: None)


@pytest.mark.parametrize(("limits", "room"), [
    (Limits(), False), (Limits(processes=64), True), (Limits(processes=47), False),
    (Limits(processes=64, memory=(256 << 20) - 1), False),
])
def test_a_small_sandbox_has_no_room_for_it(limits: Limits, room: bool) -> None:
    assert room is has_room(limits)
