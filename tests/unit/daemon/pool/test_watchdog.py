"""When the watchdog's thread takes the loop to stand still, and what it tells then. Limits: tests/integration."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest

from leeward.daemon.pool.watchdog import LATE_S, TELL_S, Standstill, Watchdog
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_runner import LiveRunner
from leeward.daemon.run.verdict import Stop
from leeward.spec.outcome import Limit


class Loop:
    """A reactor that says what it is told to."""

    def __init__(self) -> None:
        self.time, self.turns, self.until = 100.0, 0, math.inf
        self.rouse: Any = None
        self.soons: list[Any] = []

    def now(self) -> float:
        return self.time

    def pulse(self) -> tuple[int, float]:
        return self.turns, self.until

    def soon(self, call: Any) -> None:
        self.soons.append(call)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def signs() -> list[float]:
    return []


@pytest.fixture
def thread(loop: Loop, signs: list[float]) -> Watchdog:
    made: Any = loop
    return Watchdog(made, list, time=1.0, report=signs_of_nothing, alive=lambda: signs.append(loop.time), period=2.0)


def signs_of_nothing(_: Standstill) -> None:
    return


def watch(thread: Watchdog, loop: Loop, seconds: float, *, turning: bool = False) -> None:
    until = loop.time + seconds
    while loop.time < until:
        loop.time += LATE_S / 2
        loop.turns += turning
        thread.look()


def test_a_loop_that_waits_is_none_that_stands_still(thread: Watchdog, loop: Loop, signs: list[float]) -> None:
    watch(thread, loop, 10.0)

    assert thread._still is None
    assert len(signs) >= 10


def test_a_loop_that_turns_is_none_that_stands_still(thread: Watchdog, loop: Loop) -> None:
    loop.until = 0.0
    watch(thread, loop, 10.0, turning=True)

    assert thread._still is None


@pytest.mark.parametrize("until", [0.0, 100.0], ids=["it works", "it should have woken"])
def test_a_standstill_of_the_loop_is_reported_afterwards(thread: Watchdog, loop: Loop, until: float) -> None:
    thread.look()
    loop.until = until
    watch(thread, loop, 2 * TELL_S)
    assert thread._still is not None
    assert not loop.soons  # who should hear of it can't

    watch(thread, loop, LATE_S, turning=True)
    (told,) = loop.soons
    (still,) = told.args
    assert TELL_S < still.seconds <= 2 * TELL_S + LATE_S
    assert thread._still is None


def test_the_service_manager_isnt_answered_for_a_loop_that_is_late_by_its_period(
        thread: Watchdog, loop: Loop, signs: list[float]) -> None:
    thread.look()
    loop.until = 0.0
    watch(thread, loop, 10.0)
    assert 101.0 < max(signs) < 102.5

    watch(thread, loop, 1.0, turning=True)
    assert max(signs) > 110.0


def test_the_memory_of_a_job_is_looked_at_of_which_python_does_not_know_yet(loop: Loop) -> None:
    """The fast path may have started one in this turn, where no controller counts: by the runner that is on offer."""
    runner = Mock(**{"leaf.needs_ticks": True, "scratch": -1, "tick_beside.return_value": Limit.MEMORY})
    worker = Mock(**{"leasing.execution": None, "leasing.offered": runner})
    made: Any = loop
    thread = Watchdog(made, lambda: [worker], time=1000.0, report=signs_of_nothing)
    ended = thread._end = Mock(return_value=False)  # type: ignore[method-assign]
    loop.until = 0.0
    watch(thread, loop, 1.0)

    ended.assert_called_with(runner, Stop.MEMORY)


@pytest.mark.parametrize(("tenant", "may"), [
    (None, False), (Mock(spec=LiveRunner, runs=False), False), (Mock(spec=LiveRunner, runs=True), True),
    (Mock(spec=Execution), True), (Mock(spec=Lease), True)])
def test_the_thread_sleeps_while_nothing_may_have_to_be_ended(loop: Loop, tenant: object, may: bool) -> None:
    """However many live sandboxes there are without a process."""
    made: Any = loop
    thread = Watchdog(made, lambda: [Mock(**{"leasing.execution": tenant})] * 5, time=1.0, report=signs_of_nothing)
    assert may is thread._busy()
