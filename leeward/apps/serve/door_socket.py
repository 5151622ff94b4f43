"""uvicorn's WebSocket, where a client could fill its memory or the log, keep it from ending, or hold up all others."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from leeward.base.paced_reading import PacedTransport

#: Frames of a message, at most.
MOST_PIECES = 1 << 12


class DoorSocket(WebSocketsSansIOProtocol):
    _pongs = b""  # that wait until the client reads

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(PacedTransport(transport, self._taken, self.loop))  # type: ignore[arg-type]  # as far as it is used

    async def send(self, message: Any) -> None:
        if self.transport.is_closing():  # its class would log that it wasn't opened
            self.handshake_complete = True
            raise ClientDisconnected
        await super().send(message)

    def send_receive_event_to_app(self) -> None:
        try:
            is_text = self.curr_msg_data_type == "text" and not self.close_sent
            b"".join(self.frames if is_text else ()).decode()
        except UnicodeDecodeError:  # its class would log each, and so any client could fill the log
            self.conn.send_close(1007)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) < MOST_PIECES:
            super().handle_cont(event)
        elif not self.close_sent:  # empty ones end at no bound of bytes
            self.conn.send_close(1009)
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        pongs = b"".join(self.conn.data_to_send())
        if self.transport.is_closing():
            return
        if self.writable.is_set():
            self.transport.write(pongs)
        else:
            self._pongs = pongs or self._pongs  # the last answer stands for all before it (RFC 6455, 5.5.3)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self.transport.received(data)  # type: ignore[attr-defined]  # by `connection_made`
        else:
            self._taken(data)

    def _taken(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (AssertionError, InvalidState):  # what is no text or frame, before it is open or beside its end
            self.transport.abort()
        if not self.handshake_initiated:  # it reads no request in the head, and would wait for more for ever
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pongs:
            self.transport.write(self._pongs)
            self._pongs = b""

    def eof_received(self) -> None:
        self.transport.close()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except AssertionError:  # it answers a client that has ended its side, and the others would stay
            self.transport.abort()
