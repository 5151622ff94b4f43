"""
What the daemon does now and how its last work ended, for the page: what `leeward status`, `top`, `logs` and `egress log`
read, and nothing that changes anything.

Threads:   any may call. A look, or why there is none, is shared by all who want one until LOOK_S seconds after it.
Trust:     none in titles, metadata and names of hosts, which jobs choose.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward.client.connection import BlockingConnection
from leeward.client.daemon_rows import decisions, ends
from leeward.client.sandbox_calls import listed
from leeward.errors import LeewardError
from leeward.spec.paths import OwnSocket, client_socket

#: Seconds for which a look is shared, and those that the daemon has for one answer.
LOOK_S, _ANSWER_S = 1.0, 5.0
#: Rows of each kind that are kept, and looks for the charts: six minutes, one each two seconds.
MOST_ROWS, MOST_SAMPLES = 100, 180


@dataclass(frozen=True, slots=True)
class DaemonSample:
    """One look, for the charts."""

    time: float  # seconds since the epoch
    done: int  # jobs since the daemon's start, of all users
    median: float | None  # seconds of those of this user's jobs that the daemon remembers since the look before
    longest: float | None


@dataclass(frozen=True, slots=True)
class DaemonLook:
    status: Mapping[str, Any]
    sandboxes: Sequence[Mapping[str, Any]]  # the oldest first
    ends: Sequence[Mapping[str, Any]]  # the newest first
    egress: Sequence[Mapping[str, Any]]  # the newest first
    samples: Sequence[DaemonSample]


class DaemonView:
    """Looks at the daemon on *socket* (None: the default one), and never starts one."""

    def __init__(self, socket: str | None, clock: Callable[[], float] = time.time) -> None:
        found = client_socket(socket)
        self._path = str(found) if isinstance(found, OwnSocket) else found  # by a plain text no client starts one
        self._clock, self._lock = clock, threading.Lock()
        self._last: DaemonLook | LeewardError | None = None
        self._last_at = 0.0
        self._pid: object = None
        self._uptime = 0.0
        self._forget()

    def _forget(self) -> None:
        self._ends, self._egress = deque[dict[str, Any]](maxlen=MOST_ROWS), deque[dict[str, Any]](maxlen=MOST_ROWS)
        self._samples = deque[DaemonSample](maxlen=MOST_SAMPLES)
        self._known = {"ends": 0, "egress": 0}  # the number of the last row

    def look(self) -> DaemonLook:
        """What the daemon does; LeewardError if it is away or answers with something else."""
        with self._lock:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last_at < LOOK_S:
                try:
                    self._last = self._asked(now)
                except LeewardError as error:
                    self._last = error
                self._last_at = self._clock()
            if isinstance(self._last, LeewardError):
                raise self._last.with_traceback(None)
            return self._last

    def _asked(self, now: float) -> DaemonLook:
        connection = BlockingConnection(self._path)

        def ask(op: str, fields: Mapping[str, Any]) -> Any:
            return connection.call(op, fields, time.monotonic() + _ANSWER_S)[0]

        with contextlib.closing(connection):
            status = ask("status", {}).ok or {}
            sandboxes = listed(lambda after: ask("sandbox_list", after))
        uptime = status.get("uptime")
        uptime = uptime if isinstance(uptime, int | float) else 0.0
        if status.get("pid") != self._pid or uptime < self._uptime:  # another daemon, whose rows count from 1
            self._forget()
        self._pid, self._uptime = status.get("pid"), uptime
        new = self._pull("ends", ends(self._path), self._ends)
        self._pull("egress", decisions(self._path), self._egress)
        seconds = [row["seconds"] for row in new if row["kind"] == "job" and row.get("seconds") is not None]
        jobs = status.get("jobs")
        done = jobs.get("done") if isinstance(jobs, dict) else 0
        self._samples.append(DaemonSample(now, done if type(done) is int else 0,
                                          statistics.median(seconds) if seconds else None, max(seconds, default=None)))
        return DaemonLook(status, sandboxes, [*reversed(self._ends)], [*reversed(self._egress)], [*self._samples])

    def _pull(self, kind: str, log: Any, rows: deque[dict[str, Any]]) -> list[dict[str, Any]]:
        """Read the rows that are new."""
        found: list[dict[str, Any]] = log.rows(self._known[kind])
        rows.extend(found)
        self._known[kind] = max([self._known[kind], *(row["number"] for row in found)])
        return found
