"""
Servers in sandboxes on ports of the host, for asyncio.

Trust:     none in either end, whose bytes are passed on as they are. A sandbox can't begin a connection this way. On the
           host every user and every web page that a browser shows can connect to 127.0.0.1.
Bounds:    MOST connections at once. Further ones wait in the kernel's queue until one ends; then the one that was idle
           for longest is closed, if that was CROWDED_S.

Theory of operation. The daemon gives a socket for each connection, made in the sandbox's network and connected to the
server there. Where it gives none the connection is reset. Two tasks copy the bytes, one for each direction, as fast as
the slower end takes them. An end of one direction is passed on, and the other one goes on while it isn't idle for HALF_S.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.closing import AsyncClosing
from leeward.errors import BadReply, DaemonError, RequestRejected, SandboxOver

if TYPE_CHECKING:
    from leeward.client.aio_sandbox import AsyncSandbox

MOST, CROWDED_S, HALF_S = 64, 30.0, 60.0
#: Seconds until another connection is accepted when one couldn't be.
_PAUSE_S = 0.05
#: Bytes that are passed on at once.
_PIECE = 1 << 16


class AsyncPublished(AsyncClosing):
    """
    A server in a sandbox on a port of 127.0.0.1, by `AsyncSandbox.publish`; a context that closes it.

    Attributes:
        port: on the host; 0 where *listener* is a Unix socket.
        error: why the port was closed, unless `close` did that.
    """

    def __init__(self, sandbox: AsyncSandbox, inside: int, listener: socket.socket) -> None:
        self._sandbox, self._inside, self._listener = sandbox, inside, listener
        self.port: int = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]
        self.error: DaemonError | None = None
        self._passing: dict[_Passing, asyncio.Task[None]] = {}
        self._room = asyncio.Event()
        self._serving = asyncio.get_running_loop().create_task(self._serve())
        self._serving.add_done_callback(lambda _: listener.close())  # also where it is cancelled before it begins

    @classmethod
    async def open(cls, sandbox: AsyncSandbox, inside: int, port: int = 0) -> AsyncPublished:
        await sandbox.id()
        listener = listening(port)
        listener.setblocking(False)
        return cls(sandbox, inside, listener)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room(loop)
            try:
                here, _ = await loop.sock_accept(self._listener)
            except OSError:  # it has gone again, or no descriptor is left
                await asyncio.sleep(_PAUSE_S)
                continue
            passing = _Passing(loop, here)
            self._passing[passing] = task = loop.create_task(self._pass(passing))
            task.add_done_callback(partial(self._over, passing))

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        while len(self._passing) >= MOST:
            self._room.clear()
            oldest = min(self._passing, key=lambda each: each.last)
            try:
                async with asyncio.timeout_at(oldest.last + CROWDED_S):
                    await self._room.wait()
            except TimeoutError:
                if oldest.last + CROWDED_S <= loop.time() and oldest in self._passing:
                    self._passing[oldest].cancel()
                    await asyncio.wait([self._passing[oldest]])

    def _over(self, passing: _Passing, _task: object) -> None:
        passing.close()  # also where its task is cancelled before it begins
        self._passing.pop(passing, None)
        self._room.set()

    async def _pass(self, passing: _Passing) -> None:
        try:
            there = await connected(self._sandbox, self._inside)
            if there is not None:
                await passing.run(there)
        except (RequestRejected, SandboxOver) as error:
            self.error = error
            self._serving.cancel()
        except DaemonError:
            pass  # the next connection may find it better

    async def wait(self) -> None:
        """Wait until the port is closed; raises `error`, such as SandboxOver, if there is one."""
        await asyncio.wait([self._serving])
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Close the port, and the connections."""
        tasks = [self._serving, *self._passing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Passing:
    """One connection, from *here*; *last* is when bytes were passed on, by the loop's clock. Owns both sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, here: socket.socket) -> None:
        self._loop, self._sockets = loop, [here]
        self._ended = False
        self.last = loop.time()
        here.setblocking(False)

    async def run(self, there: socket.socket) -> None:
        """Pass on both directions until both have ended."""
        here, = self._sockets
        self._sockets.append(there)
        there.setblocking(False)
        copies = {self._loop.create_task(self._copy(*ends)) for ends in ((here, there), (there, here))}
        left: float | None = None
        try:
            while copies:
                done, copies = await asyncio.wait(copies, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
                    self.last = self._loop.time()
                left = self.last + HALF_S - self._loop.time()
                if left <= 0:
                    return
            self._ended = True
        except OSError:
            pass  # of an end that was reset: the other one is, too
        finally:
            for one in copies:
                one.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    async def _copy(self, source: socket.socket, to: socket.socket) -> None:
        while data := await self._loop.sock_recv(source, _PIECE):
            await self._loop.sock_sendall(to, data)
            self.last = self._loop.time()
        to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends; without the ends of both directions by a reset."""
        for each in self._sockets:
            if not self._ended:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


async def connected(sandbox: AsyncSandbox, port: int) -> socket.socket | None:
    """A socket that is connected to a server in *sandbox*; None if nobody listens there."""
    reply, descriptors = await sandbox._connections.call("sandbox_connect", {"sandbox": await sandbox._named(), "port": port})
    if bool(reply.ok and reply.ok.get("socket")) != bool(descriptors):
        for fd in descriptors:
            os.close(fd)
        raise BadReply("the daemon broke the protocol: not the socket that its answer says")
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def listening(port: int) -> socket.socket:
    """A listener on 127.0.0.1, on a free *port* if that is 0; RequestRejected if it can't be had."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=MOST)
    except (OSError, OverflowError) as error:
        raise RequestRejected(f"127.0.0.1:{port} can't be listened on: {error}") from None
