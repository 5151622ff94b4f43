"""
What sandboxes do, as rows of the record: those that can ask, those that are opened for a command, and those of the
profile that another program has opened.

Runs in:   the operator's program that decides.
Trust:     none in what the daemon says of a sandbox's calls: names are cut, and rows are bounded by whoever takes them.
Threads:   any may call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leeward.approvals.box_ends import LastCounts
from leeward.approvals.egress_rows import EgressRows, egress_row
from leeward.approvals.recording import denied_rows, ended_row, limit_rows, started_row
from leeward.audit.bounded import BoundedJournal
from leeward.errors import LeewardError, SandboxOver

#: Sandboxes that are over are known by their ids, so many of them.
_MOST_OVER = 4096


#: The limit that has ended a sandbox, by the daemon's word for its end.
_LIMIT_OF = {"memory": "memory", "lifetime": "time"}


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
        self._strangers = set[str]()  # those of the former that another program has opened
        self._over = deque[str](maxlen=_MOST_OVER)
        self._opening = 0

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """
        While the service opens one, which the daemon knows before `begin` tells of it.
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
        It is open.

        Args:
            sandbox: its id.
            metadata: why it was opened, for JSON.
        """
        with self._lock:
            self._strangers.discard(sandbox)  # it was opened by another program, and the service looks at it now
            self._before.setdefault(sandbox, (time.time(), {}, {}))
        self._rows.write(started_row(sandbox, **metadata))

    def others(self, opened: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> bool:
        """
        Write what happens in sandboxes that another program has opened.

        Args:
            opened: what the daemon says of each of the profile that is open, the service's own among them.
            ended: what it remembers of those that have ended since the last time.

        Returns:
            Whether they were taken: not while the service opens one, which may be among them.
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
