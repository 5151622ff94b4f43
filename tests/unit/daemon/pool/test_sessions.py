"""A session's states, over a pool that does what the test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from leeward.daemon.loop.reactor import Ran
from leeward.daemon.pool.sessions import TABLE, PoolSession, SessionEvent, SessionState, sessions_of
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import after
from leeward.errors import Bug, Busy, LeewardError, QueueTimeout, Refused, SessionOver
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

DONE = Report(result=Result(b"", b"", 0, Outcome.FINISHED))


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("event", SessionEvent)
def test_an_event_that_the_table_lacks_is_a_bug(state: SessionState, event: SessionEvent) -> None:
    if (state, event) in TABLE:
        assert after("session", TABLE, state, event) is TABLE[state, event]
    else:
        with pytest.raises(Bug, match=f"session: {event.value} in state {state.value}"):
            after("session", TABLE, state, event)


def test_every_state_can_be_left_and_closed_is_the_end() -> None:
    for state in SessionState:
        assert ((state, SessionEvent.CLOSED) in TABLE) is (state is not SessionState.CLOSED)
    assert SessionState.CLOSED not in {state for state, _ in TABLE}


@pytest.mark.parametrize(("asked", "workers", "room", "may"), [
    (-1, 1, 0, 0), (-1, 2, 0, 1), (-1, 5, 0, 2), (0, 8, 0, 0), (3, 8, 0, 3), (8, 8, 0, 8), (9, 8, 0, 8),
    (-1, 1, 10, 10), (-1, 4, 10, 12), (0, 4, 10, 0), (9, 4, 10, 9), (99, 4, 10, 14)])
def test_the_number_of_sessions_has_a_bound(asked: int, workers: int, room: int, may: int) -> None:
    """Half of the workers are left to others, unless the configuration says otherwise; and there is room for more."""
    assert may == sessions_of(asked, workers, room)


class Ticket:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Lease:
    runner = 1

    def __init__(self, lost: Callable[[str], None]) -> None:
        self.lost, self.ends, self.interrupts = lost, [], 0

    ends: list[str]
    kept = 0

    def keep(self) -> None:
        self.kept += 1

    def end(self, why: str) -> None:
        self.ends.append(why)

    def interrupt(self) -> bool:
        self.interrupts += 1
        return True


class Worker:
    """One that has a runner, or lost it."""

    def __init__(self, error: LeewardError | None = None) -> None:
        self.error, self.leases, self.leasing = error, [], self

    leases: list[Lease]

    def lease(self, limits: Limits, lost: Callable[[str], None], _policy: object = None) -> Lease:
        if self.error is not None:
            raise self.error
        self.leases.append(Lease(lost))
        return self.leases[-1]


class Pool:
    """Has no worker at once unless *ready*."""

    short = None
    now = staticmethod(time.monotonic)

    def __init__(self, ready: bool = True) -> None:
        self.worker = Worker()
        self.ready, self.error = ready, None
        self.waiting: list[tuple[Any, Any, Ticket]] = []
        self.jobs: list[tuple[Job, Any, Ticket]] = []
        self.rans: list[tuple[Lease, Ran]] = []
        self.over = self.forgotten = 0

    error: Exception | None

    def await_worker(self, limits: Limits, user: int, take: Any, refused: Any, seconds: float) -> Ticket | None:
        if self.error is not None:
            raise self.error
        if self.ready and take(self.worker):
            return None
        self.waiting.append((take, refused, Ticket()))
        return self.waiting[-1][2]

    def run_in(self, session: PoolSession, lease: Any, job: Job, done: Any, start: Any = None) -> Ticket:
        assert start is None  # there is no fast path here
        if self.error is not None:
            raise self.error

        def answer(report: Report) -> None:
            session.job_over()  # as a ticket does
            done(report)

        self.jobs.append((job, answer, Ticket()))
        return self.jobs[-1][2]

    def ran_in(self, lease: Any, ran: Ran, user: int) -> None:
        self.rans.append((lease, ran))

    def lease_over(self, user: int, limits: Limits) -> None:
        self.over += 1

    def forget_session(self, session: PoolSession) -> None:
        self.forgotten += 1


def opened(pool: Pool) -> tuple[PoolSession, list[Refused | None]]:
    told: list[Refused | None] = []
    session = PoolSession(pool, Limits(), 0)  # type: ignore[arg-type]  # as far as a session needs it
    session.acquire(told.append, 5.0)
    return session, told


def test_a_session_with_a_worker_takes_one_job_at_a_time() -> None:
    pool = Pool()
    session, told = opened(pool)
    reports: list[Report] = []
    session.run(Job(code=b"1"), reports.append)

    assert [None] == told
    with pytest.raises(Busy, match="one at a time"):
        session.run(Job(code=b"2"), reports.append)
    assert session.interrupt()
    pool.jobs[0][1](DONE)
    assert ([DONE], SessionState.IDLE) == (reports, session.state)
    assert not session.interrupt()
    session.run(Job(code=b"3"), reports.append)
    assert 2 == len(pool.jobs)


def test_a_session_waits_for_its_worker() -> None:
    pool = Pool(ready=False)
    session, told = opened(pool)

    with pytest.raises(Busy, match="waits"):
        session.run(Job(code=b"1"), lambda report: None)
    with pytest.raises(Busy, match="waits"):
        session.reset(told.append, 5.0)
    assert [] == told
    assert pool.waiting[0][0](pool.worker)
    assert ([None], SessionState.IDLE) == (told, session.state)


def test_a_runner_that_is_lost_at_once_is_no_worker() -> None:
    """The pool asks again with the next one."""
    pool = Pool()
    pool.worker.error = LeewardError("gone")
    session, told = opened(pool)
    assert (SessionState.WAITING, []) == (session.state, told)
    pool.worker.error = None

    assert pool.waiting[0][0](pool.worker)
    assert [None] == told


def test_no_worker_in_time() -> None:
    pool = Pool(ready=False)
    session, told = opened(pool)
    refusal = QueueTimeout("no worker came free")
    pool.waiting[0][1](Report(refusal=refusal))

    assert ([refusal], SessionState.LOST) == (told, session.state)
    with pytest.raises(SessionOver, match="no worker came free"):
        session.run(Job(code=b"1"), lambda report: None)


@pytest.mark.parametrize("running", [False, True])
def test_a_lost_process_is_the_end_of_the_state(running: bool) -> None:
    """Until a reset; and its late news say nothing of the next one."""
    pool = Pool()
    session, told = opened(pool)
    first = pool.worker.leases[0]
    if running:
        session.run(Job(code=b"1"), lambda report: None)
    first.lost("it ran out of memory")

    assert (SessionState.LOST, 1) == (session.state, pool.over)
    with pytest.raises(SessionOver, match="ran out of memory"):
        session.run(Job(code=b"2"), lambda report: None)
    session.reset(told.append, 5.0)
    assert ([None, None], SessionState.IDLE) == (told, session.state)
    first.lost("again")
    assert SessionState.IDLE is session.state


def test_a_reset_gives_the_old_process_back_first() -> None:
    pool = Pool()
    session, told = opened(pool)
    pool.ready = False
    session.reset(told.append, 5.0)

    assert ["it was reset"] == pool.worker.leases[0].ends
    assert SessionState.WAITING is session.state
    pool.worker.leases[0].lost("it was reset")
    assert SessionState.WAITING is session.state
    pool.waiting[0][0](pool.worker)
    assert ([None, None], 2) == (told, len(pool.worker.leases))


def test_a_refused_reset_leaves_no_lease() -> None:
    pool = Pool()
    session, told = opened(pool)
    pool.error = Busy("full")
    with pytest.raises(Busy, match="full"):
        session.reset(told.append, 5.0)
    pool.error = None

    assert SessionState.LOST is session.state
    with pytest.raises(SessionOver, match="full"):
        session.run(Job(code=b"1"), lambda report: None)
    session.reset(told.append, 5.0)
    assert SessionState.IDLE is session.state


def test_a_refused_job_leaves_the_session_as_it_was() -> None:
    pool = Pool()
    session, _ = opened(pool)
    pool.error = Busy("too many a second")
    with pytest.raises(Busy, match="a second"):
        session.run(Job(code=b"1"), lambda report: None)

    assert SessionState.IDLE is session.state


@pytest.mark.parametrize("state", [SessionState.WAITING, SessionState.IDLE, SessionState.RUNNING, SessionState.LOST])
def test_closing_gives_everything_back_once(state: SessionState) -> None:
    pool = Pool(ready=state is not SessionState.WAITING)
    session, told = opened(pool)
    if SessionState.RUNNING is state:
        session.run(Job(code=b"1"), lambda report: None)
    elif SessionState.LOST is state:
        pool.worker.leases[0].lost("gone")
    assert state is session.state
    session.close()
    session.close()

    assert (SessionState.CLOSED, 1) == (session.state, pool.forgotten)
    assert [ticket.cancelled for _, _, ticket in pool.waiting] == [True] * len(pool.waiting)
    assert [lease.ends for lease in pool.worker.leases] == (
        [["it was closed"]] if state in (SessionState.IDLE, SessionState.RUNNING) else [[]] * len(pool.worker.leases))
    assert len(told) == (state is not SessionState.WAITING)


def test_a_session_that_is_given_up_cancels_its_wait() -> None:
    pool = Pool(ready=False)
    session, told = opened(pool)
    session.give_up()

    assert (SessionState.LOST, [], True) == (session.state, told, pool.waiting[0][2].cancelled)


def test_a_drain_ends_sessions_without_a_job() -> None:
    pool = Pool()
    idle, busy = opened(pool)[0], opened(pool)[0]
    busy.run(Job(code=b"1"), lambda report: None)
    for session in (idle, busy):
        session.drain()

    assert (SessionState.LOST, SessionState.RUNNING) == (idle.state, busy.state)
    assert ["the daemon is shutting down"] == pool.worker.leases[0].ends
    assert [0, 1] == [lease.kept for lease in pool.worker.leases]  # the fast path gives it no other job


def test_a_job_that_was_over_when_reported_counts_as_use_of_the_session() -> None:
    pool = Pool()
    session = opened(pool)[0]
    ran = Ran(7, 1, 1, started=session.since + 1.0, ended=session.since + 2.0, cpu_time=0.5, memory_peak=1)
    session.ran(ran)

    assert (SessionState.IDLE, ran.ended) == (session.state, session.since)
    assert [(pool.worker.leases[0], ran)] == pool.rans
