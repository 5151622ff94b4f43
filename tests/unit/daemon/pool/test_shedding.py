"""Who is refused by the fast path, and for how long. The clock is the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leeward.daemon.loop.reactor import Timer
from leeward.daemon.pool.admission import LAPSE_S, MOST, Shedding
from leeward.errors import Busy

WHY = Busy("all workers are busy", retry_after=0.01)
OWNER, GUEST = 1000, 1001


class Box:
    """A pool under an overload, unless the test says otherwise; and whom the fast path was told to shed."""

    def __init__(self) -> None:
        self.dense = True
        self.shed: dict[int, bool] = {}
        self.said: list[Busy] = []
        self._timers: list[Timer] = []
        path = SimpleNamespace(shed=self.shed.__setitem__, refuse_with=self.said.append, offered=1)
        self.path: Any = path
        reactor = SimpleNamespace(fast_path=path, after=self._after, now=lambda: 0.0)
        backlog = SimpleNamespace(dense=lambda now: self.dense)
        self.shedding = Shedding(cast("Any", reactor), cast("Any", backlog), lambda: self.path)

    def _after(self, seconds: float, call: Any) -> Timer:
        self._timers.append(Timer(seconds, call))
        return self._timers[-1]

    @property
    def timers(self) -> list[Timer]:
        return [timer for timer in self._timers if timer.is_set]

    def look(self, *, offers: int = 1) -> None:
        self.path.offered += offers
        [timer] = self.timers
        call, timer.call = timer.call, None
        assert (LAPSE_S, True) == (timer.when, call is not None)
        cast("Any", call)()

    def refuse(self, connection: int, times: int = MOST, user: int = OWNER) -> None:
        for _ in range(times):
            self.shedding.refused(user, connection, WHY, 0.0)


@pytest.fixture
def box() -> Box:
    made = Box()
    made.refuse(1, 1)  # whoever is the first has no other user beside him
    made.shedding.stop()
    made.shed.clear()
    return made


def test_a_connection_that_is_refused_again_and_again_is_shed_for_that_time(box: Box) -> None:
    box.refuse(1, MOST - 1)
    assert ({}, False) == (box.shed, box.shedding.on)
    box.refuse(1, 1)
    assert ({1: True}, True, [WHY]) == (box.shed, box.shedding.on, box.said)
    for _ in range(3):
        box.shedding.count(1, MOST)  # by the fast path
        box.look()
        assert ({1: True}, True) == (box.shed, box.shedding.on)
    box.shedding.count(1, MOST - 1)
    box.look()
    assert ({1: False}, False, []) == (box.shed, box.shedding.on, box.timers)
    box.refuse(1)
    assert {1: True} == box.shed


def test_the_end_of_an_overload_ends_it(box: Box) -> None:
    box.refuse(1)
    box.refuse(2)
    box.dense = False
    box.look()

    assert ({1: False, 2: False}, False, []) == (box.shed, box.shedding.on, box.timers)


def test_a_connection_that_is_refused_now_and_then_is_not_shed(box: Box) -> None:
    """Beside one that is."""
    for _ in range(5):
        box.refuse(1)
        box.refuse(2, MOST - 1)
        assert {1: True} == box.shed
        box.look()


def test_no_connection_is_shed_while_two_users_are_refused(box: Box) -> None:
    """The queue knows whose turn it is, and the fast path doesn't."""
    box.refuse(1)
    box.refuse(7, 1, GUEST)
    assert ({1: False}, False) == (box.shed, box.shedding.on)
    for _ in range(3 * MOST):
        box.refuse(1, 1)
        box.refuse(7, 1, GUEST)
    assert {1: False} == box.shed


def test_no_connection_is_shed_where_no_runner_is_offered(box: Box) -> None:
    """Else such a connection would have all its jobs refused, although workers come free."""
    box.path.offered = 0
    box.refuse(1, 3 * MOST)
    assert {} == box.shed
    box.path.offered = 1
    box.refuse(1)
    assert {1: True} == box.shed
    box.shedding.count(1, MOST)
    box.look(offers=0)
    assert {1: False} == box.shed
    box.refuse(1, 3 * MOST)
    assert {1: False} == box.shed
    box.path.offered += 1
    box.refuse(1)
    assert {1: True} == box.shed


def test_a_number_that_is_used_again_is_another_connections(box: Box) -> None:
    """The new one was refused nothing yet, and is shed by its own refusals."""
    box.refuse(1)
    assert (False, {1: True}, True) == (box.shedding.quiet(1), box.shed, box.shedding.on)
    box.shedding.forget(1)  # its stream is gone, with what the fast path knew
    box.shed.clear()

    assert (True, False, {}) == (box.shedding.quiet(1), box.shedding.on, box.shed)
    box.refuse(1, MOST - 1)
    assert {} == box.shed
    box.refuse(1, 1)
    assert {1: True} == box.shed


@pytest.mark.parametrize("case", ["not dense", "no fast path", "no connection"])
def test_no_connection_is_shed_without_the_preconditions(box: Box, case: str) -> None:
    box.dense = case != "not dense"
    box.path = None if case == "no fast path" else box.path
    box.refuse(0 if case == "no connection" else 1, 3 * MOST)

    assert ({}, False) == (box.shed, box.shedding.on)
