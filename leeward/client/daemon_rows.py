"""
The rows that a daemon remembers for its user: how jobs and sandboxes ended, and what their connections were answered.

Trust:     none in a row: its types are checked here, and its texts (titles, names of hosts) come from jobs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leeward.client.connection import BlockingConnection
from leeward.errors import BadReply
from leeward.wire.replies import MAX_ID

#: Seconds that the daemon may take to answer, and that one request waits for more rows.
_ANSWER_S, _WAIT_S = 5.0, 60.0
#: The greatest number of answers that are read without `follow`: the daemon keeps fewer rows.
_MOST_PAGES = 2000


class RowLog:
    """
    What the daemon on *path* remembers for this user, by the operation *op*. Rows that don't fit are a BadReply.

    Attributes:
        forgotten: the number of rows that the daemon has dropped.
    """

    def __init__(self, path: str, op: str, fits: Callable[[Mapping[str, Any]], bool]) -> None:
        self._path, self._op, self._fits = path, op, fits
        self.forgotten = 0

    def pages(self, follow: bool, after: int = 0) -> Iterator[list[dict[str, Any]]]:
        """The existing rows with numbers above *after*, the oldest first; then new ones, if *follow*."""
        with contextlib.closing(BlockingConnection(self._path)) as connection:
            wait, pages = 0.0, 0
            while True:
                reply, _ = connection.call(self._op, {"after": after, "wait": wait}, time.monotonic() + wait + _ANSWER_S)
                found = self._checked(reply.ok or {})
                if found:
                    yield found
                    after, wait, pages = max(row["number"] for row in found), 0.0, pages + 1
                    if pages >= _MOST_PAGES and not follow:
                        return  # a sandbox may add rows as fast as they are read
                elif follow:
                    wait = _WAIT_S
                else:
                    return

    def last(self) -> int:
        """The number of the newest row; 0 for none."""
        with contextlib.closing(BlockingConnection(self._path)) as connection:
            reply, _ = connection.call(self._op, {"after": MAX_ID}, time.monotonic() + _ANSWER_S)
        last = (reply.ok or {}).get("last")
        if type(last) is not int:
            raise BadReply("the daemon's rows are malformed")
        return last

    def rows(self, after: int = 0) -> list[dict[str, Any]]:
        return [row for page in self.pages(False, after) for row in page]

    def _checked(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        found, forgotten = answer.get("events"), answer.get("forgotten", 0)
        if not isinstance(found, list) or type(forgotten) is not int or not all(
                isinstance(row, dict) and self._fits(row) for row in found):
            raise BadReply("the daemon's rows are malformed")
        self.forgotten = forgotten
        return found


# --- how jobs and sandboxes ended ---------------------------------------------------

_END_TEXTS = ("kind", "outcome", "reason", "detail", "limit", "error", "title", "sandbox")
_END_NUMBERS = ("number", "time", "job", "process", "exit_code", "seconds", "memory_peak")


def _is_end(row: Mapping[str, Any]) -> bool:
    denied = row.get("denied", {})
    return (isinstance(denied, dict) and all(type(one) is str and type(count) is int for one, count in denied.items())
            and type(row.get("number")) is int and type(row.get("time")) is float and type(row.get("kind")) is str
            and all(type(row.get(name)) in (str, type(None)) for name in _END_TEXTS)
            and all(type(row.get(name)) in (int, float, type(None)) for name in _END_NUMBERS))


def ends(path: str) -> RowLog:
    return RowLog(path, "recall", _is_end)


def name_of(row: Mapping[str, Any]) -> str:
    """What has ended, by its number or id."""
    if row["kind"] == "job":
        return f"job {row.get('job')}"
    process = f" process {row['process']}" if row.get("process") else " python" if row["kind"] == "process" else ""
    return f"sandbox {row.get('sandbox')}{process}"


def is_fine(row: Mapping[str, Any]) -> bool:
    """Whether no limit, signal or fault has ended it, and nothing was denied to it."""
    if row["kind"] == "sandbox":
        return row.get("reason") in ("killed", "parted", "idle", "shutdown")
    return row.get("outcome") in ("finished", "raised") and not row.get("limit") and not row.get("denied")


# --- what policies of egress have decided -------------------------------------------

_EGRESS_TEXTS = ("kind", "policy", "name", "address", "verdict", "rule", "reason")
_EGRESS_NUMBERS = ("number", "user", "lease", "try", "port", "sent", "received")


def _is_decision(row: Mapping[str, Any]) -> bool:
    return (type(row.get("time")) is float and type(row.get("job")) in (int, type(None))
            and type(row.get("sandbox")) in (str, type(None))
            and all(type(row.get(name)) is str for name in _EGRESS_TEXTS)
            and all(type(row.get(name)) is int for name in _EGRESS_NUMBERS))


def decisions(path: str) -> RowLog:
    """The record of this user's sandboxes; for the operator, of all users' sandboxes."""
    return RowLog(path, "egress_log", _is_decision)


def subject_of(row: Mapping[str, Any]) -> str:
    """Who asked for a connection."""
    if row.get("sandbox"):
        return str(row["sandbox"])
    return f"job {row['job']}" if row.get("job") is not None else f"{row['kind']} {row['lease']}"


def target(row: Mapping[str, Any]) -> str:
    """The host and port of a connection."""
    host = row["name"] or row["address"]
    if ":" in host and row["port"]:
        host = f"[{host}]"
    return f"{host}:{row['port']}" if row["port"] else host
