"""Which jobs may run beyond a pool's own workers, by what the machine has left."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.loop.reactor import Timer
from leeward.daemon.pool.begin import Beyond
from leeward.daemon.pool.capacity import _GUARD_S, AHEAD, LOOK_S, STANDBY, Capacity
from leeward.daemon.run.verdict import Stop
from leeward.isolation.cgroup import hierarchy

GIB = 1 << 30
#: Of the pool: two own workers, and two processors.
OWN = 2


class Job:
    """A ticket whose job sleeps, or computes."""

    take = session = None
    careful, unseen = False, True

    def __init__(self, *, computes: bool = False, user: int = 1, connection: int = 1, memory: int = GIB) -> None:
        self.user, self.connection = user, connection
        self.job = SimpleNamespace(limits=SimpleNamespace(memory=memory))
        self.used = 0.0
        self.computes = computes
        leaf = SimpleNamespace(cpu_time=lambda: self.used)
        self.stops: list[Stop] = []
        self.execution = SimpleNamespace(runner=SimpleNamespace(runnable=lambda: self.computes, leaf=leaf),
                                         started=100.0, before=SimpleNamespace(cpu_time=0.0),
                                         stopped=False, stop=self.stops.append)


class Timers:
    """A reactor's timers: of looks, and of the guard of memory."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timers: dict[float, Timer] = {}

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers[seconds] = Timer(self.time + seconds, call)
        return self.timers[seconds]

    def come(self, seconds: float = LOOK_S) -> None:
        """Let the timer of so many *seconds* come."""
        self.time += seconds
        timer = self.timers.pop(seconds)
        call, timer.call = timer.call, None
        assert call is not None
        call()


class Queue(list[Any]):
    takers = 0


class Stand:
    """A capacity with a pool around it that has what it asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, beyond: int = 50, left: int = 40 * GIB) -> None:
        monkeypatch.setattr(hierarchy, "processors", lambda: 2.0)
        self.timers, self.running, self.left = Timers(), list[Any](), left
        self.grown: list[int] = []
        self.workforce = SimpleNamespace(beyond=Beyond(beyond, 1000), own=OWN, held=0, offers={}, closed=False,
                                         grow=self.grown.append)
        self.queue = Queue()
        ledger = SimpleNamespace(running_anywhere=lambda user: sum(user == job.user for job in self.running),
                                 leaves_others=lambda *_: True)
        pool: Any = SimpleNamespace(workforce=self.workforce, ledger=ledger, queue=self.queue, tickets=self.running,
                                    admission=SimpleNamespace(serve=lambda: None), broken=lambda _: None)
        self.capacity = Capacity(self.timers, pool, lambda: (64 * GIB, self.left))  # type: ignore[arg-type]

    def start(self, *jobs: Job) -> None:
        for job in jobs:
            self.running.append(job)
            self.capacity.started(job)  # type: ignore[arg-type]

    def end(self, job: Job) -> None:
        self.running.remove(job)
        self.capacity.ended(job)  # type: ignore[arg-type]

    def carries(self, job: Job) -> bool:
        self.timers.time += LOOK_S
        return self.capacity.carries(job)  # type: ignore[arg-type]

    def seen(self) -> None:
        """Let all jobs be seen twice, so that it is known which of them compute."""
        for _ in range(2):
            self.carries(Job(user=99))


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch)


def test_own_workers_take_whatever_comes(stand: Stand) -> None:
    stand.left = 0
    assert stand.carries(Job())
    stand.start(Job(computes=True))
    assert stand.carries(Job())
    stand.start(Job(computes=True))
    assert not stand.carries(Job())


def test_jobs_that_sleep_cost_memory_alone(stand: Stand) -> None:
    for _ in range(40):
        stand.seen()
        assert stand.carries(Job(memory=GIB // 4))
        stand.start(Job(memory=GIB // 4))
    stand.left = 8 * GIB  # the reserve
    assert not stand.carries(Job(memory=GIB // 4))


def test_a_job_that_has_just_started_may_still_take_its_limit(stand: Stand) -> None:
    """Of what is there beside the reserve, 32 GiB, four have 24."""
    stand.start(Job(), Job())
    stand.seen()
    for _ in range(3):
        stand.start(Job(memory=8 * GIB))
    assert not stand.carries(Job(memory=9 * GIB))
    assert stand.carries(Job(memory=8 * GIB))
    stand.timers.time += 1.0
    stand.seen()
    assert stand.carries(Job(memory=30 * GIB))


def test_jobs_that_compute_are_bound_by_processors(stand: Stand) -> None:
    stand.start(*[Job(computes=True) for _ in range(4)])
    stand.seen()
    assert not stand.carries(Job())
    stand.running[0].computes = False
    stand.seen()
    assert stand.carries(Job())


def test_the_first_look_tells_whether_a_job_computes(stand: Stand) -> None:
    stand.start(Job(), Job(), Job(), Job(computes=True))
    assert stand.carries(Job())
    assert 1 == stand.capacity.computing


def test_processes_of_a_job_that_waits_for_them_compute(stand: Stand) -> None:
    jobs = [Job() for _ in range(4)]
    stand.start(*jobs)
    stand.seen()
    for job in jobs:
        job.used += LOOK_S  # all of the time since the last look
    assert 0 == stand.capacity.computing
    stand.carries(Job())
    assert 4 == stand.capacity.computing


@pytest.mark.parametrize(("sender", "most"), [
    (Job(), 4), (Job(connection=2), 8), (Job(user=2, connection=3), 12)])
def test_one_of_whom_nothing_runs_is_admitted_beyond_that(stand: Stand, sender: Job, most: int) -> None:
    for _ in range(most - 1):
        stand.start(Job(computes=True))
    stand.seen()
    assert stand.carries(sender)
    stand.start(Job(computes=True))
    assert not stand.carries(sender)


def test_jobs_that_wait_by_themselves_hold_up_no_other_of_their_connection(stand: Stand) -> None:
    """While one of another connection computes as much as it may: they are admitted as the first was."""
    stand.start(*(Job(computes=True) for _ in range(4)), Job(connection=2))
    stand.seen()
    assert stand.carries(Job(connection=2))
    assert not stand.carries(Job())


def test_workers_are_made_for_jobs_that_wait(stand: Stand) -> None:
    """As many ahead as jobs wait, one if processors are short, and none without memory."""
    stand.start(Job(), Job())
    stand.seen()
    stand.queue += [Job()] * 3
    stand.capacity.wake()
    stand.timers.come()
    stand.queue += [Job()] * 100
    stand.timers.come()
    for job in stand.running:
        job.computes = True
    stand.start(Job(computes=True), Job(computes=True))
    stand.timers.come()
    stand.timers.come()
    stand.left = 0
    stand.timers.come()
    assert [OWN + 3, OWN + AHEAD, 4 + STANDBY, 4 + STANDBY] == stand.grown


def test_nothing_is_looked_at_while_nothing_waits(stand: Stand) -> None:
    stand.queue.append(Job())
    stand.capacity.wake()
    stand.queue.clear()
    stand.timers.come()
    assert not stand.timers.timers


def test_offers_to_the_fast_path_are_for_own_workers(stand: Stand) -> None:
    stand.workforce.offers[1] = None
    assert stand.capacity.offers
    stand.start(Job())
    assert (False, False) == (stand.capacity.offers, stand.capacity.overdrawn)
    stand.start(Job())
    assert stand.capacity.overdrawn


def test_a_pool_with_no_more_workers_starts_what_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch, beyond=0)
    stand.start(*[Job(computes=True) for _ in range(9)])
    assert stand.carries(Job())
    assert stand.capacity.offers


def test_the_books_are_empty_when_all_has_ended(stand: Stand) -> None:
    jobs = [Job(), Job(), Job()]
    stand.start(*jobs)
    stand.seen()
    for job in jobs:
        stand.end(job)
    capacity = stand.capacity
    assert (0, 0, 0, 0) == (capacity.jobs, len(capacity._samples), len(capacity._waiting), len(capacity._connections))


def test_the_last_job_beyond_goes_when_memory_is_short(stand: Stand) -> None:
    """Not one of the own workers, nor one of which somebody outside has seen something."""
    jobs = [Job() for _ in range(5)]
    stand.start(*jobs)
    jobs[-1].unseen = False
    stand.timers.come(_GUARD_S)
    assert [[]] * 5 == [job.stops for job in jobs]
    stand.left = GIB
    stand.timers.come(_GUARD_S)
    assert [[], [], [], [Stop.HOST], []] == [job.stops for job in jobs]
    for job in jobs[2:]:
        stand.end(job)
    stand.timers.come(_GUARD_S)
    assert not stand.timers.timers
    assert [[]] * 3 == [job.stops for job in jobs[:3]]


def test_a_job_that_the_machine_has_ended_waits_for_its_whole_limit(stand: Stand) -> None:
    """Or for the end of all others."""
    careful = Job(memory=2 * GIB)
    careful.careful = True
    stand.left = GIB
    assert stand.carries(careful)
    stand.start(Job())
    assert not stand.carries(careful)
    stand.left = 3 * GIB
    assert stand.carries(careful)


def test_memory_that_cannot_be_read_is_none(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job starts beyond the own workers, and none is ended."""
    def unreadable() -> tuple[int, int]:
        raise OSError(24, "too many open files")

    jobs = [Job() for _ in range(3)]
    stand.start(*jobs)
    monkeypatch.setattr(stand.capacity, "_memory", unreadable)
    assert not stand.carries(Job())
    stand.timers.come(_GUARD_S)
    assert [[]] * 3 == [job.stops for job in jobs]
