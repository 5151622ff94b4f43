"""A worker that can't arm a runner: how soon it tries again, and when it gives up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from kit.clock import Clock
from leeward.daemon.pool.begin import Patience
from leeward.daemon.worker.arming import Arming
from leeward.daemon.worker.terms import WorkerSettings
from leeward.daemon.worker.worker import Worker, WorkerState
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.entry import Entry
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits
from leeward.wire import control

#: Seconds that a request waits for a worker, by default.
QUEUE_TIMEOUT_S = 30.0


class Loop(Clock):
    """With what it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, _events: int, call: Callable[[int], None]) -> None:
        self.watched[fd] = call

    def forget(self, fd: int) -> None:
        del self.watched[fd]


class Group:
    """Refuses a runner's group with *number*; counts how often it was asked."""

    keeper = Entry()

    def __init__(self, number: int) -> None:
        self.number, self.asked = number, 0

    def leaf(self, *_: object, patient: bool) -> None:
        self.asked += 1
        raise KernelRefusal("mkdir", "w0.1", self.number)

    def remove(self) -> bool:
        return True


@dataclass
class Pool:
    """Gives a turn at once; notes which failures were called passing."""

    passing: list[bool] = field(default_factory=list)

    @property
    def refill(self) -> Pool:
        return self

    def want(self, arming: Arming) -> None:
        arming.arm(patient=False)

    def worker_failed(self, _worker: Worker, _layer: str, _text: str, *, passing: bool = False) -> None:
        self.passing.append(passing)

    def worker_gone(self, _worker: Worker) -> None:
        return

    def renews(self) -> bool:
        return True


@pytest.fixture
def serving() -> Iterator[Callable[[int], tuple[Worker, Loop, Group, Pool]]]:
    """Makes a worker that serves, and whose runners' groups are refused with an error."""
    made: list[tuple[Worker, Channel]] = []

    def make(number: int) -> tuple[Worker, Loop, Group, Pool]:
        clock, group, pool = Loop(), Group(number), Pool()
        terms = WorkerSettings(Limits(), (0, 0), 1, 1000, (), Patience(), Mock())
        worker = Worker(clock, 0, (0, 0), group, terms, pool)  # type: ignore[arg-type]
        keeper = Channel.adopt(os.dup(worker.order()[1][0]))
        made.append((worker, keeper))
        worker.ordered()
        keeper.send(control.Ready({}))
        next(iter(clock.watched.values()))(1)
        return worker, clock, group, pool

    yield make
    for worker, keeper in made:
        worker.retire("")
        keeper.close()


def test_a_removed_group_is_tried_again_many_times_within_a_requests_patience(serving):
    """Who removes groups without end lets one try in ten through, say: a request that waits mustn't run out of time."""
    worker, clock, group, pool = serving(errno.ENOENT)
    while clock.time < QUEUE_TIMEOUT_S / 3:
        clock.step()

    assert WorkerState.SERVING is worker.state
    assert group.asked > 90
    assert pool.passing == [True] * group.asked  # whoever makes another in its place needn't wait


def test_without_descriptors_it_is_tried_less_often(serving):
    worker, clock, group, _ = serving(errno.EMFILE)
    while clock.time < QUEUE_TIMEOUT_S / 3:
        clock.step()

    assert WorkerState.SERVING is worker.state
    assert group.asked < 20


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EMFILE])
def test_a_worker_gives_up_in_the_end(serving, number):
    worker, clock, _, _ = serving(number)
    while worker.state is WorkerState.SERVING:
        clock.step()

    assert 12.0 < clock.time < 15.0


def test_a_workers_own_fault_ends_it_at_once(serving):
    worker, clock, group, pool = serving(errno.EACCES)

    assert WorkerState.RETIRING is worker.state
    assert (1, [False], 0.0) == (group.asked, pool.passing, clock.time)
