"""What each user has a few of at once: the others wait in their order, and no user waits for another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class UserTurns:
    """*most* of one user at once; *soon* calls what has waited."""

    def __init__(self, most: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self._most, self._soon = most, soon
        self._taken: dict[int, int] = {}
        self._waiting: dict[int, deque[Callable[[], None]]] = {}

    def enter(self, user: int, later: Callable[[], None]) -> bool:
        """Whether it is the caller's turn; else *later* is called once it is. `leave` ends both."""
        if self._taken.get(user, 0) >= self._most:
            self._waiting.setdefault(user, deque()).append(later)
            return False
        self._taken[user] = self._taken.get(user, 0) + 1
        return True

    def leave(self, user: int, later: Callable[[], None]) -> None:
        """The turn is over, or *later* waits for none any more."""
        waiting = self._waiting.get(user)
        if waiting:
            if later in waiting:
                waiting.remove(later)
            else:
                self._soon(waiting.popleft())
            if not waiting:
                del self._waiting[user]
            return
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
