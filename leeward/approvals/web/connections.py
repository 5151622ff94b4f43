"""
Connections over TCP, which any user of the host can open: a bounded number at once, and silent ones are closed.

Runs in:   the operator's program that decides, on its event loop.
Leaves:    another user of the host who keeps MOST_CONNECTIONS open prevents the page from being loaded. The operator's
           socket isn't affected.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Connections at once, and seconds until the head of the first request has to be complete.
MOST_CONNECTIONS, HEAD_S = 256, 10.0


class BoundedConnection(H11Protocol):
    """HTTP. A connection beyond MOST_CONNECTIONS is closed before a byte of it is read."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= MOST_CONNECTIONS:
            transport.abort()
            return
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_S, self._late)

    def _late(self) -> None:
        if getattr(self, "cycle", None) is None:  # h11_impl sets it at the first request
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            super().connection_lost(exc)
