"""
The whole record: two chains of lines, of which one has only people's decisions; and a bound for the rows that one
sandbox causes, so that it can't make the record drop old rows by rotation.

Runs in:   the program that decides, which writes the record; `read_record` and `verify_record` in the CLI as well.
Files:     the second chain, of decisions, is in the folder DECISIONS below the record's folder, and its head in the
           folder DECISIONS below the head's. The first chain, of all other rows, is in the record's folder itself.
Holds:     the operator's decisions, their results, and the service's starts and ends are rows of the second chain. Only
           people cause these, so no sandbox can make the chain drop them by rotation. When a writer starts, it writes a
           row to the first chain that names the last line of the second one, so that a removal of the second chain is
           noticed.
Bound:     a person's decisions, their results, and starts and ends of sandboxes are always written. Of the other
           rows (denials by rules and modes, expiry, egress policies, denied system calls) a sandbox may cause BURST at
           once, and EACH_MINUTE more in each minute. Further rows are counted, and a row with the counts is written
           before the sandbox's next row, or at the end of the sandbox.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from leeward.apps.audit.journal import KEPT_FILES, ROTATE, Journal, Verified, is_torn, mend, read, read_head, verify
from leeward.apps.audit.record_lines import AuditRow, ReadLine
from leeward.base.closing import on_failure
from leeward.base.protocols import Protocol

#: The folder of the second chain.
DECISIONS = "decisions"

#: Values of `by` for a person.
_PEOPLE = ("cli", "page")


class RowSink(Protocol):
    """Takes rows: Journal, AuditRecord or BoundedJournal."""

    def write(self, row: AuditRow) -> bool: ...


def is_persons(row: AuditRow) -> bool:
    """Whether *row* is about an act of a person, or a start or end of the service."""
    return row.by in _PEOPLE or row.category == "service"


class AuditRecord:
    """The writer of both chains, one process at a time; the arguments are those of Journal."""

    def __init__(self, folder: str, head: str | None = None, *, rotate: int = ROTATE, kept: int = KEPT_FILES) -> None:
        self.folder, own = folder, os.path.join(folder, DECISIONS)
        own_head = None if head is None else os.path.join(head, DECISIONS)
        self._rest = Journal(folder, head, rotate=rotate, kept=kept)
        with on_failure(self._rest.close):
            self._decisions = Journal(own, own_head, rotate=rotate, kept=kept)
        try:
            named = read_head(own_head or own)
        except OSError:
            named = None  # can't be read now; rows that can't be written are counted
        if named is not None and named.number:
            self._rest.write(AuditRow(time.time(), "audit", DECISIONS, "named",
                                      metadata={"line": named.number, "hash": named.hash}))

    @property
    def lost(self) -> int:
        """The number of rows that weren't written."""
        return self._rest.lost + self._decisions.lost

    @property
    def trouble(self) -> str:
        """Why the last row wasn't written; "" when rows are written again."""
        return self._decisions.trouble or self._rest.trouble

    def write(self, row: AuditRow) -> bool:
        """
        Pass *row* to the writer of its chain. Never waits: False if the writer's queue is full, and the row is counted
        as lost.
        """
        return (self._decisions if is_persons(row) else self._rest).write(row)

    def close(self) -> None:
        """Write the queued rows, and end both writers."""
        self._rest.close()
        self._decisions.close()


def read_record(folder: str) -> Iterator[ReadLine]:
    """The lines of both chains, sorted by time, the oldest first, each with its fault."""
    return map(itemgetter(1), heapq.merge(_timed(read(folder)), _timed(_read_decisions(folder)), key=itemgetter(0)))


def _read_decisions(folder: str) -> Iterator[ReadLine]:
    own = os.path.join(folder, DECISIONS)
    if os.path.isdir(own):  # an old record has one chain
        yield from map(_placed, read(own))


def _placed(line: ReadLine) -> ReadLine:
    return replace(line, file=f"{DECISIONS}/{line.file}")


def _timed(lines: Iterator[ReadLine]) -> Iterator[tuple[float, ReadLine]]:
    last = 0.0
    for line in lines:
        said = None if line.row is None else line.row.get("time")
        last = float(said) if isinstance(said, (int, float)) else last
        yield last, line


@dataclass(slots=True)
class _NamedLine:
    """The last line of the second chain that the first one names, and whether the second chain has it."""

    number: int = 0
    hash: str = ""
    is_other: bool = False

    def note(self, line: ReadLine) -> None:
        """Note a line of the first chain."""
        row = line.row
        if row is None or (row.get("category"), row.get("action")) != ("audit", DECISIONS):
            return
        said = row.get("metadata")
        if isinstance(said, Mapping) and type(said.get("line")) is int and isinstance(said.get("hash"), str):
            self.number, self.hash = said["line"], said["hash"]

    def compare(self, line: ReadLine) -> None:
        """Compare a line of the second chain."""
        if line.row is not None and line.row["number"] == self.number:
            self.is_other = line.hash != self.hash


def verify_record(folder: str, head: str | None = None) -> Verified:
    """
    Check that both chains are intact, that they have the lines that their heads in *head* (None: the same folder) name,
    and that the second chain has the line that the first one names.
    """
    named, own = _NamedLine(), os.path.join(folder, DECISIONS)
    own_head = None if head is None else os.path.join(head, DECISIONS)
    first, second = verify(folder, head, named.note), Verified(0, None)
    if os.path.isdir(own):
        second = verify(own, own_head, named.compare)
    elif own_head is not None and os.path.isdir(own_head):
        second = Verified(0, None, "it has a head, but no lines")
    said = [first.head] * bool(first.head) + [f"{DECISIONS}: {second.head}"] * bool(second.head)
    if named.number > second.last:
        said.append(f"the record names line {named.number} of {DECISIONS}, but {DECISIONS} end with line {second.last}")
    elif named.is_other:
        said.append(f"the record names a line {named.number} of {DECISIONS} that differs from the one there")
    fault = first.fault or (None if second.fault is None else _placed(second.fault))
    return Verified(first.lines + second.lines, fault, "; ".join(said))


def _chains(folder: str, head: str | None) -> list[tuple[str, str | None]]:
    """The folders of both chains and of their heads; an old record has one chain."""
    own = os.path.join(folder, DECISIONS)
    return [(folder, head)] + [(own, None if head is None else os.path.join(head, DECISIONS))] * os.path.isdir(own)


def torn_record(folder: str) -> bool:
    """Whether the last line of one of the chains is half-written."""
    return any(is_torn(chain) for chain, _ in _chains(folder, None))


def mend_record(folder: str, head: str | None) -> int:
    """As `journal.mend`, for both chains."""
    return sum(mend(*chain) for chain in _chains(folder, head))


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
    """Passes rows on to a journal, within a bound for each sandbox."""

    def __init__(self, journal: RowSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal, self._clock = journal, clock
        self._lock, self._accounts = threading.Lock(), dict[str, _RowAccount]()

    def write(self, row: AuditRow) -> bool:
        """Pass *row* on, without waiting; False if its sandbox has reached the bound."""
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
