"""
The fetches that were passed to a broker, until each has its one answer.

Runs in:   the daemon, on the reactor's thread.
Bound:     MOST_OF_USER fetches of one user at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from leeward.errors import Busy
from leeward.loop.barrier import in_any_case
from leeward.wire.egress_control import FetchAnswer
from leeward.wire.fetches import check_answer

#: The most fetches of one user: each has a memory file in the daemon, and its response in the broker.
MOST_OF_USER = 16

#: Called with the answer that `check_answer` has checked.
Answered = Callable[[Mapping[str, Any]], None]


def failed(message: str, cause: str = "http", *, sent: bool = True) -> dict[str, Any]:
    """Return the answer to a fetch that wasn't tried (*sent* is False), or whose end isn't known."""
    return {"failed": cause, "message": message, "url": "", "sent": sent}


class Fetches:
    """The fetches of one broker."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[int, Answered]] = {}

    def begin(self, user: int, answered: Answered) -> int:
        """
        Register a fetch, and return its number.

        Raises:
            Busy: *user* has MOST_OF_USER fetches already.
        """
        if sum(owner == user for owner, _ in self._waiting.values()) >= MOST_OF_USER:
            raise Busy(f"{MOST_OF_USER} fetches of yours are under way, all that a user may have")
        number = next(self._numbers)
        self._waiting[number] = (user, answered)
        return number

    def end(self, number: int) -> bool:
        """Forget a fetch. Returns whether it was still waited for."""
        return self._waiting.pop(number, None) is not None

    def answered(self, message: FetchAnswer) -> None:
        """
        Pass on the broker's answer to a fetch.

        Raises:
            PeerError: the answer is invalid.
        """
        answer = check_answer(message.about)
        found = self._waiting.pop(message.number, None)
        if found is not None:
            found[1](answer)

    def lost(self) -> None:
        """The broker has ended: answer all its fetches as failed."""
        waiting, self._waiting = self._waiting, {}
        answer = failed("HTTP error: the broker has ended, and the request with it; it may have been sent")
        in_any_case(*(_answering(answered, answer) for _, answered in waiting.values()))


def _answering(answered: Answered, answer: Mapping[str, Any]) -> Callable[[], None]:
    return lambda: answered(answer)


