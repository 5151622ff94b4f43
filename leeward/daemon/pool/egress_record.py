"""
The record of what sandboxes tried to reach, by user, for `leeward egress log` and `leeward explain`. Pure.

Trust: none in a row's texts, which jobs choose; the broker's channel has checked their lengths. A row belongs to the
user of its lease, by the daemon's own records: the broker sends only the lease's number. Bound: MOST_ROWS of all users
together: beyond that the user with the most rows loses the oldest one, so nobody pushes out another one's. MOST_PAST
leases that are over are remembered, for their last rows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.barrier import in_any_case
from leeward.wire.egress_control import VERDICTS, Decided

#: Rows that are kept; rows of one answer; ended leases that are remembered.
MOST_ROWS, PAGE, MOST_PAST = 10_000, 256, 1024
#: In place of a uid: the rows of all users, for the operator; and the owner of a row whose user isn't known.
EVERYBODY, NOBODY = -1, -2


@dataclass(slots=True)
class Lessee:
    """The holder of a lease. *about*: "kind" is "job", with its number, "session" or "sandbox", with its id."""

    user: int = NOBODY  # the uid
    about: Mapping[str, Any] = field(default_factory=lambda: {"kind": "unknown"})
    policy: str = ""  # the name of its policy


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    number: int  # its number among the rows of its user, from 1 on
    serial: int  # its number among all rows, from 1 on
    lessee: Lessee
    decided: Decided

    def row(self, number: int) -> dict[str, Any]:
        """Return the row as the wire has it."""
        row = self.decided
        return {"number": number, "user": self.lessee.user, **self.lessee.about, "policy": self.lessee.policy,
                "lease": row.lease, "try": row.number, "time": row.time, "name": row.name, "address": row.address,
                "port": row.port, "verdict": row.verdict, "rule": row.rule, "reason": row.reason, "sent": row.sent,
                "received": row.received}


class EgressRecord:
    """*sent*, *received*: bytes from sandboxes and to them, of connections that have ended."""

    def __init__(self) -> None:
        self.verdicts = dict.fromkeys(VERDICTS, 0)  # the number of rows so far, by verdict
        self.sent = self.received = 0
        self._serial = self._kept = self._tickets = 0
        self._rows: dict[int, deque[RecordedDecision]] = {}
        self._numbers: dict[int, int] = {}
        self._held: dict[int, Lessee] = {}
        self._past: OrderedDict[int, Lessee] = OrderedDict()
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return self._kept

    def leased(self, lease: int, policy: str) -> None:
        """Record that a lease with this number exists. `owned` adds its user."""
        self._held[lease] = Lessee(policy=policy)

    def owned(self, lease: int, user: int, about: Mapping[str, Any]) -> None:
        """Record that *user* has the lease; *about* describes its use."""
        lessee = self._held.get(lease)
        if lessee is not None:
            lessee.user = user
            if lessee.about["kind"] == "unknown":  # a sandbox may be seated before its worker is lent
                lessee.about = about

    def seated(self, lease: int, sandbox: str) -> None:
        lessee = self._held.get(lease)
        if lessee is not None:
            lessee.about = {"kind": "sandbox", "sandbox": sandbox}

    def over(self, lease: int) -> None:
        """Record that the lease is over; its last rows may still arrive."""
        lessee = self._held.pop(lease, None)
        if lessee is not None:
            self._past[lease] = lessee
            if len(self._past) > MOST_PAST:
                self._past.popitem(last=False)

    def lessee(self, lease: int) -> Lessee | None:
        """Return the holder of a lease; None if the lease is over."""
        return self._held.get(lease)

    def add(self, decided: Decided) -> None:
        lessee = self._held.get(decided.lease) or self._past.get(decided.lease) or Lessee()
        self.verdicts[decided.verdict] += 1
        self.sent += decided.sent
        self.received += decided.received
        self._serial += 1
        number = self._numbers[lessee.user] = self._numbers.get(lessee.user, 0) + 1
        self._rows.setdefault(lessee.user, deque()).append(
            RecordedDecision(number, self._serial, lessee, decided))
        self._kept += 1
        if self._kept > MOST_ROWS:
            most = max(self._rows, key=lambda user: len(self._rows[user]))
            self._rows[most].popleft()
            self._kept -= 1
        wake = [ticket for ticket, (user, _) in self._waiting.items() if user in (EVERYBODY, lessee.user)]
        in_any_case(*(self._waiting.pop(ticket)[1] for ticket in wake))

    def rows(self) -> Iterator[RecordedDecision]:
        """The rows of all users, the oldest first."""
        return merge(*self._rows.values(), key=lambda row: row.serial)

    def after(self, user: int, number: int) -> dict[str, Any]:
        """A page of the rows of *user*, or EVERYBODY, after *number*, as an answer."""
        if user == EVERYBODY:
            rows: Iterator[tuple[int, RecordedDecision]] = ((row.serial, row) for row in self.rows())
            last, kept = self._serial, self._kept
        else:
            mine = self._rows.get(user, deque())
            rows = ((row.number, row) for row in mine)
            last, kept = self._numbers.get(user, 0), len(mine)
        found = list(islice((row.row(at) for at, row in rows if at > number), PAGE))
        return {"events": found, "last": found[-1]["number"] if found else last, "forgotten": last - kept}

    def wait(self, user: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *tell* once, at the next row of *user*, or EVERYBODY. Returns a function that cancels that."""
        self._tickets += 1
        self._waiting[self._tickets] = (user, wake)
        return partial(self._take_back, self._tickets)

    def _take_back(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)
