"""
The client for asyncio.

Runs in:   anybody's program, in one event loop.

Theory of operation: one socket, one reader callback, any number of calls. A call puts
its frame into the output buffer and waits for a future; the reader gives each answer to
the future of its id. A call that is cancelled tells the daemon so, and its answer is
dropped when it comes. A connection that breaks fails every waiting call, and the next
call makes a new one. While calls wait, a beat every PATIENCE_S looks whether anything
was heard since the last one: if not, it asks for a sign of life, and at the next beat
the connection counts as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import time
from _socket import socket as Socket
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Unpack

from leeward.client.aio_session import Answer, AsyncSession
from leeward.client.conversation import Conversation, refusal
from leeward.client.link import CONNECT_S, PATIENCE_S, away, connect, receive
from leeward.client.options import Options, SessionOptions, fields_of, session_fields
from leeward.client.results import result_of
from leeward.client.slots import LARGE, Slots, bulk, slots_of
from leeward.errors import DaemonError, NoAnswer
from leeward.outcome import Result
from leeward.spec.paths import client_socket
from leeward.wire.frames import frame


class AsyncClient:
    """
    Runs code in the daemon's sandboxes; many jobs at once over one connection.

        async with leeward.AsyncClient() as client:
            results = await asyncio.gather(*(client.execute(code) for code in codes))

    Args:
        socket: the daemon's socket; by default LEEWARD_SOCKET, then the user's own.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = client_socket(socket)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def execute(self, code: str | bytes | None = None, *, deadline: float | None = None,
                      **options: Unpack[Options]) -> Result:
        """
        Run *code*, or *module*, and wait for its result; see Client.execute.

        Cancelling the task ends the job.
        """
        return result_of(*await self._call("execute", fields_of(code, options), deadline))

    @contextlib.asynccontextmanager
    async def session(self, **options: Unpack[SessionOptions]) -> AsyncIterator[AsyncSession]:
        """
        A process that keeps its state between jobs; see Client.session. It ends with this client's connection.
        """
        fields = session_fields(**options)
        session = await AsyncSession.open((await self._connected()).call, self.socket, fields)
        try:
            yield session
        finally:
            await session.close()

    async def ping(self, timeout: float = 5.0) -> float:
        """
        Seconds that the daemon took to answer.
        """
        start = time.monotonic()
        await self._call("ping", {}, timeout)
        return time.monotonic() - start

    async def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """
        Workers, jobs and layers, as `leeward status --json` prints them.
        """
        reply, _ = await self._call("status", {}, timeout)
        assert reply.ok is not None
        return reply.ok

    async def _call(self, op: str, fields: Mapping[str, Any], seconds: float | None) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connected()
                reply, descriptors = await connection.call(op, fields)
        except TimeoutError:
            raise NoAnswer(f"no answer from {self.socket!a} before the deadline") from None
        if reply.ok is None:
            raise refusal(reply)
        return reply, descriptors

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.broken():
                self._connection = _Connection(asyncio.get_running_loop(), await self._connect(), self.socket)
            return self._connection

    async def _connect(self) -> Socket:
        give_up = time.monotonic() + CONNECT_S
        while True:
            sock = connect(self.socket, wait=False)
            if sock is not None:
                return sock
            if time.monotonic() > give_up:
                raise away(self.socket, "nobody took the connection")
            await asyncio.sleep(0.01)  # a full backlog can't be waited on by poll; connect(2), EAGAIN

    async def close(self) -> None:
        """
        Close the connection; calls that wait fail, their jobs end. A later call makes a new one.
        """
        if self._connection is not None:
            self._connection.close(away(self.socket, "this client was closed"))
            self._connection = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()


class _Connection:
    """
    One connected socket in one event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: Socket, path: str) -> None:
        self._loop, self._socket, self._path = loop, sock, path
        self._conversation = Conversation()
        self._futures: dict[int, asyncio.Future[Answer]] = {}
        self._output = bytearray()
        self._error: DaemonError | None = None
        self._heard = self._asked = False
        self._beat: asyncio.TimerHandle | None = None
        self._slots: Slots | None = None
        self._asking: asyncio.Task[None] | None = None  # for an arena
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._readable)

    def broken(self) -> bool:
        """
        Whether calls must go over a new connection.
        """
        if self._error is None:
            self._readable()  # an end that came while nobody called shows here
        return self._error is not None

    async def call(self, op: str, fields: Mapping[str, Any]) -> Answer:
        if bulk(op, fields) < LARGE:
            return await self._call(op, fields, None)
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask_for_slots())
        await asyncio.shield(self._asking)  # which other calls wait for, too
        return await self._call(op, fields, self._slots)

    async def _ask_for_slots(self) -> None:
        """
        Ask for an arena; without one large requests go by the socket. What is wrong with the connection each call says.
        """
        try:
            reply, descriptors = await self._call("arena", {}, None)
            if reply.ok is not None:
                self._slots = slots_of(reply.ok, reply.arenas, descriptors)
        except DaemonError as error:
            self.close(error)

    async def _call(self, op: str, fields: Mapping[str, Any], slots: Slots | None) -> Answer:
        if self._error is not None:
            raise self._error
        slot = None
        if slots is None:
            number, data = self._conversation.request(op, fields)
        else:
            number, payload = self._conversation.payload(op, fields)
            slot = slots.put(payload)
            data = frame(payload) if slot is None else self._conversation.by_slot(number, slot, len(payload))
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._futures[number] = future
        self._send(data)
        if self._beat is None:
            self._beat = self._loop.call_later(PATIENCE_S, self._on_beat)
        try:
            return await future
        except asyncio.CancelledError:
            if number in self._futures:
                if op in ("execute", "session_open"):
                    self._send(self._conversation.request("cancel", {"target": number})[1])
            elif not future.cancelled() and future.exception() is None:
                _drop(future.result()[1])  # it came in the same turn; nobody will take it
            raise
        finally:
            self._futures.pop(number, None)
            if slots is not None and slot is not None:
                slots.free(slot)

    def _send(self, data: bytes) -> None:
        if not self._output and self._error is None:
            try:
                data = data[self._socket.send(data):]
            except BlockingIOError:
                pass
            except OSError:
                # The end of the connection, and maybe a refusal before it, is there to be read.
                return
            if data:
                self._loop.add_writer(self._socket.fileno(), self._writable)
        self._output += data

    def _writable(self) -> None:
        try:
            del self._output[:self._socket.send(self._output)]
        except BlockingIOError:
            return
        except OSError:
            self._output.clear()
        if not self._output:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            data, descriptors = receive(self._socket)
            answers = self._conversation.received(data, descriptors)
        except BlockingIOError:
            return
        except OSError:
            self.close(away(self._path, "it went away before it answered"))
            return
        except DaemonError as error:
            self.close(error)
            return
        self._heard = True
        for reply, owned in answers:
            future = self._futures.pop(reply.id, None)
            if future is None or future.done():
                _drop(owned)
            else:
                future.set_result((reply, owned))
        if not data:
            self.close(away(self._path, "it went away before it answered"))

    def _on_beat(self) -> None:
        self._beat = None
        if not self._futures:
            return
        if self._heard:
            self._heard = self._asked = False
        elif self._asked:
            self.close(NoAnswer(f"the daemon on {self._path!a} gives no sign of life"))
            return
        else:
            self._asked = True
            self._send(self._conversation.request("ping", {})[1])
        self._beat = self._loop.call_later(PATIENCE_S, self._on_beat)

    def close(self, error: DaemonError) -> None:
        """
        Fail what waits with *error*; the connection is over.
        """
        if self._error is not None:
            return
        self._error = error
        if self._beat is not None:
            self._beat.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self._slots is not None:
            self._slots.close()
        self._conversation.close()
        self._output.clear()
        for future in self._futures.values():
            if not future.done():
                future.set_exception(copy.copy(error))  # each raise adds its own traceback
        self._futures.clear()


def _drop(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
