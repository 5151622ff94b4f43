"""
What sandboxes do, as rows of the record: those that can ask, and those that are opened for a command.

Runs in:   the operator's program that decides.
Trust:     none in what the daemon says of a sandbox's calls: names are cut, and rows are bounded by whoever takes them.
Threads:   any may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from leeward.approvals.box_ends import LastCounts
from leeward.approvals.egress_rows import EgressRows, egress_row
from leeward.approvals.recording import denied_rows, ended_row, limit_rows, started_row
from leeward.audit.bounded import BoundedJournal
from leeward.errors import LeewardError, SandboxOver


class SandboxRows:
    """
    Args:
        rows: where they go.
        egress: what the daemon has decided by policies of egress.
        last: tells what one has used and was refused that has ended by itself.
    """

    def __init__(self, rows: BoundedJournal, egress: EgressRows, last: LastCounts) -> None:
        self._rows, self._egress, self._last, self._lock = rows, egress, last, threading.Lock()
        self._before = dict[str, tuple[float, dict[str, int], dict[str, int]]]()

    def begin(self, sandbox: str, **metadata: Any) -> None:
        """
        It is open.

        Args:
            sandbox: its id.
            metadata: why it was opened, for JSON.
        """
        with self._lock:
            self._before[sandbox] = time.time(), {}, {}
        self._rows.write(started_row(sandbox, **metadata))

    def pull(self) -> None:
        """
        Write what policies of egress have decided of those that are open since the last time.
        """
        try:
            rows = self._egress.pull()
        except LeewardError:
            return  # the daemon is away; it is asked again
        for made in map(egress_row, rows):
            if made is not None and made.sandbox in self._before:
                self._rows.write(made)

    def look(self, sandbox: str, info: Mapping[str, Any]) -> None:
        """
        Write what has happened in it since the last look.

        Args:
            sandbox: its id.
            info: what the daemon says of it.
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
        It is over.

        Args:
            sandbox: its id.
            info: what the daemon has said of it at last.
            why: what it says now; None where the service itself has ended it.
        """
        self.pull()
        if why is not None:  # since the last look
            info = {**info, **self._last(sandbox)}
        self.look(sandbox, info)
        with self._lock:
            known = self._before.pop(sandbox, None)
        if known is not None:
            self._rows.end(sandbox)
            self._rows.write(ended_row(sandbox, known[0], info, why))
