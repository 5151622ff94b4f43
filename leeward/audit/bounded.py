"""
Bounds the rows that one sandbox causes in the record, so that it can't make the record drop old rows by rotation.

Runs in:   the program that decides.
Holds:     a person's decisions, their results, and starts and ends of sandboxes are always written. Of the other
           rows (denials by rules and modes, expiry, egress policies, denied system calls) a sandbox may cause BURST at
           once, and EACH_MINUTE more in each minute. Further rows are counted, and a row with the counts is written
           before the sandbox's next row, or at the end of the sandbox.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from leeward.audit.record import RowSink
from leeward.audit.rows import AuditRow

#: The number of rows that one sandbox may cause at once, and in each further minute.
BURST, EACH_MINUTE = 1000, 30

#: The greatest number of kinds of left-out rows that are counted separately for a sandbox, and of sandboxes with an
#: account.
MOST_KINDS, MOST_SANDBOXES = 50, 1000

#: Values of `by`, `category` and `decision` of rows that are always written. Decisions of _WITHIN are about processes
#: that a limit kills or prevents; a sandbox can cause any number of them, so they are bounded.
_BY, _CATEGORIES = ("cli", "page", "shutdown", "stale", "sync"), ("sandbox", "service", "audit")
_DECISIONS, _WITHIN = ("approved", "applied", "failed"), ("killed", "refused")


def _is_bounded(row: AuditRow) -> bool:
    if row.category == "sandbox" and row.decision in _WITHIN:
        return True
    if not row.sandbox or row.by in _BY or row.category in _CATEGORIES:
        return False
    return row.decision not in _DECISIONS or row.by == "policy"


@dataclass(slots=True)
class _RowAccount:
    left: float
    since: float
    left_out: Counter[str] = field(default_factory=Counter)


class BoundedJournal:
    """
    Passes rows on to a journal, within a bound for each sandbox.

    Args:
        journal: takes the rows.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, journal: RowSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal, self._clock = journal, clock
        self._lock, self._accounts = threading.Lock(), dict[str, _RowAccount]()

    def write(self, row: AuditRow) -> bool:
        """
        Pass *row* on, unless its sandbox has reached the bound. Never waits.

        Returns:
            False if the row was left out.
        """
        if not _is_bounded(row):
            return self._journal.write(row)
        with self._lock:
            account = self._account(row.sandbox)
            if account.left < 1:
                kind = f"{row.category} {row.action[:40]} {row.decision}"
                account.left_out[kind if kind in account.left_out or len(account.left_out) < MOST_KINDS
                                 else "others"] += 1
                return False
            account.left -= 1
            self._write_counts(row.sandbox, account)
        return self._journal.write(row)

    def end(self, sandbox: str) -> None:
        """Write the counts of a sandbox that has ended, and drop its account."""
        with self._lock:
            account = self._accounts.pop(sandbox, None)
            if account is not None:
                self._write_counts(sandbox, account)

    def _write_counts(self, sandbox: str, account: _RowAccount) -> None:
        if account.left_out:
            self._journal.write(AuditRow(time.time(), "audit", "bound", "left out", sandbox=sandbox,
                                         metadata={"rows": dict(account.left_out)}))
            account.left_out = Counter()

    def _account(self, sandbox: str) -> _RowAccount:
        now = self._clock()
        found = self._accounts.get(sandbox)
        if found is None:
            if len(self._accounts) >= MOST_SANDBOXES:  # drop the account that wasn't used for longest
                oldest = min(self._accounts, key=lambda name: self._accounts[name].since)
                self._write_counts(oldest, self._accounts.pop(oldest))
            found = self._accounts[sandbox] = _RowAccount(BURST, now)
        found.left = min(float(BURST), found.left + (now - found.since) * EACH_MINUTE / 60)
        found.since = now
        return found
