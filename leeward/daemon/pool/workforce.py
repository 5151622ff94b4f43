"""
The workers of a pool: they are made, take jobs, are renewed after their number of jobs, and replaced when they end.

Theory of operation. Each slot has a worker, or one that is being made; after failures another is made only after a
pause. A worker that has had its number of jobs is retired, if another can be made in its place. While there is no
zygote, workers go on past that number, and are replaced one after the other when there is one again.

A worker is outdated if its zygote has a successor. The new zygote makes one worker more than the pool's size. Once as
many others as the pool's size are ready, an idle outdated worker is retired, and the next one is made, so jobs never
have fewer workers than that. Without descriptors for one more worker, an idle one is retired first, and then replaced.
A worker that a session holds stays until the session is over.

Sessions may hold half of the workers. For each session beyond that one more worker is made, up to the pool's *room*, so
that jobs always have the other half. It is retired when it has been idle for a while afterwards. So are the *lean*
workers, without spares, that are made while more jobs run than the others have room for (capacity.py).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import FastPath
from leeward.daemon.loop.reactor import Reactor, Repeating, Timer
from leeward.daemon.pool.begin import NO_BOUNDS, NOT_BEYOND, SURPLUS, Beyond, SeatBounds
from leeward.daemon.worker.arming import Arming
from leeward.daemon.worker.worker import Worker, WorkerState
from leeward.errors import LeewardError

if TYPE_CHECKING:
    from leeward.daemon.pool.branches import Branch
    from leeward.daemon.pool.pool import Pool


def vacancy(workers: Mapping[int, Worker], resting: Collection[int], size: int,
            surplus: int = SURPLUS, first: int = 0, vacant: int = 0) -> int | None:
    """
    The slot in which a worker has to be made now, or None: that of a missing worker, or a further one if an outdated
    worker is idle and no worker is being made or ending. *resting*: slots of workers that are made again later, after a
    failure; *surplus*: workers that there may be beyond *size*; no slot below *vacant* is free.
    """
    there = len(workers) + len(resting)
    if there > size or (there == size and (
            not surplus or resting or any(worker.state is not WorkerState.SERVING for worker in workers.values())
            or not any(worker.outdated and worker.free for worker in workers.values()))):
        return None
    return next(slot for slot in range(max(first, vacant), first + size + surplus)
                if slot not in workers and slot not in resting)


def may_go(worker: Worker, workers: Mapping[int, Worker], size: int, surplus: int = SURPLUS) -> bool:
    """Whether this worker may be retired: if *size* others, one fewer without *surplus*, have or can take a job."""
    if not (worker.outdated and worker.free):
        return False
    return size - 1 + surplus <= sum(_ready(other) for other in workers.values() if other is not worker)


def superfluous(workers: Mapping[int, Worker], size: int) -> list[Worker]:
    """Return the idle workers beyond *size*, lean ones and then outdated ones first; busy lean ones go later."""
    ready = [worker for worker in workers.values() if _ready(worker)]
    idle = sorted((worker for worker in ready if worker.free), key=lambda worker: (not worker.lean, not worker.outdated))
    later = sum(worker.lean and not worker.free for worker in ready)
    return idle[:max(0, len(ready) - later - size)]


def _ready(worker: Worker) -> bool:
    return worker.state is WorkerState.SERVING and (worker.busy or worker.armed > 0)


#: Seconds after which a worker that failed is made again, doubled each time up to the second figure.
_BACKOFF_S, _BACKOFF_MOST_S = 0.05, 5.0
#: Seconds for which workers that were made for sessions are kept afterwards.
_LINGER_S = 10.0
#: Workers that are made at once for sessions and sandboxes that wait; and in a burst, which delays nobody else: with fewer
#: the processors rest while the daemon reads what they have done.
AHEAD, BURST = 16, 32
#: An arming that takes longer (its keeper may be stopped) no longer delays others, and gets a full share of processor.
PATIENCE_S = 0.1


class Workforce:
    """
    *held*: the number of workers that sessions and sandboxes have. *room* more may be made for them, *surplus* in
    advance, when others are renewed, and those of *beyond* for jobs. No two pools of a daemon share a slot. If it
    *grows*, its room is for jobs that wait, too, and the fast path gets only runners of sessions and kernels: it doesn't
    ask whose the others are.
    """

    def __init__(self, reactor: Reactor, maker: Branch, work: Pool, size: int, *,
                 surplus: int = SURPLUS, room: int = 0, first: int = 0, grows: bool = False,
                 bounds: SeatBounds = NO_BOUNDS, beyond: Beyond = NOT_BEYOND) -> None:
        self._reactor, self._maker, self._work = reactor, maker, work
        self.size, self.surplus, self.room, self._first = size, surplus, room, first
        self.held, self.bounds, self.beyond = 0, bounds, beyond
        self._shrinks = Repeating(reactor, _LINGER_S, self._shrink)
        self.by_slot: dict[int, Worker] = {}  # the workers
        self._idle: dict[Worker, None] = {}  # those that were free when they said so last, of all that are free now
        self.offers: dict[int, Worker] = {}  # workers by the number of their runner that is on offer to the fast path
        self._failures: dict[int, int] = {}
        self._resting: set[int] = set()  # slots in which a worker is made again later
        self._vacant = first  # no slot below it is free
        self._lean = self.armed = 0  # lean workers; runners that wait for a job, as `Arming` counts them
        self._processors = len(os.sched_getaffinity(0))
        self.refill = Refill(reactor, self._at_once, self._stocked)  # which of them may arm a runner
        self._overrun = False  # workers go on past their number of jobs
        self._outdated = False  # some workers may be of an old zygote
        self._taking, self._grows = True, grows
        self._extra = 0  # workers that are there for jobs
        self.claims: Callable[[Worker], bool] = lambda _worker: False  # whether a free worker may have no job now
        self.closed = False  # no more workers are made
        self.runners_made = self.recycled = 0

    # --- making ---------------------------------------------------------------

    def make_missing(self) -> None:
        """Make the missing workers, and one that is to replace an outdated one."""
        missing = self.wanted - len(self.by_slot) - len(self._resting)
        in_any_case(*[self._make_next] * max(1, missing))

    def _make_next(self) -> None:
        surplus = self.surplus if self._outdated and any(worker.outdated for worker in self._idle) else 0
        slot = vacancy(self.by_slot, self._resting, self.wanted, surplus, self._first, self._vacant)
        if slot is not None:
            self._make(slot)

    def _make(self, slot: int) -> None:
        if self.closed or self._work.over or slot in self.by_slot:
            return
        full = len(self.by_slot) - self._lean
        lean = full >= self._base(self._waiting) and self._lean < self._extra
        # Lean workers may have the descriptors of those for sessions.
        if self._lean + lean > self.beyond.left(max(0, full + (not lean) - self.size - self.surplus)):
            return
        try:
            self.by_slot[slot] = self._maker.make_worker(slot, self, lean=lean)
        except (LeewardError, OSError) as error:  # no descriptors left, say: it may be better later
            self._failures[slot] = self._failures.get(slot, 0) + 1
            self._maker.making_failed(slot, str(error))
            self._rest(slot)
        else:
            self._vacant = slot + 1
            self._lean += lean

    def _rest(self, slot: int) -> None:
        self._resting.add(slot)
        self._reactor.after(min(_BACKOFF_MOST_S, _BACKOFF_S * 2.0 ** min(self._failures[slot], 10)),
                            partial(self._rested, slot))

    def _rested(self, slot: int) -> None:
        self._resting.discard(slot)
        self._vacant = min(self._vacant, slot)
        self.make_missing()

    def worker_failed(self, worker: Worker, layer: str, message: str, *, passing: bool = False) -> None:
        """For a worker that retires; *passing*: it isn't the cause, so another one may be made at once in its place."""
        if not passing:
            self._failures[worker.slot] = self._failures.get(worker.slot, 0) + 1
        self._maker.worker_failed(worker, layer, message)

    def worker_gone(self, worker: Worker) -> None:
        """For a worker that has ended: make another one."""
        if self.by_slot.get(worker.slot) is worker:
            del self.by_slot[worker.slot]
            self._work.unoccupied(worker)
            self._vacant = min(self._vacant, worker.slot)
            self._lean -= worker.lean
        self._idle.pop(worker, None)
        if worker.lean and not self._work.queue:  # nobody waits for another one in its place
            self._extra = min(self._extra, self._needed(0))
            self._work.resized()
        self.recycled += 1
        failures = self._failures.get(worker.slot, 0)
        if self._work.over:
            self._work.check_drained()
        elif failures:
            self._rest(worker.slot)
        else:
            self.make_missing()
        if self._overrun and len(self.by_slot) >= self.wanted:
            self.renew()  # no new worker will cause it

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self.by_slot.values())

    # --- jobs -----------------------------------------------------------------

    def free(self) -> Worker | None:
        """A worker that can take a job: the first one, which has most of them, and lean ones last."""
        return min(self._all_free(), key=lambda worker: (worker.lean, worker.slot), default=None)

    def _all_free(self) -> tuple[Worker, ...]:
        for worker in [each for each in self._idle if not each.free or each.arming.next_holder]:
            del self._idle[worker]  # it says so when it is free again
        return tuple(self._idle)

    def worker_free(self, worker: Worker) -> None:
        self._failures.pop(worker.slot, None)
        self._work.unoccupied(worker)
        if self.claims(worker):
            return
        if worker.arming.next_holder:
            self._work.worker_free(worker)
            if worker.free and worker.arming.next_holder:
                worker.arming.dismiss()
            return
        self._idle[worker] = None
        if self._outdated:
            self._relieve()
        self._work.worker_free(worker)
        self._offer()
        if self._overrun and not worker.jobs:
            self.renew()

    @property
    def crowded(self) -> bool:
        return self._work.crowded

    @property
    def next_connection(self) -> int:
        return self._work.admission.next_connection

    @property
    def only_holders(self) -> bool:
        """Whether sessions and sandboxes wait for a worker, and no job does."""
        return 0 < self._work.queue.takers == len(self._work.queue)

    @property
    def crammed(self) -> bool:
        """For a worker whose session has ended: whether there are enough workers without it."""
        left = len(self.by_slot) - self.held - self.size - self.surplus - self._extra
        return 0 < self.bounds.awake < left

    def _offer(self) -> None:
        """Offer idle workers' runners to the fast path, as many as it may have."""
        for worker in self._all_free():
            if not self._work.capacity.offers:
                return
            worker.leasing.offer()

    def balance(self) -> None:
        """A job has started by another way than the fast path: withdraw an offer if it has too many now."""
        if self.offers and self._work.capacity.overdrawn:
            next(reversed(self.offers.values())).leasing.withdraw()

    @property
    def fast_path(self) -> FastPath | None:
        """The fast path, where this reactor has one and new jobs are taken: for runners that have a holder."""
        return self._reactor.fast_path if self._taking else None

    @property
    def open_path(self) -> FastPath | None:
        """The same, for jobs that name no holder and no pool."""
        return None if self._grows else self.fast_path

    def offered(self, runner: int, worker: Worker | None) -> None:
        """For a worker: its *runner* is on offer to the fast path, or with None no longer."""
        if worker is None:
            self.offers.pop(runner, None)
        else:
            self.offers[runner] = worker

    def stop_offering(self) -> None:
        """Withdraw the runners on offer to the fast path, and offer no more."""
        self._reactor.barrier.steps(*(worker.leasing.withdraw for worker in list(self.offers.values())))
        self._taking = False

    def runner_made(self) -> None:
        self.runners_made += 1
        self._maker.runner_made()

    def _stocked(self) -> bool:
        return self.armed >= self.size

    def _at_once(self) -> int:
        return BURST if self._burst else self._processors

    @property
    def _burst(self) -> bool:
        """Whether one user's sessions and sandboxes alone wait, and nothing of another user runs."""
        user = self._work.queue.only_user if self.only_holders else None
        return user is not None and self._work.ledger.alone(user)

    # --- renewing -------------------------------------------------------------

    def renews(self) -> bool:
        """Whether a worker that has had its number of jobs may retire: not while no other can be made in its place."""
        if not self._maker.zygotes.stands:
            if not self._overrun:
                self._overrun = True
                self._maker.overrun()
            return False
        return not self._overrun or self.closed or (
            len(self.by_slot) >= self.size
            and all(worker.state is WorkerState.SERVING for worker in self.by_slot.values()))

    def renew(self) -> None:
        """Workers can be made again, or one was made: retire the next overdue worker."""
        overdue = [worker for worker in self.by_slot.values() if worker.overdue]
        self._overrun = bool(overdue)
        for worker in overdue:
            worker.reconsider()

    def outdate(self) -> None:
        """Another zygote has taken over: replace the workers of the old one."""
        for worker in self.by_slot.values():
            worker.outdated = worker.keeper.pid >= 0  # otherwise the new zygote makes it
        self._outdated = True
        self._relieve()

    def _relieve(self) -> None:
        """Retire outdated workers that are idle and have been replaced, and replace the next one."""
        for worker in tuple(self._idle):
            if may_go(worker, self.by_slot, self.wanted, self.surplus):
                worker.retire("")
        self._outdated = any(worker.outdated for worker in self.by_slot.values())
        self.make_missing()

    # --- sessions -------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """The number of workers that there should be."""
        return self.with_held(self._waiting)

    @property
    def _waiting(self) -> int:
        """The number of sessions and sandboxes that wait for a worker, as far as workers are made for them at once."""
        return min(BURST if self._burst else AHEAD, self._work.queue.takers)

    def with_held(self, more: int) -> int:
        """The same if sessions held *more* more workers."""
        base = self._base(more)
        return base if self._grows else base + min(self._extra, self.beyond.left(base - self.size))

    def _base(self, more: int) -> int:
        extra = self._extra if self._grows else 0
        return self.size + min(self.room, max(0, extra, self.held + more - self.size // 2))

    @property
    def own(self) -> int:
        """The number of workers for jobs that are there in any case."""
        return self._base(0) - self.held

    def await_holders(self) -> None:
        """One more session or sandbox waits: make a worker for it, before one that is free has gone to another."""
        if self.wanted > len(self.by_slot):
            self._reactor.soon(self.make_missing)
            self._shrinks.start()

    def await_jobs(self, waiting: int) -> None:
        """*count* jobs wait: make workers for them, if the pool grows."""
        if self._grows and self.room:
            self._have_extra(min(self.room, self._needed(waiting)))

    def grow(self, jobs: int) -> None:
        """Let there be workers for *jobs* jobs, as far as descriptors suffice."""
        self._have_extra(min(jobs - self.own, self.beyond.jobs))

    def _have_extra(self, count: int) -> None:
        if count > self._extra:
            self._extra = count
            self._work.resized()
        self._reactor.soon(self.make_missing)
        self._shrinks.start()

    def _needed(self, waiting: int) -> int:
        there = self.size if self._grows else self._base(0)
        return max(0, sum(worker.busy for worker in self.by_slot.values()) + waiting - there)

    def hold(self, more: int) -> None:
        """Note that a session has got a worker, or given it back."""
        self.held += more
        if self.wanted > len(self.by_slot):
            self._reactor.soon(self.make_missing)
        elif self.wanted < len(self.by_slot):
            self._shrinks.start()

    def _shrink(self) -> bool:
        """Retire idle workers that were made for sessions or for waiting jobs; whether some are left."""
        if self.closed:
            return False
        self._extra = min(self._extra, self._needed(len(self._work.queue) if self._grows else 0))
        self._work.resized()
        for worker in superfluous(self.by_slot, self.wanted):
            self.by_slot[worker.slot].retire("")
        self._offer()
        return self._extra > 0 or len(self.by_slot) > self.wanted

    def retire_all(self) -> None:
        """Retire all workers, even those with jobs, and make no more."""
        self.closed = True
        self._reactor.barrier.steps(*(partial(worker.retire, "the daemon is shutting down")
                                      for worker in list(self.by_slot.values())))

    def broken(self, error: Exception) -> None:
        """For the barrier: tell the pool, and end the pauses of all slots, as the callback may have had to end one."""
        self._resting.clear()
        self._vacant = self._first
        self._work.broken(error)

    def states(self) -> dict[str, int]:
        workers = self.by_slot.values()
        busy = sum(worker.busy for worker in workers)
        idle = sum(worker.free for worker in workers)
        return {"idle": idle, "busy": busy, "arming": max(0, max(self.size, len(workers)) - idle - busy)}

    def counts(self) -> dict[str, dict[str, int] | int]:
        """The part of `leeward status` that is about workers and their runners."""
        workers = self.by_slot.values()
        return {
            "workers": {"total": max(self.size, len(workers)), **self.states()},
            "runners_made": self.runners_made,
            "runners_armed": sum(worker.armed for worker in workers),
            "runners_kept": sum(worker.arming.kept for worker in workers),
            "runners_arming": sum(worker.arming.count for worker in workers),
        }


class Refill:
    """
    Which worker may arm a runner: few at a time, so that arming doesn't delay requests. A queue, in which each is at
    most once.

    Arming a runner costs some milliseconds of processor time; a request costs a fraction of one, and waits while as
    many runners are being armed as there are processors. So while every worker has a runner in store (*stocked*), one
    is armed at a time, with idle processor time alone; when the store runs low, *most*: as many as there are
    processors, or in a burst as many as are made.
    """

    def __init__(self, reactor: Reactor, most: Callable[[], int], stocked: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._most = most
        self._stocked = stocked
        self._waiting: deque[Arming] = deque()
        self._arming: dict[int, Timer] = {}  # by the runner's number: when others don't wait for it any more

    def want(self, arming: Arming) -> None:
        """A worker needs a runner; `arm` of its *arming* is called when its turn has come."""
        self._waiting.append(arming)
        self._go_on()

    def over(self, runner: int) -> None:
        """This runner is armed, or has failed. May be called repeatedly."""
        timer = self._arming.pop(runner, None)
        if timer is not None:
            timer.cancel()
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._arming) < self._most():
            stocked = self._stocked()
            if stocked and self._arming:
                return
            arming = self._waiting.popleft()
            try:
                runner = arming.arm(patient=stocked)
            except Exception as error:  # its own loss: others wait behind it
                self._reactor.barrier.caught(arming.arm, error)
                continue
            if runner is not None:
                self._arming[runner] = self._reactor.after(PATIENCE_S, partial(self._lose_patience, arming, runner))

    def _lose_patience(self, arming: Arming, runner: int) -> None:
        arming.hurry(runner)
        self.over(runner)
