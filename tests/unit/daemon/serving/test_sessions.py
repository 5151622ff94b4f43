"""The sessions of a connection, over a pool that has no worker until the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.config import Config
from leeward.daemon.pool.sessions import PoolSession
from leeward.daemon.serving.sessions import Cancellable, Leases
from leeward.errors import Refused, SessionOver
from leeward.spec.limits import Limits
from leeward.wire.requests import SessionClose, SessionOpen, SessionReset


class Waits:
    """A place in the pool's queue."""

    def __init__(self, take: Callable[[Any], bool]) -> None:
        self.take, self.cancelled = take, False

    def cancel(self) -> None:
        self.cancelled = True


class Lease:
    runner = 1

    def end(self, why: str) -> None:
        return


class Worker:
    def __init__(self) -> None:
        self.leasing = self

    def lease(self, limits: Limits, lost: Callable[[str], None], _policy: object = None) -> Lease:
        return Lease()


class Pool:
    most_sessions = 16
    most_jobs = 4
    workforce = SimpleNamespace(fast_path=None)
    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.waiting: list[Waits] = []
        self.sessions = 0
        self.worker: Worker | None = None  # that is free at once

    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int, egress: object = None) -> PoolSession:
        session = PoolSession(self, limits, user)  # type: ignore[arg-type]  # as far as a session needs it
        self.sessions += 1
        session.acquire(opened, queue_deadline)
        return session

    def await_worker(self, limits: Limits, user: int, take: Callable[[Any], bool], refused: Any,
                     seconds: float) -> Waits | None:
        if self.worker is not None and take(self.worker):
            return None
        self.waiting.append(Waits(take))
        return self.waiting[-1]

    def forget_session(self, session: PoolSession) -> None:
        self.sessions -= 1


class Owner:
    """A connection; *answers* in the order in which they went."""

    server, fd, user = SimpleNamespace(config=Config()), 7, 1000

    def __init__(self) -> None:
        self.leases: Leases
        self.in_flight: dict[int, Cancellable] = {}
        self.answers: list[tuple[int, Any]] = []
        self.share = SimpleNamespace(guest=False, sessions=0)
        self.gone = False  # which the next answer finds out

    def wait(self, request: int, ticket: Cancellable) -> None:
        self.in_flight[request] = ticket

    def answer(self, request: int, answer: Mapping[str, Any]) -> None:
        self.in_flight.pop(request, None)
        self.answers.append((request, answer))
        if self.gone:
            self.leases.end()

    def refuse(self, request: int, why: Refused) -> None:
        self.in_flight.pop(request, None)
        self.answers.append((request, why.kind))

    def cancel(self, request: int) -> None:
        ticket = self.in_flight.pop(request)
        ticket.cancel()
        self.leases.cancelled(request)
        self.answers.append((request, "cancelled"))


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def owner(pool: Pool) -> Owner:
    made = Owner()
    made.server = SimpleNamespace(config=Config(), jobs=pool)
    made.leases = Leases(made)
    return made


def test_closing_answers_an_open_that_waits(pool: Pool, owner: Owner) -> None:
    """A session's number is the next one, so its close may stand behind its open in one read."""
    owner.leases.open(SessionOpen(1))
    assert {} == owner.leases.close(SessionClose(2, session=1))

    assert ([(1, "cancelled")], {}) == (owner.answers, owner.in_flight)
    assert ([True], 0, 0) == ([ticket.cancelled for ticket in pool.waiting], pool.sessions, owner.share.sessions)
    with pytest.raises(SessionOver):
        owner.leases.close(SessionClose(3, session=1))


def test_closing_answers_a_reset_that_waits(pool: Pool, owner: Owner) -> None:
    owner.leases.open(SessionOpen(1))
    pool.waiting[0].take(Worker())
    owner.leases.reset(SessionReset(2, session=1))
    owner.leases.close(SessionClose(3, session=1))

    assert ([(1, {"session": 1}), (2, "cancelled")], {}) == (owner.answers, owner.in_flight)


def test_closing_withdraws_no_answered_open(pool: Pool, owner: Owner) -> None:
    """The number of an open that has its answer may be another request's by now."""
    owner.leases.open(SessionOpen(1))
    pool.waiting[0].take(Worker())
    owner.wait(1, Waits(lambda worker: True))
    owner.leases.close(SessionClose(3, session=1))

    assert ([(1, {"session": 1})], [1]) == (owner.answers, list(owner.in_flight))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_client_that_has_gone_when_its_session_is_open_leaves_none(pool: Pool, owner: Owner, at_once: bool) -> None:
    """The answer finds it out, and ends the connection while the session is being opened."""
    owner.gone = True
    pool.worker = Worker() if at_once else None
    owner.leases.open(SessionOpen(1))
    if not at_once:
        pool.waiting[0].take(Worker())

    assert ([(1, {"session": 1})], 0, 0) == (owner.answers, pool.sessions, owner.share.sessions)
