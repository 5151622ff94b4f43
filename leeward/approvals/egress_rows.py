"""
Connections that sandboxes tried, and the decisions of their policies: from the daemon's record into that of approvals.

Runs in:   the operator's program that decides; a client of the daemon.
Trust:     none in a row's texts, which a sandbox chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from leeward.audit.rows import AuditRow
from leeward.client.link import Link
from leeward.errors import BadReply, LeewardError
from leeward.spec.paths import client_socket

_ANSWER_S = 5.0

#: Answers of the daemon that are taken at one time: sandboxes may make rows as fast as they are read.
_MOST_ANSWERS = 50


class EgressRows:
    """
    Args:
        socket: of the daemon; None for the default.
    """

    def __init__(self, socket: str | None) -> None:
        self._link, self._lock = Link(client_socket(socket)), threading.Lock()
        self._after = -1

    def pull(self) -> list[Mapping[str, Any]]:
        """
        The rows since the last time, as far as _MOST_ANSWERS have them; of the first time none, since nobody knows
        then whose the old ones are.

        Raises:
            DaemonError: the daemon is away.
        """
        found = list[Mapping[str, Any]]()
        with self._lock:
            is_first, after = self._after < 0, max(0, self._after)
            for _ in range(_MOST_ANSWERS):
                reply, _ = self._link.call("egress_log", {"after": after, "wait": 0.0}, time.monotonic() + _ANSWER_S)
                rows = (reply.ok or {}).get("events")
                if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                    raise BadReply("the daemon tells of decisions that are none")
                if not rows:
                    break
                after = rows[-1].get("number", after + len(rows))
                found += [] if is_first else rows
            self._after = after
        return found

    def skip(self) -> None:
        """
        Begin now, if the daemon is there.
        """
        try:
            self.pull()
        except LeewardError:
            pass  # its record is empty when it comes

    def close(self) -> None:
        with self._lock:
            self._link.close()


def egress_row(row: Mapping[str, Any]) -> AuditRow | None:
    """
    The line for *row* of the daemon's record; None for one that decides nothing.
    """
    verdict = row.get("verdict")
    decision = {"allowed": "approved", "denied": "denied"}.get(str(verdict))
    when = row.get("time")
    if decision is None or not isinstance(when, float):
        return None
    metadata = {name: row.get(name) for name in ("policy", "name", "address", "port", "rule", "reason")}
    return AuditRow(when, "network", "egress", decision, by="policy", sandbox=str(row.get("sandbox") or ""),
                    metadata=metadata)
