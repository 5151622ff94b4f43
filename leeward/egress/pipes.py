"""
Bytes between a sandbox and a server: read, counted, bounded, passed on.

Theory of operation. After SPLICED_FROM bytes a direction goes by splice(2) through a pipe, without a copy into this
process, and by callbacks: a task that is resumed for each piece costs more than the piece. While the pipe is empty the
source is watched for reading, otherwise the goal for writing. The loop keeps watching that socket from one turn to the
next, so a wait is one call of epoll_wait(2); a change to the other socket takes two calls more.
Bound:     one buffer of ROOM bytes in each direction, and one pipe of PIECE bytes; if no descriptors are left for it a
           direction goes on without. Bytes that a reader doesn't take wait at their sender.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

from leeward._native.splice import ENDED, GOAL_WAITS, PIECE, SOURCE_WAITS, Direction
from leeward.egress.faults import of_connection
from leeward.egress.tenancy import cancelled, refusal


class Splicing:
    """
    Passes bytes from *source* to *goal*, from `begin` to `end`. Owns the pipe; nothing else may watch the sockets, the
    caller's.

    At most *most* bytes pass. *counted* gets how many were taken and how many passed on in a turn, and has to raise when
    more were taken. `over` is done when all was passed on, or fails with either's OSError or *counted*'s exception.
    """

    def __init__(self, source: socket.socket, goal: socket.socket, most: int, counted: Callable[[int, int], None]) -> None:
        self._source, self._goal, self._counted = source, goal, counted
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # the user's bound on pipes is reached: the pipe keeps its size
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, PIECE)
        self._direction = Direction(source.fileno(), goal.fileno(), self._out, self._into, most)
        self._watches_goal: bool | None = None

    def begin(self) -> None:
        self._turn()

    def end(self) -> None:
        """Stop watching. May be called repeatedly."""
        self._forget()
        out, into, self._out, self._into = self._out, self._into, -1, -1
        for fd in (out, into):
            if fd >= 0:
                os.close(fd)

    # --- passing on -----------------------------------------------------------

    def _turn(self) -> None:
        if self.over.done():
            return
        try:
            self._pass_on()
        except Exception as error:  # `over` fails with it
            self._forget()
            self.over.set_exception(error)

    def _pass_on(self) -> None:
        way = self._direction
        took, passed = way.took, way.passed
        try:
            why = way.go_on()
        finally:
            self._counted(way.took - took, way.passed - passed)
        if why == ENDED:
            self._forget()
            self.over.set_result(None)
        else:  # where neither waits the socket that is watched is ready, so the loop continues here after others
            self._watch(goal=why == GOAL_WAITS or (why != SOURCE_WAITS and way.took > way.passed))

    def _watch(self, *, goal: bool) -> None:
        if goal is self._watches_goal:
            return
        self._forget()
        self._watches_goal = goal
        if goal:
            self._loop.add_writer(self._goal, self._turn)
        else:
            self._loop.add_reader(self._source, self._turn)

    def _forget(self) -> None:
        watched, self._watches_goal = self._watches_goal, None
        if watched is True:
            self._loop.remove_writer(self._goal)
        elif watched is False:
            self._loop.remove_reader(self._source)


#: Bytes that are held of one direction, at most.
ROOM = 64 << 10

#: Bytes that are received at a time where they are searched for values of secrets, so that others have their turn.
SEARCHED = 8 << 10

#: Bytes of a connection's direction after which a pipe is worth its two descriptors.
SPLICED_FROM = 512 << 10


class Pipe:
    """One end of a connection, which owns its socket, and how many bytes were received and sent so far."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket, self._loop = end, asyncio.get_running_loop()
        self._back = b""
        self._reset = False
        self.read = self.written = 0

    async def receive(self, most: int = ROOM) -> bytes:
        """Receive some bytes; b"" when the peer has closed its side, OSError when it has gone."""
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
        """Send all of *data*; OSError when the peer has gone."""
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
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset_at_end(self) -> None:
        """Make any close a reset, so that the peer sees an error."""
        self._reset = True

    def close(self, *, reset: bool = False) -> None:
        """Close the connection, by *reset* so that the peer sees an error. May be called repeatedly."""
        with suppress(OSError):
            if (reset or self._reset) and self._socket.fileno() >= 0:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def into(self, other: Pipe, most: int, what: str) -> None:
        """
        Pass all bytes of this direction *what* on to *other* until the peer closes its side, then close that of
        *other*.

        Raises NotAllowed if there are more than *most*, OSError if one of the two peers has gone.
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
        """Pass bytes on by splice(2), and leave *other* open; or pass nothing and return False: no descriptors are left."""
        def counted(took: int, passed: int) -> None:
            other.written += passed
            self._took(took, most, what)

        try:
            splicing = Splicing(self._socket, other._socket, most - self.read, counted)
        except OSError:
            return False
        try:
            splicing.begin()
            await splicing.over
        finally:
            splicing.end()
        return True


async def join(inner: Pipe, outer: Pipe, request: int, response: int, back: asyncio.Future[None] | None = None) -> None:
    """
    Pass bytes on in both directions until both have ended, or one fails, with at most *request* and *response* bytes.

    *back* passes on the server's bytes already; owned from now on. Raises NotAllowed and OSError as `Pipe.into`.
    """
    there = asyncio.ensure_future(inner.into(outer, request, "request"))
    back = back or asyncio.ensure_future(outer.into(inner, response, "response"))
    try:
        await asyncio.gather(there, back)
    finally:
        await cancelled(there, back)


#: Bytes that are encrypted in one go: those of a record.
_RECORD = 16384


class TlsPipe(Pipe):
    """A pipe over *inner*, which it owns, in TLS. *name* is of a host that is verified; None if the peer is a sandbox."""

    def __init__(self, inner: Pipe, context: ssl.SSLContext, name: str | None = None) -> None:
        self._inner = inner
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_side=name is None, server_hostname=name)
        self._sending = asyncio.Lock()
        self._back = b""
        self.read = self.written = 0

    async def shake_hands(self, seconds: float) -> None:
        """Make the handshake, within *seconds*; NotAllowed if it or the certificate fails, OSError if the peer has gone."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        self._tls.do_handshake()
                        return
                    except ssl.SSLWantReadError:
                        await self._flush()
                        await self._more()
                    finally:
                        await self._flush()
        except ssl.SSLError as error:
            raise refusal(of_connection(error), failed=True, status=502) from None
        except TimeoutError:
            raise refusal(f"TLS: no handshake within {seconds:g} s", failed=True, status=504) from None

    async def _more(self) -> None:
        data = await self._inner.receive(ROOM)
        if data:
            self._came.write(data)
        else:
            self._came.write_eof()

    async def _flush(self) -> None:
        if self._goes.pending:
            async with self._sending:
                await self._inner.send(self._goes.read())

    async def receive(self, most: int = ROOM) -> bytes:
        if self._back:
            data, self._back = self._back[:most], self._back[most:]
            return data
        while True:
            try:
                data = self._tls.read(most)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
                continue
            except ssl.SSLZeroReturnError:
                return b""
            self.read += len(data)
            return data

    async def send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        async with self._sending:
            for at in range(0, len(view), _RECORD):
                self._tls.write(view[at:at + _RECORD])
                await self._inner.send(self._goes.read())
        self.written += len(view)

    @property
    def is_quiet(self) -> bool:
        return not (self._back or self._came.pending or self._tls.pending()) and self._inner.is_quiet

    def finish(self) -> None:
        self._part()
        self._inner.finish()

    def reset_at_end(self) -> None:
        self._inner.reset_at_end()

    def close(self, *, reset: bool = False) -> None:
        if not reset:
            self._part()
        self._inner.close(reset=reset)

    def _part(self) -> None:
        """Send TLS's closing message, if the socket has room for it."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._inner.push(self._goes.read())

    async def into(self, other: Pipe, most: int, what: str) -> None:
        while data := await self.receive():
            if self.read > most:
                raise refusal(f"{what} too large: more than {most} bytes")
            await other.send(data)
        other.finish()
