"""
The queue of jobs that wait for a worker, and which is next. Pure.

The user with the fewest workers comes first, users with the same number take turns, so do the connections of a user,
and a connection's jobs come in order. A thousand jobs of one user delay only that user's jobs, and two hundred jobs of
a connection only that connection's. When the queue is full, a user with fewer jobs in it takes the place of the newest
job of the user with the most, and a connection likewise among those of its user.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Ticket


W = TypeVar("W", bound="Ticket")
#: How often in a row users with fewer workers may come before the user whose turn it is. Workers of sessions count as
#: well and are kept for hours, so without this bound their user could wait as long.
_PASSED = 16


class _Lanes(Generic[W]):
    """The waiting entries of one user by connection, the next one first, without connections that have none."""

    __slots__ = ("by_connection", "count", "jobs")

    def __init__(self) -> None:
        self.by_connection: dict[int, deque[W]] = {}
        self.count = 0
        self.jobs: Counter[int] = Counter()  # by connection, those that aren't sessions or sandboxes

    def counts(self, one: W, more: int) -> None:
        self.count += more
        if one.take is None:
            self.jobs[one.connection] += more
            if not self.jobs[one.connection]:
                del self.jobs[one.connection]

    def of(self, connection: int) -> int:
        return len(self.by_connection.get(connection, ()))

    def longest(self) -> int:
        """The connection with the most jobs."""
        return max(self.jobs, key=self.jobs.__getitem__, default=0)

    def newest(self) -> W:
        """The newest job of that connection."""
        return next(one for one in reversed(self.by_connection[self.longest()]) if one.take is None)

    @property
    def first(self) -> W:
        return next(iter(self.by_connection.values()))[0]

    def startable(self, now: Callable[[W], bool]) -> W | None:
        """The first entry of the first connection whose first entry may start *now*."""
        return next((lane[0] for lane in self.by_connection.values() if now(lane[0])), None)

    def take(self, one: W) -> W:
        """Remove *one*, the first entry of its connection, which becomes the last."""
        connection = one.connection
        lane = self.by_connection.pop(connection)
        lane.popleft()
        if lane:
            self.by_connection[connection] = lane
        self.counts(one, -1)
        return one

    def remove(self, one: W) -> bool:
        lane = self.by_connection.get(one.connection)
        if lane is None or one not in lane:
            return False
        lane.remove(one)
        if not lane:
            del self.by_connection[one.connection]
        self.counts(one, -1)
        return True


class FairQueue(Generic[W]):
    """
    A queue of at most *size* jobs, and of sessions and sandboxes, whose number the pool bounds; `put_back` may exceed *size*.
    *running* returns how many workers a user has.
    """

    def __init__(self, size: int, running: Callable[[int], int] = lambda user: 0) -> None:
        self.size = size
        self._running = running
        self._passed = 0  # how often in a row the first user that could start was passed over
        # The first user here is next. A user without waiting jobs isn't here.
        self._users: dict[int, _Lanes[W]] = {}
        self._count = 0
        self.takers = 0  # entries of sessions and sandboxes, which take a worker

    def _counts(self, one: W, more: int) -> None:
        self._count += more
        self.takers += more if one.take is not None else 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, one: W) -> bool:
        lanes = self._users.get(one.user)
        return lanes is not None and one in lanes.by_connection.get(one.connection, ())

    def __iter__(self) -> Iterator[W]:
        for lanes in self._users.values():
            for lane in lanes.by_connection.values():
                yield from lane

    @property
    def only_user(self) -> int | None:
        """The user of all entries; None if several users have some, or there are none."""
        return next(iter(self._users)) if len(self._users) == 1 else None

    def of(self, user: int) -> int:
        lanes = self._users.get(user)
        return 0 if lanes is None else lanes.count

    def before(self, user: int, connection: int, may: Callable[[W], bool]) -> int:
        """How many of the entries that *may* start come before a new one."""
        lanes = self._users.get(user)
        mine = 0
        if lanes is not None:
            own = lanes.of(connection)
            mine = own + sum(min(len(lane), own + 1) for other, lane in lanes.by_connection.items()
                             if other != connection)
        running = self._running(user)
        return mine + sum(
            min(others.count, mine + 1 + max(0, running - self._running(other)))
            for other, others in self._users.items() if other != user and may(others.first))

    def add(self, one: W) -> W | None:
        """Add *one* behind all others of its connection. Returns the entry, perhaps *one*, without room, or None."""
        loser: W | None = None
        if one.take is None and self._count - self.takers >= self.size:
            loser = self._who_makes_room(one)
            if loser is None:
                return one
            self.remove(loser)
        lanes = self._users.get(one.user)
        if lanes is None:
            lanes = self._users[one.user] = _Lanes()
        lanes.by_connection.setdefault(one.connection, deque()).append(one)
        lanes.counts(one, 1)
        self._counts(one, 1)
        return loser

    def _who_makes_room(self, one: W) -> W | None:
        if not self._users:
            return None
        lanes = max(self._users.values(), key=lambda each: each.jobs.total())
        own = self._users.get(one.user) or _Lanes()
        # The other user, or connection, must have at least as many afterwards: two would displace each other in turn.
        if own.jobs.total() + 1 > lanes.jobs.total() - 1:
            if own.jobs[one.connection] + 1 > own.jobs[own.longest()] - 1:
                return None
            lanes = own
        return lanes.newest()

    def put_back(self, one: W) -> None:
        """Put *one*, which was taken, at the head of its user's entries."""
        lanes = self._users.pop(one.user, None) or _Lanes()
        lane = lanes.by_connection.pop(one.connection, deque())
        lane.appendleft(one)
        lanes.by_connection = {one.connection: lane, **lanes.by_connection}
        lanes.counts(one, 1)
        self._users = {one.user: lanes, **self._users}
        self._counts(one, 1)

    def take(self, may: Callable[[W], bool], now: Callable[[W], bool] = lambda _: True) -> W | None:
        """
        Remove and return the next entry that *may* start; its user, and its connection, then become the last. Only the
        first entry of each user is considered; otherwise small jobs of another connection could overtake a large one
        for ever. A connection whose first entry can't start *now* is passed over, and comes first again.
        """
        found = self._next(may, now)
        if found is None:
            return None
        user, one, is_first = found
        self._passed = 0 if is_first else self._passed + 1
        lanes = self._users.pop(user)
        lanes.take(one)
        if lanes.count:
            self._users[user] = lanes
        self._counts(one, -1)
        return one

    def next(self, may: Callable[[W], bool], now: Callable[[W], bool] = lambda _: True) -> W | None:
        """The entry that `take` would return."""
        found = self._next(may, now)
        return None if found is None else found[1]

    def _next(self, may: Callable[[W], bool], now: Callable[[W], bool]) -> tuple[int, W, bool] | None:
        """The next entry, with its user, and whether that is the one whose turn it is."""
        ready = {user: one for user, lanes in self._users.items()
                 if may(lanes.first) and (one := lanes.startable(now)) is not None and may(one)}
        if not ready:
            return None
        first = next(iter(ready))
        user = first if self._passed >= _PASSED else min(ready, key=self._running)
        return user, ready[user], user == first

    def remove(self, one: W) -> bool:
        """Remove *one*, if it is there. Returns whether it was."""
        lanes = self._users.get(one.user)
        if lanes is None or not lanes.remove(one):
            return False
        if not lanes.count:
            del self._users[one.user]
        self._counts(one, -1)
        return True

    def clear(self) -> list[W]:
        """Remove and return all entries, in any order."""
        all_of_them = list(self)
        self._users.clear()
        self._count = self.takers = 0
        return all_of_them
