"""Which live sandboxes hold all their descriptors."""

from __future__ import annotations

from typing import Any

from kit.clock import Clock
from leeward.daemon.run.live_runner import QUIET_S, Awake


class Sandbox:
    def __init__(self, rested: list[Any]) -> None:
        self._rested = rested

    def rest(self) -> None:
        self._rested.append(self)


def test_an_unused_sandbox_rests_once() -> None:
    clock: Any = Clock()
    rested: list[Any] = []
    awake, one, other = Awake(), Sandbox(rested), Sandbox(rested)
    awake.stir(clock, one)
    awake.stir(clock, other)
    clock.pass_time(QUIET_S / 2)
    awake.stir(clock, one)
    clock.pass_time(QUIET_S * 0.75)
    assert [other] == rested
    clock.pass_time(QUIET_S)
    assert [other, one] == rested
    clock.pass_time(QUIET_S * 9)

    assert ([other, one], []) == (rested, clock.timers)  # and no timer is left


def test_beyond_the_bound_the_least_recently_used_sandbox_rests() -> None:
    clock: Any = Clock()
    rested: list[Any] = []
    awake, boxes = Awake(2), [Sandbox(rested) for _ in range(3)]
    for box in (boxes[0], boxes[1], boxes[0], boxes[2]):
        awake.stir(clock, box)

    assert [boxes[1]] == rested


def test_a_sandbox_that_is_over_is_forgotten() -> None:
    clock: Any = Clock()
    rested: list[Any] = []
    awake, one = Awake(), Sandbox(rested)
    awake.stir(clock, one)
    awake.forget(one)
    awake.forget(one)
    clock.pass_time(QUIET_S * 2)

    assert not rested


def test_a_failure_of_one_is_no_others() -> None:
    """The barrier takes the exception, and the others rest in the next look."""
    clock: Any = Clock()
    rested: list[Any] = []

    class Broken:
        def rest(self) -> None:
            raise ValueError

    awake, one = Awake(), Sandbox(rested)
    awake.stir(clock, Broken())
    awake.stir(clock, one)
    try:
        clock.pass_time(QUIET_S)
    except ValueError:
        clock.pass_time(QUIET_S)

    assert [one] == rested


def test_a_look_that_failed_is_made_up_for_by_the_next_use() -> None:
    clock: Any = Clock()
    rested: list[Any] = []
    awake, one, other = Awake(), Sandbox(rested), Sandbox(rested)
    awake.stir(clock, one)
    clock.timers.clear()  # the barrier has caught what the callback raised
    awake.broken(ValueError())
    awake.stir(clock, other)
    clock.pass_time(QUIET_S * 2)

    assert [one, other] == rested
