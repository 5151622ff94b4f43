"""
Who waits for a worker, and who is next: users in turn, each user's jobs in order.

Runs in:   the daemon, and `leeward run`; pure.

A user who sends a thousand jobs makes only his own wait. When the queue is full, one who has less in
it than another takes the place of that other's newest job, so nobody can fill it against everybody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """
    What stands in line. Two that are equal are one.
    """

    @property
    def user(self) -> int: ...


W = TypeVar("W", bound=Waiting)


class Line(Generic[W]):
    """
    At most *size* of them by `add`; `put_back` always finds a place.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # Whoever is first here is next. A user without anything that waits isn't here.
        self._users: dict[int, deque[W]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, one: W) -> bool:
        return one in self._users.get(one.user, ())

    def __iter__(self) -> Iterator[W]:
        for waiting in self._users.values():
            yield from waiting

    def of(self, user: int) -> int:
        """
        How many of *user*'s wait.
        """
        return len(self._users.get(user, ()))

    def add(self, one: W) -> W | None:
        """
        Put *one* behind all others of its user.

        Returns:
            None; or who had to give up its place; or *one* itself if there is no place for it.
        """
        loser: W | None = None
        if self._count >= self.size:
            most = max(self._users, key=self.of, default=one.user)
            # After it the other still has as many: else two users would push each other out in turn.
            if self.of(one.user) + 1 > self.of(most) - 1:
                return one
            loser = self._users[most][-1]
            self.remove(loser)
        self._users.setdefault(one.user, deque()).append(one)
        self._count += 1
        return loser

    def put_back(self, one: W) -> None:
        """
        *one* was taken, and has to be next again.
        """
        waiting = self._users.pop(one.user, deque())
        waiting.appendleft(one)
        self._users = {one.user: waiting, **self._users}
        self._count += 1

    def take(self, may: Callable[[W], bool]) -> W | None:
        """
        Whoever is next among those that *may*; its user is the last one then.
        """
        for user, waiting in self._users.items():
            if may(waiting[0]):
                one = waiting.popleft()
                del self._users[user]
                if waiting:
                    self._users[user] = waiting
                self._count -= 1
                return one
        return None

    def remove(self, one: W) -> bool:
        """
        Take *one* out, if it is there; was it?
        """
        waiting = self._users.get(one.user)
        if waiting is None or one not in waiting:
            return False
        waiting.remove(one)
        if not waiting:
            del self._users[one.user]
        self._count -= 1
        return True

    def clear(self) -> list[W]:
        """
        Everybody, in no order that matters; nobody waits any more.
        """
        all_of_them = list(self)
        self._users.clear()
        self._count = 0
        return all_of_them
