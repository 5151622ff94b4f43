"""
The branches of an engine beside its main one: begun on first use, ended when nobody uses them.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. A request names a key; the first one with a new key begins a branch, and waits in its queue like
any other until a worker is there. A branch that can't make a runner refuses its waiting jobs, with the reason, and is
ended; for some seconds further requests get the same answer. All branches together have a bounded number of slots,
and so of workers, uids and descriptors. If no slots are free for a new branch, it takes the place of the branch
that has been idle for longest, if there is one. Slots are free again when the last process of a branch is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.dataclass import replace
from leeward.errors import BadRequest, Busy, LeewardError, PoolFailed, Refused, ShuttingDown
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer
from leeward.pool.begin import Settings, prepare
from leeward.pool.branch import Branch
from leeward.pool.confinement import confine
from leeward.pool.memory import memory_of
from leeward.pool.quotas import Book
from leeward.spec.pool_key import PoolKey
from leeward.worker.hatch import Hatched

if TYPE_CHECKING:
    from leeward.pool.engine import Engine

#: The most branches at a time, however many slots are free, because each branch has a zygote.
MOST = 16
#: Seconds for which a failure is remembered, and the most failures that are remembered.
_AGAIN_S, _MOST_FAILURES = 5.0, 64
#: Seconds between two looks at the branches; and the same while a branch ends.
_LOOK_S, _ENDING_S = 1.0, 0.05
#: Seconds that the zygote of a branch has to end by itself.
_LEAVE_S = 0.5


class _PlacedBranch:
    """A branch in the table, and when it was last used."""

    __slots__ = ("began", "branch", "first", "key", "left", "slots", "used")

    def __init__(self, key: PoolKey, branch: Branch, first: int, slots: int, now: float) -> None:
        self.key, self.branch, self.first, self.slots = key, branch, first, slots
        self.began = self.used = now
        self.left = False  # its zygote was reaped


class Branches:
    """
    Args:
        plans: makes the settings of a branch; None if there are to be no branches.
        first: the first slot that their workers may have.
        first_id: see `Confinement`.
        workers: the number of slots that their workers may have.
        idle: seconds after which an unused branch ends.
    """

    def __init__(self, reactor: Reactor, ground: Engine, book: Book, plans: Callable[[PoolKey], Settings] | None,
                 *, first: int, first_id: int, workers: int, surplus: int, idle: float) -> None:
        self._reactor, self._ground, self._book, self._plans = reactor, ground, book, plans
        self._first, self._first_id, self._slots, self._surplus, self.idle = first, first_id, workers, surplus, idle
        self._places: dict[PoolKey, _PlacedBranch] = {}
        self._ending: list[_PlacedBranch] = []
        self._failures: dict[PoolKey, tuple[float, str]] = {}  # no exception: its trace would keep who heard it
        self._timer: Timer | None = None
        self._stopped = self._serving = False
        book.freed = self._freed

    @property
    def all(self) -> list[Branch]:
        """All branches, including those that end."""
        return [place.branch for place in (*self._places.values(), *self._ending)]

    # --- beginning ------------------------------------------------------------

    def of(self, key: PoolKey) -> Branch:
        """
        Return the branch that serves requests with this *key*. If there is none, it is started.

        Raises:
            BadRequest: a name in the key doesn't exist.
            Busy: other branches have all the workers, and are in use.
            ShuttingDown: the daemon is draining.
            PoolFailed: the branch can't be begun.
        """
        place = self._places.get(key)
        if place is None:
            if self._stopped:
                raise ShuttingDown("the daemon is shutting down")
            place = self._begin(key)
        place.used = self._reactor.now()
        return place.branch

    def _begin(self, key: PoolKey) -> _PlacedBranch:
        if self._plans is None:
            raise BadRequest(f"this daemon has the profile {PoolKey().profile} alone")
        now = self._reactor.now()
        when, failure = self._failures.get(key, (now, ""))
        if failure and now < when:
            raise PoolFailed(failure)
        settings = self._plans(key)
        most = max(0, self._slots - settings.pool_size - 1)
        settings = replace(settings, room=min(settings.room, most))  # `max` is "at most"
        slots = settings.pool_size + settings.room + 1
        first = self._room_for(key, slots, now)
        try:
            branch = self._make(key, settings, first)
        except (LeewardError, OSError) as error:
            raise self._failed(key, str(error)) from error
        place = self._places[key] = _PlacedBranch(key, branch, first, slots, now)
        self._ground.log.info("pool begins", pool=key.name, workers=settings.pool_size,
                              most=settings.pool_size + settings.room)
        self._look_soon()
        return place

    def _make(self, key: PoolKey, settings: Settings, first: int) -> Branch:
        spec, plan = prepare(settings, self._ground.driver)
        confinement = confine(settings, spec, self._ground.driver, self._first_id, settings.room)
        hatched = Hatched(plan)
        try:
            branch = Branch(self._reactor, self._ground, settings, spec, confinement, surplus=self._surplus,
                            book=self._book, first=first, troubled=partial(self._troubled, key),
                            name=key.name)
        except BaseException:
            hatched.end()
            raise
        branch.begin(plan, hatched)
        return branch

    def _room_for(self, key: PoolKey, slots: int, now: float) -> int:
        """
        The first of *count* free slots in a row.

        Raises:
            Busy: there are none, and none become free.
            PoolFailed: there are never that many.
        """
        if slots > self._slots:
            raise PoolFailed(f"the pool {key.name!r} needs {slots} workers, and this daemon has descriptors and uids"
                             f" for {self._slots} beside its first pool")
        at = self._free(slots)
        if at is not None and len(self._places) + len(self._ending) < MOST:
            return at
        idle = [place for place in self._places.values() if not place.branch.busy and place.used < now]
        if not self._ending and idle:
            self._end(min(idle, key=lambda place: place.used), "it makes room for another")
        raise Busy("pools of other profiles and environments have all the workers; try again when one has ended",
                   retry_after=1.0)

    def _free(self, slots: int) -> int | None:
        at = self._first
        for place in sorted((*self._places.values(), *self._ending), key=lambda place: place.first):
            if place.first - at >= slots:
                return at
            at = place.first + place.slots
        return at if at + slots <= self._first + self._slots else None

    def _failed(self, key: PoolKey, why: str) -> PoolFailed:
        failure = PoolFailed(f"the pool {key.name!r} can't be started: {why}")
        if len(self._failures) >= _MOST_FAILURES:
            self._failures.clear()
        self._failures[key] = self._reactor.now() + _AGAIN_S, failure.message
        self._ground.log.warning("a pool can't be started", pool=key.name, error=why)
        return failure

    def _troubled(self, key: PoolKey) -> None:
        """Refuse the jobs of a branch that has a problem and made no runner yet."""
        place = self._places.get(key)
        if place is None or place.branch.stood or place.branch.problem is None:
            return
        layer, message = place.branch.problem
        self._end(place, "it can't be started", self._failed(key, f"{layer}: {message}" if layer else message))

    # --- what users may have --------------------------------------------------

    def _freed(self) -> None:
        """For the book: a user may start one more job, which may wait in another pool's queue."""
        if not self._serving and not self._stopped:
            self._serving = True
            self._reactor.soon(self._serve)

    def _serve(self) -> None:
        self._serving = False
        in_any_case(*(ledger.wake for ledger in self._book.ledgers))

    # --- the ends of idle branches --------------------------------------------

    def _look_soon(self) -> None:
        if self._timer is None:
            self._timer = self._reactor.after(_ENDING_S if self._ending else _LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._reactor.now()
        for place in list(self._places.values()):
            branch = place.branch
            if branch.busy:
                place.used = now
            if not branch.stood and now > place.began + branch.patience.start:
                branch.blame("", f"no worker was ready within {branch.patience.start:g} s")
            elif now >= place.used + self.idle:
                self._end(place, "nobody uses it")
        for place in [place for place in self._ending if place.left and not place.branch.pool.workforce.workers]:
            self._ending.remove(place)
            place.branch.pool.ledger.close()
        if self._places or self._ending:
            self._look_soon()

    def _end(self, place: _PlacedBranch, why: str, refusal: Refused | None = None) -> None:
        del self._places[place.key]
        self._ending.append(place)
        self._ground.log.info("pool ends", pool=place.key.name, why=why)
        branch, gone = place.branch, refusal or Busy("the pool has just ended; try again", retry_after=0.1)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        in_any_case(branch.stop, partial(branch.pool.drain, 0.0, _nothing, gone), branch.pool.workforce.retire_all,
                    partial(branch.zygotes.retire, _LEAVE_S, partial(self._left, place)), self._look_soon)

    @staticmethod
    def _left(place: _PlacedBranch) -> None:
        place.left = True

    def broken(self, _error: Exception) -> None:
        """For the barrier, when a callback has failed: do what may be due."""
        self._serving = False
        if self._timer is None and not self._stopped:
            self._timer = self._reactor.after(_LOOK_S, self._look)

    def stop(self) -> None:
        """Begin no more branches."""
        self._stopped = True
        in_any_case(*(place.branch.stop for place in self._places.values()))

    # --- for the status -------------------------------------------------------

    def status(self) -> list[Mapping[str, Any]]:
        """Return one row for each branch, with the memory of its workers in bytes."""
        now = self._reactor.now()
        return [{"profile": place.key.profile, "environment": place.key.environment, **place.branch.pool.counts(),
                 "memory": sum(map(memory_of, place.branch.pool.workforce.workers)),
                 "snapshot": place.branch.zygotes.snapshot,
                 "unused": 0.0 if place.branch.busy else round(now - place.used, 3)}
                for place in self._places.values()]


def _nothing() -> None:
    return
