"""
Copies the daemon's decisions about connections of sandboxes into the record of approvals.

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

#: Pages of rows that one `pull` takes: sandboxes may make rows as fast as they are read.
_MOST_ANSWERS = 50


class EgressRows:
    """
    Reads the daemon's record of decisions by egress policies.

    Args:
        socket: of the daemon; None for the default.
    """

    def __init__(self, socket: str | None) -> None:
        self._link, self._lock = Link(client_socket(socket)), threading.Lock()
        self._after = -1

    def pull(self) -> list[Mapping[str, Any]]:
        """
        The rows since the last call, _MOST_ANSWERS pages of them at most. The first call returns none: older rows may
        be in the record already.

        Raises:
            DaemonError: the daemon is away.
            BadReply: its answer has no rows.
        """
        found = list[Mapping[str, Any]]()
        with self._lock:
            is_first, after = self._after < 0, max(0, self._after)
            for _ in range(_MOST_ANSWERS):
                reply, _ = self._link.call("egress_log", {"after": after, "wait": 0.0}, time.monotonic() + _ANSWER_S)
                answer = reply.ok or {}
                rows, last = answer.get("events"), answer.get("last")
                if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                    raise BadReply("the daemon's record of egress isn't a list of rows")
                if not rows and type(last) is int and last < after:
                    after = 0  # another daemon, which counts from 1 again
                    continue
                if not rows:
                    break
                after = rows[-1].get("number", after + len(rows))
                found += [] if is_first else rows
            self._after = after
        return found

    def skip(self) -> None:
        """Leave out the rows that the daemon has now."""
        try:
            self.pull()
        except LeewardError:
            self._after = max(self._after, 0)  # the record of a daemon that starts later is new as a whole

    def close(self) -> None:
        with self._lock:
            self._link.close()


def egress_row(row: Mapping[str, Any]) -> AuditRow | None:
    """The row of the record for *row* of the daemon's; None if that is neither allowed nor denied."""
    verdict = row.get("verdict")
    decision = {"allowed": "approved", "denied": "denied"}.get(str(verdict))
    when = row.get("time")
    if decision is None or not isinstance(when, float):
        return None
    metadata = {name: row.get(name) for name in ("policy", "name", "address", "port", "rule", "reason")}
    return AuditRow(when, "network", "egress", decision, by="policy", sandbox=str(row.get("sandbox") or ""),
                    metadata=metadata)
