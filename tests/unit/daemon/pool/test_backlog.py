"""A queue bounded by time: what is a burst, what is an overload, and who is refused. The clock is the test's own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from leeward.daemon.pool.admission import JOBS, REMEMBERED, Backlog
from leeward.daemon.pool.line import FairQueue

DELAY = 0.1


@dataclass(frozen=True)
class Job:
    take = None
    number: int
    came: float
    takes: float
    connection: int = 0
    user: int = 0


def any_of(_: Job) -> bool:
    return True


@dataclass
class Daemon:
    """Workers, a line and a backlog, as the pool has them."""

    workers: int = 4
    size: int = 64
    delay: float = DELAY
    waits: dict[int, float] = field(default_factory=dict)
    refused: dict[int, float] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.backlog, self.line = Backlog(self.delay, self.workers), FairQueue[Job](self.size)
        self._free = list(range(self.workers))
        self._ends: list[tuple[float, int]] = []

    def run(self, jobs: Iterable[Job]) -> Daemon:
        """All of *jobs*, which come in order of time, to their end."""
        for job in jobs:
            self._until(job.came)
            self._arrive(job)
        self._until(1e9)
        return self

    def _until(self, when: float) -> None:
        while self._ends and self._ends[0][0] <= when:
            self.now, slot = heapq.heappop(self._ends)
            self.backlog.free(slot, self.now)
            job = self.line.take(any_of)
            if job is None:
                self._free.append(slot)
            else:
                self._start(job, slot)
            if not self.line:
                self.backlog.idle()
        self.now = when

    def _arrive(self, job: Job) -> None:
        if self._free:
            self._start(job, self._free.pop())
            return
        self.backlog.waits(self.now)
        if self.backlog.refusal(self.line.before(job.user, job.connection, any_of), self.now) is not None:
            self.refused[job.number] = self.now
        elif (loser := self.line.add(job)) is not None:
            self.backlog.full(self.now)
            self.refused[loser.number] = self.now

    def _start(self, job: Job, slot: int) -> None:
        self.waits[job.number] = self.now - job.came
        self.backlog.started(slot, self.now)
        heapq.heappush(self._ends, (self.now + job.takes, slot))


def steady(rate: float, seconds: float, takes: float = 0.01, start: float = 0.0, connections: int = 6) -> Iterator[Job]:
    for number in range(int(rate * seconds)):
        yield Job(int(start * 1e6) + number, start + number / rate, takes, number % connections)


def burst(count: int, when: float, takes: float = 0.01, first: int = 0) -> list[Job]:
    return [Job(first + number, when, takes) for number in range(count)]


def warmed(**options: float) -> Daemon:
    """One that has had some jobs of 10 ms, and is idle at second 1."""
    daemon = Daemon(**options).run(steady(100, 0.5, start=0.1))  # type: ignore[arg-type]  # by name
    assert not daemon.refused
    daemon.now = 1.0
    return daemon


@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
def test_an_overload_that_lasts_is_shed_and_gets_as_much_done(load: float) -> None:
    """Who is taken waits for less than a job takes, nobody is refused later than at once, and no worker is idle."""
    capacity, seconds = 400, 10.0
    jobs = list(steady(load * capacity, seconds))
    daemon = Daemon().run(jobs)
    came = {job.number: job.came for job in jobs}
    late = [wait for number, wait in daemon.waits.items() if came[number] > 2.0]

    assert max(late) <= 0.0101
    assert len(daemon.waits) >= 0.99 * capacity * seconds
    assert all(when == came[number] for number, when in daemon.refused.items() if came[number] > 2.0)


def test_the_control_waits_for_the_whole_queue() -> None:
    daemon = Daemon(delay=0.0).run(steady(1200, 5.0))

    assert max(daemon.waits.values()) > 0.15


def test_bursts_pass_as_long_as_they_are_worked_off() -> None:
    """As many at once as the queue has places, again and again."""
    daemon = warmed()
    daemon.run(itertools.chain(*(burst(68, 1.0 + turn, first=10_000 + 100 * turn) for turn in range(20))))

    assert not daemon.refused


def test_a_burst_may_follow_the_answers_of_another() -> None:
    """Before a worker is armed again for it: none was idle in between, but nobody waited."""
    daemon = warmed()
    daemon.run(itertools.chain(*(burst(64, 1.0 + turn * 0.1599, first=10_000 + 100 * turn) for turn in range(20))))

    assert not daemon.refused


@pytest.mark.parametrize("at_once", [8, 32, 40])
def test_clients_that_wait_for_their_answers_are_no_overload(at_once: int) -> None:
    """Each job's end is the next one's beginning: somebody waits all the time, and nobody for ten job times."""
    daemon = warmed()
    daemon.run([*burst(at_once, 1.0, first=10_000),
                *(Job(20_000 + number, 1.0 + (1 + number // 4) * 0.01, 0.01) for number in range(2000))])

    assert not daemon.refused


def test_long_jobs_wait_for_each_other() -> None:
    """Seconds each, after short ones: what is recent is what runs, too."""
    daemon = warmed()
    daemon.run([Job(10_000 + number, 1.0 + 0.2 * number, 5.0) for number in range(40)])

    assert not daemon.refused
    assert max(daemon.waits.values()) > 30.0


def test_no_job_is_refused_before_one_has_ended() -> None:
    backlog = Backlog(DELAY, 1)
    backlog.started(0, 0.0)
    backlog.waits(0.0)

    assert [None] * 3 == [backlog.refusal(1000, now) for now in (0.1, 10.0, 1000.0)]


def standing(workers: int = 2) -> Backlog:
    """Jobs take 10 ms, and somebody has waited for longer than the bound by second 1."""
    backlog = Backlog(DELAY, workers)
    backlog.started(0, 0.0)
    backlog.free(0, 0.01)
    backlog.waits(0.1)
    return backlog


def test_beyond_the_bound_a_stricter_one_holds() -> None:
    """Ten job times or the delay; then half a job time, until no job was refused for a while."""
    backlog = standing()
    assert JOBS * 0.01 <= DELAY
    bound = round(DELAY / 0.01 * 2) - 1

    assert backlog.refusal(bound, 1.0) is None
    assert backlog.refusal(2, 1.0) is None
    assert DELAY + 0.005 == pytest.approx(backlog.refusal(bound + 1, 1.0))
    assert 0.015 == pytest.approx(backlog.refusal(2, 1.1))
    assert backlog.refusal(0, 1.1) is None
    assert (None, None, 0.015) == tuple(backlog.refusal(before, 1.1, quiet=True) and 0.015 for before in (0, 1, 2))
    assert backlog.refusal(2, 1.1 + REMEMBERED * DELAY) is None


def test_a_queue_that_gets_empty_is_none_that_stands() -> None:
    backlog = standing()
    backlog.idle()
    assert backlog.refusal(1000, 1.0) is None
    backlog.waits(1.0)
    assert backlog.refusal(1000, 1.05) is None
    assert backlog.refusal(1000, 1.2) is not None


@pytest.mark.parametrize(("when", "strict"), [(0.15, False), (1.0, True)])
def test_a_full_queue_is_an_overload_if_it_stands(when: float, strict: bool) -> None:
    backlog = standing()
    backlog.full(when)

    assert strict is (backlog.refusal(2, when + 0.01) is not None)


@pytest.mark.parametrize(("load", "dense"), [(1.5, False), (1.9, False), (3.0, True), (10.0, True)])
def test_the_backlog_is_dense_where_more_jobs_are_refused_than_start(load: float, dense: bool) -> None:
    daemon = Daemon().run(steady(load * 400, 5.0))
    assert dense is (len(daemon.refused) > len(daemon.waits))
    daemon = Daemon()
    seen = []
    for job in steady(load * 400, 5.0):
        daemon._until(job.came)
        daemon._arrive(job)
        seen.append(daemon.backlog.dense(job.came))

    assert {dense} == set(seen[len(seen) // 2:])


def test_a_few_refusals_or_old_ones_are_not_dense() -> None:
    backlog = standing()
    backlog.refused(7, 1.0)
    assert not backlog.dense(1.15)
    backlog.refused(8, 1.2)
    assert not backlog.dense(1.2)
    assert backlog.dense(1.3)
    assert not backlog.dense(2.0)


def test_workers_of_sessions_take_no_jobs() -> None:
    """They leave the divisor, and come back; where sessions have all workers the wait is unknown."""
    backlog = standing()
    assert backlog.refusal(15, 1.0) is None
    backlog.workers -= 1
    assert 0.16 == pytest.approx(backlog.refusal(15, 1.0))
    backlog.workers -= 1
    assert backlog.refusal(1000, 1.0) is None
    backlog.workers += 1
    assert backlog.refusal(1000, 1.0) is not None


def test_no_bound_by_time() -> None:
    backlog = standing()
    backlog.delay = 0.0
    backlog.full(1.0)

    assert backlog.refusal(1000, 1.0) is None


def test_the_job_time_is_never_less_than_that_of_running_jobs() -> None:
    backlog = standing()
    backlog.started(0, 2.0)
    backlog.started(1, 4.0)
    assert 2.0 == pytest.approx(backlog.job_time(5.0))
    backlog.free(0, 5.0)
    backlog.free(0, 6.0)  # said twice
    backlog.free(1, 5.0)

    assert 0.01 + (3 - 0.01) / 16 < backlog.job_time(100.0) < 0.3
