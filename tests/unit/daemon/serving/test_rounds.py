"""Turns by user: who floods by many connections has no more of a turn than by one, and a guest's second is bounded."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.serving import rounds
from leeward.daemon.serving.rounds import Budget, Rounds

OWNER, GUEST, OTHER = 0, 4711, 4712


class Stand:
    """
    Rounds in a reactor whose time stands still unless it is told, and connections that always want more.

    Attributes:
        served: requests, by user and connection.
    """

    def __init__(self) -> None:
        self.time = 100.0
        self.reactor = ReferenceReactor()
        self.reactor.now = lambda: self.time  # type: ignore[method-assign]
        self.rounds = Rounds(self.reactor)
        self.served: Counter[tuple[int, int]] = Counter()

    def budget(self, user: int) -> Budget:
        return self.rounds.budget(user, user != OWNER)

    def floods(self, user: int, connection: int, requests: int = 1 << 30, size: int = 0) -> None:
        """Let a connection want so many requests of *size* bytes."""
        budget = self.budget(user)
        left = requests

        def serve() -> None:
            nonlocal left
            for _ in range(rounds.STEP):
                if left and self.rounds.may(budget):
                    left -= 1
                    self.served[user, connection] += 1
                    self.rounds.charge(budget, 1, size, size)
            if left:
                self.rounds.later(budget, connection, serve)
        self.rounds.later(budget, connection, serve)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.reactor.turn(0.0)

    def of(self, user: int) -> int:
        return sum(count for (whose, _), count in self.served.items() if whose == user)


@pytest.fixture
def stand() -> Stand:
    return Stand()


@pytest.mark.parametrize("connections", [1, 64])
def test_the_share_of_a_turn_does_not_grow_with_connections(stand: Stand, connections: int) -> None:
    for connection in range(connections):
        stand.floods(GUEST, connection)
    stand.turns(10)

    assert 10 * rounds.GUESTS_TURN == stand.of(GUEST)


def test_connections_of_a_user_share_the_users_turns(stand: Stand) -> None:
    for connection in range(4):
        stand.floods(GUEST, connection)
    stand.turns(20)

    assert 1 == len(set(stand.served.values()))


def test_users_have_a_turn_each(stand: Stand) -> None:
    for connection in range(64):
        stand.floods(GUEST, connection)
    stand.floods(OTHER, 100)
    stand.floods(OWNER, 101)
    stand.turns(10)

    assert (80, 80, 320) == (stand.of(GUEST), stand.of(OTHER), stand.of(OWNER))


def test_a_round_that_takes_long_goes_on_with_the_next_user(stand: Stand) -> None:
    """So that users who flood together don't add up."""
    seen: list[int] = []

    def slow(user: int) -> None:
        seen.append(user)
        stand.time += rounds.ROUND_S
        stand.rounds.later(stand.budget(user), user, partial(slow, user))
    for user in (1, 2, 3):
        stand.rounds.later(stand.budget(user), user, partial(slow, user))
    stand.turns(6)

    assert [1, 2, 3, 1, 2, 3] == seen[:6]
    assert 6 == len(seen)


def test_large_requests_cost_more_turns(stand: Stand) -> None:
    stand.floods(GUEST, 1, size=2 * rounds.GUESTS_TURN * rounds.UNIT)
    stand.turns(30)

    assert 14 <= stand.of(GUEST) <= 16  # each is paid for in two turns


def test_a_guests_second_is_bounded_and_the_owners_is_not(stand: Stand) -> None:
    stand.floods(GUEST, 1)
    stand.floods(OWNER, 2)
    stand.turns(10_000)
    first, owner = stand.of(GUEST), stand.of(OWNER)
    assert rounds.RATE <= first <= rounds.RATE + rounds.GUESTS_TURN
    assert 10_000 * rounds.OWNERS_TURN == owner

    stand.time += 0.5
    stand.turns(10_000)
    assert first + rounds.RATE // 2 - rounds.GUESTS_TURN <= stand.of(GUEST) <= first + rounds.RATE // 2 + 1


def test_a_guests_bytes_of_a_second_are_bounded(stand: Stand) -> None:
    budget = stand.budget(GUEST)
    stand.rounds.charge(budget, 0, came=rounds.BYTES)
    assert not stand.rounds.exhausted(budget)
    stand.rounds.charge(budget, 0, came=rounds.BYTES // 4 + 1)
    assert stand.rounds.exhausted(budget)
    stand.time += 0.26

    assert not stand.rounds.exhausted(budget)


def test_an_exhausted_guest_waits_for_a_timer_without_busy_turns(stand: Stand) -> None:
    stand.rounds.charge(stand.budget(GUEST), 2 * rounds.RATE)
    stand.floods(GUEST, 1, 1)
    stand.turns(3)
    assert (0, 0) == (stand.of(GUEST), len(stand.reactor._soon))
    stand.time += 1.01
    stand.turns(3)

    assert 1 == stand.of(GUEST)
    assert not stand.rounds._ring


def test_another_user_is_served_while_an_exhausted_one_waits(stand: Stand) -> None:
    stand.rounds.charge(stand.budget(GUEST), 2 * rounds.RATE)
    stand.floods(GUEST, 1, 1)
    stand.floods(OTHER, 2, 1)
    stand.turns(2)

    assert (0, 1) == (stand.of(GUEST), stand.of(OTHER))


def test_a_reconnect_does_not_restore_the_budget(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of users without a connection are remembered while they are charged."""
    monkeypatch.setattr(rounds, "_IDLE", 4)
    stand.rounds.charge(stand.budget(GUEST), 2 * rounds.RATE)
    for user in range(5000, 5100):
        stand.budget(user)

    assert stand.rounds.exhausted(stand.budget(GUEST))
    assert 8 > len(stand.rounds._budgets)


def test_a_closed_connection_is_not_served(stand: Stand) -> None:
    stand.floods(GUEST, 1)
    stand.rounds.forget(stand.budget(GUEST), 1)
    stand.rounds.forget(stand.budget(GUEST), 1)
    stand.turns(2)

    assert 0 == stand.of(GUEST)


@pytest.mark.faults("a bug is what this is about")
def test_an_exception_costs_the_served_connection_alone(stand: Stand) -> None:
    def broken() -> None:
        raise ValueError("a bug")
    stand.rounds.later(stand.budget(GUEST), 1, broken)
    stand.floods(OTHER, 2, 1)
    stand.turns(2)

    assert 1 == stand.of(OTHER)
    assert 1 == stand.reactor.barrier.faults
