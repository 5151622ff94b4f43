"""
Rows of the record about sandboxes: those that can ask, those that the service opens for a command, and those of the
profile `approved` that another program has opened.

Runs in:   the operator's program that decides.
Trust:     none in the texts that a sandbox chooses. BoundedJournal bounds their length and the number of rows.
Threads:   any may call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leeward.approvals.bridge.box_ends import LastCounts
from leeward.approvals.bridge.egress_rows import EgressRows, egress_row
from leeward.approvals.queue.recording import denied_rows, ended_row, limit_rows, started_row
from leeward.audit.bounded import BoundedJournal
from leeward.errors import LeewardError, SandboxOver

#: Ids of ended sandboxes that are kept.
_MOST_OVER = 4096

#: The limit that has ended a sandbox, by the daemon's reason for the end.
_LIMIT_OF = {"memory": "memory", "lifetime": "time", "files": "files"}


class SandboxRows:
    """
    Writes a row for each sandbox's start and end, and for what it was refused in between.

    Args:
        rows: takes the rows.
        egress: reads the daemon's decisions by egress policies.
        last: returns the last counts of a sandbox that has ended by itself.
    """

    def __init__(self, rows: BoundedJournal, egress: EgressRows, last: LastCounts) -> None:
        self._rows, self._egress, self._last, self._lock = rows, egress, last, threading.Lock()
        self._before = dict[str, tuple[float, dict[str, int], dict[str, int]]]()
        self._strangers = set[str]()  # those of `_before` that another program has opened
        self._over = deque[str](maxlen=_MOST_OVER)
        self._opening = 0

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """
        A context for the service's own opening of a sandbox: the daemon lists it before `begin` is called, and until
        then it would count as another program's.
        """
        with self._lock:
            self._opening += 1
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1

    def begin(self, sandbox: str, **metadata: Any) -> None:
        """
        Write the row for a sandbox that was opened.

        Args:
            sandbox: its id.
            metadata: why it was opened, for JSON.
        """
        with self._lock:
            self._strangers.discard(sandbox)  # the service attaches to one that another program has opened
            self._before.setdefault(sandbox, (time.time(), {}, {}))
        self._rows.write(started_row(sandbox, **metadata))

    def others(self, opened: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> bool:
        """
        Write rows about the sandboxes that another program has opened.

        Args:
            opened: the daemon's rows of all open sandboxes of the profile, the service's own among them.
            ended: the daemon's events of sandboxes that have ended since the last call.

        Returns:
            False if nothing was written, since the service is opening a sandbox that may be among them.
        """
        with self._lock:
            if self._opening:
                return False
            known, over = set(self._before), set(self._over)
        for info in opened:
            name = info["sandbox"]
            if name not in known and name not in over:
                self._begin_stranger(name, info.get("age"))
            if name in self._strangers:
                self.look(name, info)
        for info in ended:
            name = info["sandbox"]
            if name not in known and name not in over and name not in self._strangers:
                self._begin_stranger(name, 0.0)
            if name in self._strangers:
                reason = str(info.get("reason", "unknown"))
                self.pull()
                self._write_end(name, info, SandboxOver("", reason, limit=_LIMIT_OF.get(reason)))
        return True

    def _begin_stranger(self, sandbox: str, age: Any) -> None:
        with self._lock:
            self._strangers.add(sandbox)
            self._before[sandbox] = time.time() - (age if isinstance(age, (int, float)) else 0.0), {}, {}
        self._rows.write(started_row(sandbox, by="another program"))

    def pull(self) -> None:
        """Write what egress policies have decided about open sandboxes since the last call."""
        try:
            rows = self._egress.pull()
        except LeewardError:
            return  # the daemon is away; the next call tries again
        for made in map(egress_row, rows):
            if made is not None and made.sandbox in self._before:
                self._rows.write(made)

    def look(self, sandbox: str, info: Mapping[str, Any]) -> None:
        """
        Write what a sandbox was refused since the last call. Does nothing for one that isn't open.

        Args:
            sandbox: its id.
            info: as `sandbox_info` returns it.
        """
        with self._lock:
            known = self._before.get(sandbox)
            if known is None:
                return
            rows = denied_rows(sandbox, info, known[1]) + limit_rows(sandbox, info, known[2])
        for row in rows:
            self._rows.write(row)

    def end(self, sandbox: str, info: Mapping[str, Any], why: SandboxOver | None) -> None:
        """
        Write the last rows of a sandbox that has ended.

        Args:
            sandbox: its id.
            info: the last `sandbox_info`.
            why: the daemon's reason for the end; None if the service has ended it.
        """
        self.pull()
        if why is not None:  # the counts may have grown since the last `sandbox_info`
            info = {**info, **self._last(sandbox)}
        self._write_end(sandbox, info, why)

    def _write_end(self, sandbox: str, info: Mapping[str, Any], why: SandboxOver | None) -> None:
        self.look(sandbox, info)
        with self._lock:
            known = self._before.pop(sandbox, None)
            self._strangers.discard(sandbox)
            self._over.append(sandbox)
        if known is not None:
            self._rows.end(sandbox)
            self._rows.write(ended_row(sandbox, known[0], info, why))
