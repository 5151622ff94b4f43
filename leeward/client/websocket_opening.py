"""
websockets' client for an end that isn't trusted: a daemon's host, or a server in a sandbox.

Runs in:   a client's process, and `leeward serve`. It needs websockets, so it is imported where one is opened.
Against:   a redirection, which would take a token along; pings whose answers nobody reads, which would fill the memory;
           many small frames, which would hold up all others of a loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from leeward.base.paced_reading import PacedTransport

#: Frames that answer: to a ping, to the connection's end, and the end itself.
_LAST = 3


class PatientConnection(ClientConnection):
    """Answers no more than the last ping when the other end reads again (RFC 6455, 5.5.3)."""

    _answers, _is_answering = list[bytes](), False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(PacedTransport(transport, self._taken, self.loop))  # type: ignore[arg-type]  # as far as it is used

    def data_received(self, data: bytes) -> None:
        self.transport.received(data)  # type: ignore[attr-defined]  # by `connection_made`

    def _taken(self, data: bytes) -> None:
        self._is_answering = True
        try:
            super().data_received(data)
        finally:
            self._is_answering = False

    def send_data(self) -> None:
        if self._is_answering and self.paused:
            self._answers = [*self._answers, *self.protocol.data_to_send()][-_LAST:]
        else:
            super().send_data()

    def resume_writing(self) -> None:
        super().resume_writing()
        answers, self._answers = self._answers, []
        for each in answers:
            if each:
                self.transport.write(each)
            elif self.transport.can_write_eof():
                self.transport.write_eof()


class Opening(connect):
    """Goes where it is told to and nowhere else."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, create_connection=PatientConnection, **options)

    def process_redirect(self, exc: Exception) -> Exception:
        return exc
