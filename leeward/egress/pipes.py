"""
Bytes between a sandbox and a server: read, counted, bounded, passed on.

Runs in:   the broker, on its loop.
Bound:     one buffer of ROOM bytes in each direction. Bytes that a reader doesn't take wait at their sender. After
           SPLICED_FROM bytes a direction uses splice(2) through a pipe of at most PIPED bytes, without a copy into this
           process; where no descriptors are left for the pipe it goes on as before.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from leeward.egress.splicing import Splicing
from leeward.egress.tenancy import refusal

#: Bytes that are held of one direction, at most.
ROOM = 64 << 10

#: Bytes that are received at a time where they are searched for values of secrets, so that others have their turn.
SEARCHED = 8 << 10

#: Bytes of a connection's direction after which a pipe is worth its two descriptors.
SPLICED_FROM = 512 << 10


class Pipe:
    """
    One end of a connection, which owns its socket.

    Attributes:
        read, written: how many bytes were received and sent so far.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket, self._loop = end, asyncio.get_running_loop()
        self._back = b""
        self._reset = False
        self.read = self.written = 0

    async def receive(self, most: int = ROOM) -> bytes:
        """
        Receive some bytes; b"" when the peer has closed its side.

        Raises:
            OSError: the peer has gone.
        """
        if self._back:
            data, self._back = self._back[:most], self._back[most:]
            return data
        data = await self._loop.sock_recv(self._socket, most)
        self.read += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        """Put back *data*, which `receive` then returns before further bytes."""
        self._back = data + self._back

    async def send(self, data: bytes | memoryview) -> None:
        """
        Send all of *data*.

        Raises:
            OSError: the peer has gone.
        """
        if data:
            await self._loop.sock_sendall(self._socket, data)
            self.written += len(data)

    def push(self, data: bytes) -> None:
        """Send as much of *data* as the socket has room for, without waiting. Errors are ignored."""
        with suppress(OSError):
            self._socket.send(data, socket.MSG_NOSIGNAL)

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open, and has no unread bytes."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._back
        except OSError:
            pass
        return False

    def finish(self) -> None:
        """Shut down the sending side."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset_at_end(self) -> None:
        """Make any close a reset, so that the peer sees an error."""
        self._reset = True

    def close(self, *, reset: bool = False) -> None:
        """
        Close the connection. May be called repeatedly.

        Args:
            reset: close by a reset, so that the peer sees an error.
        """
        with suppress(OSError):
            if (reset or self._reset) and self._socket.fileno() >= 0:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def into(self, other: Pipe, most: int, what: str) -> None:
        """
        Pass all bytes on to *other* until the peer closes its side, then close that side of *other*.

        Args:
            most: bytes that may be passed on.
            what: the name of the direction, for the error.

        Raises:
            NotAllowed: there are more than *most* bytes.
            OSError: one of the two peers has gone.
        """
        if self._back:
            data, self._back = self._back, b""
            await other.send(data)
        buffer = bytearray(ROOM)
        view = memoryview(buffer)
        start: int | None = self.read
        while True:
            if start is not None and self.read - start > SPLICED_FROM and type(other) is Pipe:
                if await self._spliced_into(other, most, what):
                    break
                start = None
            count = await self._loop.sock_recv_into(self._socket, buffer)
            if not count:
                break
            self._took(count, most, what)
            await other.send(view[:count])
            await asyncio.sleep(0)  # if both peers are fast neither call waits: let other tasks run
        other.finish()

    def _took(self, count: int, most: int, what: str) -> None:
        self.read += count
        if self.read > most:
            raise refusal(f"{what} too large: more than {most} bytes")

    async def _spliced_into(self, other: Pipe, most: int, what: str) -> bool:
        """
        Pass bytes on by splice(2), as `into` does, but leave *other* open at the end.

        Returns:
            False if there are no descriptors for it; then nothing was passed on.
        """
        try:
            splicing = Splicing(self._socket, other._socket, lambda count: self._took(count, most, what), other._passed)
        except OSError:
            return False
        try:
            splicing.begin()
            await splicing.over
        finally:
            splicing.end()
        return True

    def _passed(self, count: int) -> None:
        self.written += count


async def join(inner: Pipe, outer: Pipe, request: int, response: int, back: asyncio.Future[None] | None = None) -> None:
    """
    Pass bytes on in both directions until both have ended, or one fails.

    Args:
        inner: the connection of the sandbox.
        outer: the connection to the server.
        request, response: bytes from and to the sandbox, at most.
        back: passes on the server's bytes already; owned from now on.

    Raises:
        NotAllowed: a direction has more bytes than that.
        OSError: a peer has gone.
    """
    there = asyncio.ensure_future(inner.into(outer, request, "request"))
    back = back or asyncio.ensure_future(outer.into(inner, response, "response"))
    try:
        await asyncio.gather(there, back)
    finally:
        for task in (there, back):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
