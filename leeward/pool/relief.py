"""
Which worker may be retired, and when one is made in advance: workers of an old zygote are replaced without delaying
jobs.

Runs in:   the daemon; pure.

Theory of operation. A worker is outdated if its zygote has a successor. The new zygote makes one worker more than the
pool's size. Once as many others as the pool's size are ready, an idle outdated worker is retired, and the next one is
made. So jobs never have fewer workers than the pool's size, and an idle pool is renewed within moments. Where there are
no descriptors for one more worker, an idle one is retired first, and then replaced. A worker that a session holds stays
until the session is over.

Sessions may hold half of the workers. For each session beyond that one more worker is made, up to the pool's *room*, so
that jobs always have the other half. It is retired when it has been idle for a while afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from leeward.dataclass import dataclass
from leeward.worker.worker import WorkerState

if TYPE_CHECKING:
    from leeward.worker.worker import Worker

#: Workers beyond the pool's size, for as long as some are renewed.
SURPLUS = 1


@dataclass(frozen=True, slots=True)
class SeatBounds:
    """
    The bounds that the limit on descriptors sets: daemon/descriptors.py.

    Attributes:
        awake: live sandboxes that may hold all their descriptors at once, and workers that may be left over when
            sandboxes and sessions end; 0 for no bound.
        seats: the number of sandboxes, if there is no session.
        price: the number of sandboxes that take the room of one session.
    """

    awake: int = 0
    seats: int = 1 << 30
    price: int = 1


NO_BOUNDS = SeatBounds()


def vacancy(workers: Mapping[int, Worker], resting: Collection[int], size: int,
            surplus: int = SURPLUS, first: int = 0) -> int | None:
    """
    The slot in which a worker has to be made now, or None: that of a missing worker, or a further one if an outdated
    worker is idle and no worker is being made or ending.

    Args:
        resting: slots in which a worker couldn't be made, or failed, and is made again later.
        surplus: how many workers there may be beyond *size*.
        first: the pool's first slot.
    """
    there = len(workers) + len(resting)
    if there > size or (there == size and (not surplus or resting or not _all_serving(workers) or not any(
            worker.outdated and worker.free for worker in workers.values()))):
        return None
    return next(slot for slot in range(first, first + size + surplus) if slot not in workers and slot not in resting)


def may_go(worker: Worker, workers: Mapping[int, Worker], size: int, surplus: int = SURPLUS) -> bool:
    """
    Whether this worker may be retired: only if at least *size* others have a job or can take one; without a *surplus*,
    one fewer.
    """
    if not (worker.outdated and worker.free):
        return False
    return size - 1 + surplus <= sum(_ready(other) for other in workers.values() if other is not worker)


def superfluous(workers: Mapping[int, Worker], size: int) -> list[Worker]:
    """Return the idle workers beyond *size*, outdated ones first."""
    ready = [worker for worker in workers.values() if _ready(worker)]
    idle = sorted((worker for worker in ready if worker.free), key=lambda worker: not worker.outdated)
    return idle[:max(0, len(ready) - size)]


def _ready(worker: Worker) -> bool:
    return WorkerState.SERVING is worker.state and (worker.busy or worker.armed > 0)


def _all_serving(workers: Mapping[int, Worker]) -> bool:
    return all(WorkerState.SERVING is worker.state for worker in workers.values())
