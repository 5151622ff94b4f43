"""
The last ends of each user's jobs and sandboxes, for `leeward logs` and `leeward explain`.

Trust: none in a job, which chooses its title and how often a system call is denied to it. The number of events is
bounded for each user and for all. A user gets only their own events, which are numbered separately. An ordinary end
replaces an older ordinary one, so that many of them don't displace an unusual one.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.barrier import in_any_case
from leeward.spec.outcome import Outcome, Result

#: Unusual ends and ordinary ends that are kept of one user, and users, at most.
SPECIAL, ORDINARY, USERS = 192, 64, 64
#: Denied calls of one end that are named, and characters of a text, at most.
NAMED, TEXT = 32, 200

_ORDINARY = (Outcome.FINISHED, Outcome.RAISED)


@dataclass(frozen=True, slots=True)
class RememberedEnd:
    """The end of one job, program or sandbox, in seconds since the epoch. Numbers are the user's, from 1 on."""

    number: int
    when: float
    about: Mapping[str, Any]
    result: tuple[Any, ...] | None = None

    def row(self) -> dict[str, Any]:
        row = {"number": self.number, "time": self.when, **self.about}
        if self.result is not None:
            outcome, exit_code, limit, duration, cpu_time, memory_peak, denied, error = self.result
            row |= {"outcome": str(outcome), "exit_code": exit_code, "limit": limit and str(limit),
                    "seconds": duration, "cpu_time": cpu_time, "memory_peak": memory_peak, "denied": denied}
            if error:
                row["error"] = error
        return row


@dataclass(slots=True)
class _Book:
    """The ends of one user, and the requests that wait for the next."""

    last: int = 0
    special: deque[RememberedEnd] = field(default_factory=lambda: deque(maxlen=SPECIAL))
    ordinary: deque[RememberedEnd] = field(default_factory=lambda: deque(maxlen=ORDINARY))
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)


class EventBook:
    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._books: OrderedDict[int, _Book] = OrderedDict()
        self._tickets = 0

    def __len__(self) -> int:
        return sum(len(book.special) + len(book.ordinary) for book in self._books.values())

    # --- recording ------------------------------------------------------------------

    def job(self, user: int, number: int, label: str, result: Result) -> None:
        self._result(user, {"kind": "job", "job": number, **({"title": label} if label else {})}, result)

    def process(self, user: int, sandbox: str, number: int, title: str, result: Result) -> None:
        """Record the end of a program in a sandbox; number 0 is an interpreter."""
        about = {"kind": "process", "sandbox": sandbox, **({"process": number} if number else {})}
        self._result(user, {**about, **({"title": title[:TEXT]} if title else {})}, result)

    def sandbox(self, user: int, name: str, reason: str, detail: str, used: Mapping[str, Any]) -> None:
        """Record the end of a sandbox: a *reason* in one word, a *detail* or "", and what it *used*, as in `sandbox_info`."""
        about = {"kind": "sandbox", "sandbox": name, "reason": reason, **({"detail": detail[:TEXT]} if detail else {}),
                 **used}
        self._add(user, about, None, reason not in ("killed", "idle", "shutdown"))

    def _result(self, user: int, about: Mapping[str, Any], result: Result) -> None:
        denied = result.denied
        if len(denied) > NAMED:
            denied = dict(sorted(denied.items(), key=lambda row: -row[1])[:NAMED])
        error = result.error.type[:TEXT] if result.error is not None else ""
        if result.outcome is Outcome.INTERNAL and result.error is not None:
            error = f"{error}: {result.error.message}"[:TEXT]  # a text of the daemon's own, not of a job
        self._add(user, about, (result.outcome, result.exit_code, result.limit, result.duration, result.cpu_time,
                                result.memory_peak, dict(denied), error),
                  bool(denied) or result.limit is not None or result.outcome not in _ORDINARY)

    def _add(self, user: int, about: Mapping[str, Any], result: tuple[Any, ...] | None, special: bool) -> None:
        book = self._books.get(user)
        if book is None:
            book = self._books[user] = _Book()
            if len(self._books) > USERS:
                self._forget_one(user)
        self._books.move_to_end(user)
        book.last += 1
        (book.special if special else book.ordinary).append(RememberedEnd(book.last, self._wall(), about, result))
        if book.waiting:
            waiting = list(book.waiting.values())
            book.waiting.clear()
            in_any_case(*waiting)

    def _forget_one(self, but: int) -> None:
        """Forget the user with the oldest last event, among those without a waiting request."""
        for user, book in self._books.items():
            if user != but and not book.waiting:
                del self._books[user]
                return

    # --- reading --------------------------------------------------------------------

    def after(self, user: int, number: int) -> dict[str, Any]:
        book = self._books.get(user)
        if book is None:
            return {"events": [], "last": 0}
        found = [one for one in (*book.special, *book.ordinary) if one.number > number]
        return {"events": [one.row() for one in sorted(found, key=lambda one: one.number)], "last": book.last}

    def wait(self, user: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* once, at *user*'s next event. Returns a function that cancels this."""
        book = self._books.get(user)
        if book is None:
            book = self._books[user] = _Book()
        self._tickets += 1
        book.waiting[self._tickets] = wake
        return partial(self._take_back, user, self._tickets)

    def _take_back(self, user: int, ticket: int) -> None:
        book = self._books.get(user)
        if book is None:
            return
        book.waiting.pop(ticket, None)
        if not book.last and not book.waiting:
            del self._books[user]
