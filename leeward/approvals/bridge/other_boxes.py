"""
Writes the rows of the record about sandboxes of the profile `approved` that another program of this user has opened.

Runs in:   the operator's program that decides; a client of the daemon.
Leaves:    what such a sandbox does while no service runs, and sandboxes of a profile that is based on `approved` under
           another name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from leeward.approvals.bridge.box_rows import SandboxRows
from leeward.client.link import Link
from leeward.client.sandbox_calls import listed
from leeward.errors import LeewardError
from leeward.spec.paths import client_socket
from leeward.spec.profiles.approved import NAME as PROFILE

#: Seconds between two looks. Each one lists all sandboxes of the user.
LOOK_S = 10.0

_ANSWER_S = 5.0


class OtherBoxes:
    """
    Looks for such sandboxes and for their ends. For one thread.

    Args:
        socket: of the daemon; None for the default.
        life: writes the rows, and leaves out the service's own sandboxes.
    """

    def __init__(self, socket: str | None, life: SandboxRows) -> None:
        self._link, self._life = Link(client_socket(socket)), life
        self._after: int | None = None
        self._next = 0.0

    def look(self) -> None:
        """Write the rows since the last look, if that was LOOK_S ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            self._look()

    def close(self) -> None:
        """Look for the last time."""
        self._look()
        self._link.close()

    def _look(self) -> None:
        try:
            opened = listed(lambda after: self._ask("sandbox_list", after))
            ends = (self._ask("recall", {"after": self._after or 0, "wait": 0.0}).ok or {})
        except LeewardError:
            return  # the daemon is away; the next look tries again
        last, events = ends.get("last"), ends.get("events")
        if type(last) is not int or not isinstance(events, list):
            return
        # Sandboxes that ended before the first look may be in the record already.
        fresh = [] if self._after is None or last < self._after else events
        if self._life.others(list(filter(_is_ours, opened)), [event for event in fresh if _is_ours(event)]):
            self._after = last

    def _ask(self, op: str, fields: dict[str, Any]) -> Any:
        return self._link.call(op, fields, time.monotonic() + _ANSWER_S)[0]


def _is_ours(row: Any) -> bool:
    """Whether a row of the daemon is about a sandbox of the profile `approved`."""
    return isinstance(row, Mapping) and row.get("profile") == PROFILE and isinstance(row.get("sandbox"), str)
