"""
Connections over TCP, which any user of the host can open: a bounded number at once, and silent ones are closed.

Runs in:   the operator's program that decides, on its event loop.

Connections of the operator's user and of root, and those on which a session or a token was shown, have a bound of
their own; where it is reached, the one that has been without a request for longest makes room. All others are strangers,
and few: each has a short time, and where there are too many, the oldest one of the user who has most makes room. So no
other user keeps the operator away, also where the operator's browser has another user's id, as in a container.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from leeward.approvals.web.credentials import SCOPE_KEY
from leeward.approvals.web.peers import peer_uid

#: Connections at once, and seconds until the head of the first request has to be complete.
MOST_CONNECTIONS, HEAD_S = 256, 10.0
#: Of strangers: connections at once, and seconds until one has to have shown a session or a token.
MOST_STRANGERS, STRANGER_S = 32, 5.0


class BoundedConnection(H11Protocol):
    """HTTP. A connection beyond the bounds is closed before a byte of it is read."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport, self.uid = transport, peer_uid(transport.get_extra_info("socket"))
        self.since = self.loop.time()
        if not self._has_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._deadline = self.loop.call_later(STRANGER_S if is_stranger(self) else HEAD_S, self._late)

    def _has_room(self) -> bool:
        """Whether there is room for this connection, or has been made."""
        strangers: list[Any] = [one for one in self.connections if is_stranger(one)]
        if not is_stranger(self):
            return len(self.connections) - len(strangers) < MOST_CONNECTIONS or self._closes_an_idle_one()
        if len(strangers) >= MOST_STRANGERS:
            [(most, _)] = Counter(one.uid for one in [*strangers, self]).most_common(1)
            oldest = min((one for one in strangers if one.uid == most), key=lambda one: one.since)
            self.connections.discard(oldest)
            oldest.transport.abort()
        return True

    def _closes_an_idle_one(self) -> bool:
        """Close the known connection that has been without a request for longest; False if each has one."""
        idle = [(one.timeout_keep_alive_task.when(), one) for one in self.connections
                if isinstance(one, H11Protocol) and one.timeout_keep_alive_task is not None and not is_stranger(one)]
        if idle:
            _, longest = min(idle, key=lambda each: each[0])
            self.connections.discard(longest)
            longest.timeout_keep_alive_handler()
        return bool(idle)

    def _late(self) -> None:
        # h11_impl sets the cycle at the first request.
        if is_stranger(self) or getattr(self, "cycle", None) is None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().handle_websocket_upgrade(event)
        upgraded: Any = self.transport.get_protocol()  # uvicorn's, which has the connection from now on
        upgraded.uid, upgraded.since = self.uid, self.since
        if is_stranger(upgraded):
            self.loop.call_later(STRANGER_S, _end_stranger, upgraded)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            super().connection_lost(exc)


def _end_stranger(one: Any) -> None:
    if is_stranger(one):
        one.transport.abort()


def is_stranger(one: Any) -> bool:
    """Whether a connection is of another user, and has shown neither a session nor a token."""
    return one.uid not in (0, os.geteuid()) and SCOPE_KEY not in (getattr(one, "scope", None) or ())
