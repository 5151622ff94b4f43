"""Which worker goes when its zygote is outdated, and when another is made."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from leeward.daemon.pool.begin import SURPLUS
from leeward.daemon.pool.workforce import may_go, superfluous, vacancy
from leeward.daemon.worker.worker import WorkerState


@dataclass
class Worker:
    outdated: bool = False
    slot: int = 0
    state: WorkerState = WorkerState.SERVING
    busy: bool = False
    armed: int = 1
    lean: bool = False

    @property
    def free(self) -> bool:
        return WorkerState.SERVING is self.state and not self.busy and self.armed > 0


OLD, NEW = {"outdated": True}, {"outdated": False}
MAKING, GOING = {"state": WorkerState.MAKING}, {"state": WorkerState.RETIRING}
LEAN = {"lean": True}
BUSY, BARE = {"busy": True, "armed": 0}, {"armed": 0}


def pool(*workers: dict[str, object]) -> dict[int, Worker]:
    return {slot: Worker(**each) for slot, each in enumerate(workers)}  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(("workers", "resting", "slot"), [
    (pool(NEW, NEW), (), None),
    (pool(NEW), (), 1),
    (pool(), (), 0),
    (pool(NEW), (1,), None),            # made again later
    (pool(OLD, OLD), (), 2),            # one in advance
    (pool(OLD, OLD, NEW), (), None),    # no more than one
    (pool(OLD, MAKING), (), None),      # one thing at a time
    (pool(OLD, GOING), (), None),
    (pool(OLD | BUSY, NEW), (), None),  # when it falls idle
    (pool(OLD | BUSY, OLD), (), 2),
    (pool(OLD), (1,), None),
])
def test_a_worker_is_made_in_a_vacant_slot(workers: dict[int, Worker], resting: tuple[int, ...],
                                           slot: int | None) -> None:
    assert slot == vacancy(workers, resting, 2)


@pytest.mark.parametrize(("workers", "goes"), [
    (pool(OLD, NEW, NEW), True),
    (pool(OLD, OLD, NEW), True),
    (pool(OLD, NEW), False),                     # nobody in its place
    (pool(OLD, NEW, NEW | MAKING), False),
    (pool(OLD, NEW, NEW | BARE), False),         # could take no job yet
    (pool(OLD, NEW, NEW | BUSY), True),
    (pool(OLD | BUSY, NEW, NEW), False),         # has a job
    (pool(NEW, NEW, NEW), False),
    (pool(OLD, NEW | GOING, NEW), False),
])
def test_an_idle_worker_may_be_replaced(workers: dict[int, Worker], goes: bool) -> None:
    assert goes == may_go(workers[0], workers, 2)


def test_without_room_for_one_more_an_idle_one_goes_first() -> None:
    """If all others are ready."""
    assert vacancy(pool(OLD, OLD), (), 2, 0) is None
    assert may_go(*_first(OLD, NEW), 2, 0)
    assert not may_go(*_first(OLD, NEW | MAKING), 2, 0)
    assert 1 == vacancy(pool(NEW), (), 2, 0)


def _first(*workers: dict[str, object]) -> tuple[Worker, dict[int, Worker]]:
    made = pool(*workers)
    return made[0], made


@pytest.mark.parametrize(("workers", "go"), [
    (pool(NEW, NEW), []), (pool(NEW, NEW, NEW), [0]), (pool(NEW, OLD, NEW), [1]),
    (pool(NEW | BUSY, NEW | BUSY, NEW | BUSY), []),     # none is idle
    (pool(NEW | BUSY, NEW, NEW, NEW), [1, 2]),
    (pool(NEW, NEW, NEW | MAKING), []),                 # who isn't ready doesn't count
    (pool(NEW, NEW, NEW | LEAN), [2]),
    (pool(OLD, NEW, NEW | LEAN, NEW | LEAN), [2, 3]),
    (pool(NEW, NEW, NEW | LEAN | BUSY), []),            # it goes when its job has ended
    (pool(NEW, NEW, NEW, NEW | LEAN | BUSY), [0]),
    (pool(NEW, NEW, NEW | GOING), [])])
def test_superfluous_workers_are_found(workers: dict[int, Worker], go: list[int]) -> None:
    assert [workers[slot] for slot in go] == superfluous(workers, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 5])
def test_jobs_never_have_fewer_workers_and_in_the_end_all_are_new(size: int) -> None:
    """Whatever happens in whichever order: as many as the size are ready, or have a job, all the time."""
    for seed in range(200):
        dice = random.Random(seed)
        workers = pool(*[OLD] * size)
        for step in range(2000):
            assert size <= len(workers) <= size + SURPLUS
            assert size <= sum(w.state is WorkerState.SERVING and (w.busy or w.armed > 0) for w in workers.values())
            worker = workers[dice.choice(list(workers))]
            if WorkerState.MAKING is worker.state:
                worker.state, worker.armed = WorkerState.SERVING, 1
            elif WorkerState.RETIRING is worker.state:
                del workers[next(slot for slot, each in workers.items() if each is worker)]
            else:
                worker.busy = not worker.busy and step < 1500
            for each in workers.values():
                if may_go(each, workers, size):
                    each.state = WorkerState.RETIRING
            slot = vacancy(workers, (), size)
            if slot is not None:
                assert slot not in workers
                workers[slot] = Worker(state=WorkerState.MAKING, armed=0)
        assert not any(worker.outdated for worker in workers.values()), seed
        assert size == len(workers)
