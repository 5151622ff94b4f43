"""Which workers are made; and who may arm a runner, and how many at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from leeward.daemon.pool.workforce import AHEAD, BURST, Refill, Workforce
from leeward.daemon.worker.worker import WorkerState


@dataclass
class Arming:
    """Arms runners with the numbers it is given; None for one that needs none any more."""

    numbers: list[int | None]
    patient: list[bool] = field(default_factory=list)
    hurried: list[int] = field(default_factory=list)

    def arm(self, *, patient: bool) -> int | None:
        self.patient.append(patient)
        return self.numbers.pop(0)

    def hurry(self, number: int) -> None:
        self.hurried.append(number)


def test_one_at_a_time_while_there_is_a_store(reactor):
    refill = Refill(reactor, lambda: 3, lambda: True)
    first, second = Arming([1]), Arming([2])
    refill.want(first)
    refill.want(second)
    assert (first.patient, second.patient) == ([True], [])
    refill.over(1)
    assert second.patient == [True]


def test_a_low_store_arms_a_runner_for_each_processor(reactor):
    refill = Refill(reactor, lambda: 2, lambda: False)
    workers = [Arming([number]) for number in range(3)]
    for worker in workers:
        refill.want(worker)
    assert [worker.patient for worker in workers] == [[False], [False], []]


def test_an_end_is_counted_once(reactor):
    refill = Refill(reactor, lambda: 1, lambda: True)
    workers = [Arming([number]) for number in range(3)]
    for worker in workers:
        refill.want(worker)
    refill.over(0)
    refill.over(0)
    assert [worker.patient for worker in workers] == [[True], [True], []]


def test_a_worker_that_needs_no_runner_takes_no_turn(reactor):
    refill = Refill(reactor, lambda: 1, lambda: True)
    last = Arming([3])
    for worker in (Arming([1]), Arming([None]), last):
        refill.want(worker)
    refill.over(1)
    assert last.patient == [True]


def test_a_stopped_keeper_does_not_delay_other_workers(reactor, monkeypatch):
    monkeypatch.setattr("leeward.daemon.pool.workforce.PATIENCE_S", 0.0)
    refill = Refill(reactor, lambda: 1, lambda: True)
    first, second = Arming([1]), Arming([2])
    refill.want(first)
    refill.want(second)
    reactor.run(lambda: bool(second.patient))
    assert [1] == first.hurried


class Queue:
    takers = jobs = only_user = 0

    def __len__(self) -> int:
        return self.takers + self.jobs


def test_workers_are_made_at_once_for_sandboxes_that_wait(reactor):
    """
    So many ahead, fewer if jobs wait as well or others have something that runs, and others as soon as those are held; no
    more than the room, and none for who waits no longer.
    """
    maker = SimpleNamespace(make_worker=lambda slot, _workforce, lean: SimpleNamespace(
        slot=slot, lean=lean, state=WorkerState.MAKING, outdated=False, free=False, busy=False, armed=0))
    work = SimpleNamespace(queue=Queue(), over=False, ledger=Mock())
    workforce = Workforce(reactor, maker, work, 4, room=40)
    workforce.make_missing()
    assert 4 == len(workforce.by_slot)

    for takers, jobs, alone, held, wanted in (
            (2, 0, True, 0, 4), (100, 1, True, 0, 4 + AHEAD - 2), (100, 0, False, 0, 4 + AHEAD - 2),
            (100, 0, True, 0, 4 + BURST - 2), (90, 1, True, 10, 14 + AHEAD - 2), (60, 0, True, 40, 44), (0, 0, True, 40, 42)):
        work.queue.takers, work.queue.jobs, work.ledger.alone.return_value = takers, jobs, alone
        most = max(len(workforce.by_slot), wanted)
        workforce.await_holders()
        workforce.hold(held - workforce.held)
        assert wanted == workforce.wanted
        assert workforce.with_held(0) <= wanted
        reactor.run(lambda most=most: len(workforce.by_slot) == most)
    assert not any(worker.lean for worker in workforce.workers)


def test_a_worker_that_is_gone_or_claimed_occupies_nothing(reactor):
    """
    Else its last job grew older for ever, and with it the time that others are said to wait: of 100,000 jobs of one
    `leeward map` 23,844 were refused, for want of a worker within minutes.
    """
    maker = SimpleNamespace(make_worker=lambda slot, _workforce, lean: SimpleNamespace(
        slot=slot, lean=lean, state=WorkerState.MAKING, outdated=False, free=False, busy=False, armed=0))
    work = Mock(queue=Queue(), over=False)
    workforce = Workforce(reactor, maker, work, 2)
    workforce.make_missing()
    first, second = workforce.workers
    workforce.worker_gone(first)
    workforce.claims = lambda _worker: True
    workforce.worker_free(second)

    assert [first, second] == [each.args[0] for each in work.unoccupied.call_args_list]


def test_a_worker_that_comes_free_looks_at_those_that_are_free(reactor):
    """And not at each that ever was: a thousand sandboxes hold one each."""
    asked: list[int] = []
    workers = [Mock(slot=slot, lean=False, free=True, jobs=0, **{
        "leasing.offer": partial(asked.append, slot), "arming.next_holder": 0}) for slot in range(3)]
    work = SimpleNamespace(capacity=SimpleNamespace(offers=True), worker_free=lambda worker: None,
                           unoccupied=lambda worker: None)
    workforce = Workforce(reactor, SimpleNamespace(), work, 3)
    for worker in workers:
        workforce.worker_free(worker)
        worker.free = False
    assert (list(range(3)), None) == (asked, workforce.free())


@pytest.mark.parametrize("named", [False, True])
def test_a_pool_that_jobs_name_has_the_fast_path_for_holders_alone(named):
    path = object()
    reactor = SimpleNamespace(fast_path=path, barrier=SimpleNamespace(steps=lambda *_: None))
    workforce = Workforce(reactor, SimpleNamespace(), SimpleNamespace(), 1, grows=named)
    assert (path, None if named else path) == (workforce.fast_path, workforce.open_path)
    workforce.stop_offering()
    assert (None, None) == (workforce.fast_path, workforce.open_path)
