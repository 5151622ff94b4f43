"""
One connection of the asyncio client, in one event loop.

Theory of operation: one socket, one reader callback, any number of calls. A call puts its frame into the output buffer
and waits for a future, which the reader sets by the reply's id. A call that is cancelled sends a `cancel` to the
daemon, and its reply is dropped when it comes. A connection that breaks fails every waiting call. While calls wait, a
timer runs every PATIENCE_S: if nothing was received since its last run it sends a ping, and if nothing was received
until the next run either, the connection counts as dead. The gate (throttle.py) bounds the number of calls in flight.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from _socket import socket as Socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.client.connecting import PATIENCE_S, away
from leeward.client.connection import receive
from leeward.client.conversation import Conversation, refusal
from leeward.client.slots import LARGE, Slots, bulk, slots_of
from leeward.client.throttle import Gate
from leeward.errors import Busy, DaemonError, NoAnswer, QueueTimeout, quoted
from leeward.wire.frames import frame

if TYPE_CHECKING:
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer

#: The bounds assumed for a daemon that is too old to send them: requests of one connection, workers, and jobs at once.
_DEFAULT_CAPS = 256, 4, 4

#: Requests that wait in the daemon: if their task is cancelled, a `cancel` is sent.
_TAKEN_BACK = frozenset({"execute", "session_open", "sandbox_open", "process_run", "process_read", "process_wait",
                         "sandbox_execute"})


class AsyncConnection:
    """One connected socket in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: Socket, path: str, adapts: bool = True) -> None:
        self._loop, self._socket, self._path = loop, sock, path
        self._conversation = Conversation()
        self._futures: dict[int, tuple[asyncio.Future[Answer], int]] = {}  # with the request's offset in the stream
        self._output = bytearray()
        self._handed = 0  # bytes that the kernel has taken
        self._ended: Callable[[], None] | None = None  # called when the last answer came, or the connection ended
        self._error: DaemonError | None = None
        self._heard = self._asked = False
        self._beat: asyncio.TimerHandle | None = None
        self._slots: Slots | None = None
        self._asking: asyncio.Task[None] | None = None  # the task that asks for an arena
        self._learning: asyncio.Task[None] | None = None  # the task that asks for the daemon's bounds
        self.gate = Gate(adapts)
        self.seats: dict[tuple[str, int, bool], int] = {}  # aio_free_connections.py fills it
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._readable)

    def broken(self) -> bool:
        """Whether calls must go over a new connection."""
        if self._error is None:
            self._readable()  # notices that the connection has ended between calls
        return self._error is not None

    async def admitted(self, op: str, fields: Mapping[str, Any], first: bool, sent: Callable[[], None],
                       functions: AwaitedBesideJob | None = None) -> Answer:
        """
        Wait until the gate admits a request, call *sent*, and make the call as `call` does; a refusal is raised.
        *first* admits it before others, since the daemon has refused it as busy.
        """
        await self._enter(job=True, first=first)
        refused = False
        try:
            sent()
            reply, descriptors = await self.call(op, fields, functions)
            if reply.ok is None:
                error = refusal(reply)
                refused = isinstance(error, (Busy, QueueTimeout)) and op == "execute"
                raise error
            if op == "execute":
                self.gate.served(time.monotonic())
            return reply, descriptors
        finally:
            self.gate.release(job=True, refused=refused)

    async def turn(self, op: str, fields: Mapping[str, Any], functions: AwaitedBesideJob | None = None) -> Answer:
        """As `call`, for a job of a session: it waits for the connection's bound alone, and not for a worker."""
        await self._enter(job=False, first=False)
        try:
            return await self.call(op, fields, functions)
        finally:
            self.gate.release(job=False)

    async def _enter(self, *, job: bool, first: bool) -> None:
        if self._error is not None:
            raise self._failure(self._error, self._handed)
        if self.gate.needs_bounds:
            self._learned()
        await self.gate.acquire(job=job, first=first)

    async def has_room(self) -> bool:
        """Whether it is to take one more request that may wait long. Half of the daemon's bound is left for jobs."""
        if len(self._futures) >= self.gate.half and not self.gate.known:
            await asyncio.shield(self._learned())
        return len(self._futures) < self.gate.half

    def _learned(self) -> asyncio.Task[None]:
        if self._learning is None:
            self._learning = self._loop.create_task(self._learn())
        return self._learning

    async def _learn(self) -> None:
        try:
            reply, _ = await self._call("ping", {}, None)
        except DaemonError:
            return  # the connection has ended
        caps = (reply.ok or {}).get("caps")
        sent = [caps.get(name) if isinstance(caps, dict) else None for name in ("requests", "workers", "jobs")]
        most, workers, jobs = (value if type(value) is int and 0 < value < 1 << 31 else default
                         for value, default in zip(sent, _DEFAULT_CAPS, strict=True))
        self.gate.learn(most, workers, jobs)

    async def call(self, op: str, fields: Mapping[str, Any], functions: AwaitedBesideJob | None = None) -> Answer:
        """Send a request, and return the reply, which may be a refusal. Until then the request's job can call *functions*."""
        if functions is None:
            return await self._sent(op, fields, None)
        try:
            return await self._sent(op, fields, partial(functions.begin, self.call))
        finally:
            functions.end()

    async def _sent(self, op: str, fields: Mapping[str, Any], begin: Callable[[int], None] | None) -> Answer:
        if bulk(op, fields) < LARGE:
            return await self._call(op, fields, None, begin)
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask_for_slots())
        await asyncio.shield(self._asking)  # other calls wait for it too
        return await self._call(op, fields, self._slots, begin)

    async def _ask_for_slots(self) -> None:
        """Ask for an arena; without one large requests go over the socket. If the connection fails, so do all its calls."""
        try:
            reply, descriptors = await self._call("arena", {}, None)
            if reply.ok is not None:
                self._slots = slots_of(reply.ok, reply.arenas, descriptors)
        except DaemonError as error:
            self.close(error)

    async def _call(self, op: str, fields: Mapping[str, Any], slots: Slots | None,
                    begin: Callable[[int], None] | None = None) -> Answer:
        if self._error is not None:
            raise self._failure(self._error, self._handed)
        slot = None
        if slots is None:
            number, data = self._conversation.request(op, fields)
        else:
            number, payload = self._conversation.payload(op, fields)
            slot = slots.put(payload)
            data = frame(payload) if slot is None else self._conversation.by_slot(number, slot, len(payload))
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._futures[number] = future, self._handed + len(self._output)
        self._send(data, soon=len(self._futures) > 1)  # one of several may wait for the others
        if begin is not None:
            begin(number)
        if self._beat is None:
            self._beat = self._loop.call_later(PATIENCE_S, self._on_beat)
        try:
            return await future
        except asyncio.CancelledError:
            if number in self._futures:
                if op in _TAKEN_BACK:
                    self._send(self._conversation.request("cancel", {"target": number})[1])
            elif not future.cancelled() and future.exception() is None:
                _drop(future.result()[1])  # the reply came in the same iteration of the loop as the cancellation
            raise
        finally:
            self._futures.pop(number, None)
            if self._ended is not None:
                self._end_if_answered()
            if slots is not None and slot is not None:
                slots.free(slot)

    def _send(self, data: bytes, *, soon: bool = False) -> None:
        """Send *data* now, or *soon*, with what else is sent in this iteration of the loop."""
        if soon and not self._output and self._error is None:
            self._loop.call_soon(self._flush)
        elif not self._output and self._error is None:
            try:
                sent = self._socket.send(data)
                self._handed += sent
                data = data[sent:]
            except BlockingIOError:
                pass
            except OSError:
                self._cut_off()
                return
            if data:
                self._loop.add_writer(self._socket.fileno(), self._writable)
        self._output += data

    def _flush(self) -> None:
        if self._output and self._error is None:
            self._loop.add_writer(self._socket.fileno(), self._writable)
            self._writable()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._output)
            self._handed += sent
            del self._output[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._cut_off()
            return
        if not self._output:
            self._loop.remove_writer(self._socket.fileno())

    def _cut_off(self) -> None:
        """The daemon reads no more: take its refusal, if it sent one; else fail the requests that it hasn't received."""
        if self._output:
            self._output.clear()
            self._loop.remove_writer(self._socket.fileno())
        self._readable()
        if self._error is not None:
            return
        for future, start in self._futures.values():
            if start >= self._handed and not future.done():
                future.set_exception(away(self._path, "it closed the connection"))

    def _readable(self) -> None:
        try:
            data, descriptors = receive(self._socket)
            answers = self._conversation.received(data, descriptors)
        except BlockingIOError:
            return
        except OSError:
            self.close(away(self._path, "it went away before it answered", may_have_run=True))
            return
        except DaemonError as error:
            self.close(error)
            return
        self._heard = True
        for reply, owned in answers:
            future, _ = self._futures.pop(reply.id, (None, 0))
            if future is None or future.done():
                _drop(owned)
            else:
                future.set_result((reply, owned))
        if not data:
            self.close(away(self._path, "it went away before it answered", may_have_run=True))

    def _on_beat(self) -> None:
        self._beat = None
        if not self._futures:
            return
        if self._heard:
            self._heard = self._asked = False
        elif self._asked:
            self.close(NoAnswer(f"the daemon on {quoted(self._path)} doesn't answer pings"))
            return
        else:
            self._asked = True
            self._send(self._conversation.request("ping", {})[1])
        self._beat = self._loop.call_later(PATIENCE_S, self._on_beat)

    def close(self, error: DaemonError) -> None:
        """Close the connection; waiting calls fail with *error*."""
        if self._error is not None:
            return
        self._error = error
        if self._beat is not None:
            self._beat.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self._slots is not None:
            self._slots.close()
        self._conversation.close()
        self._output.clear()
        if not self._loop.is_closed():  # otherwise no task waits
            for future, start in self._futures.values():
                if not future.done():
                    future.set_exception(self._failure(error, start))
            self.gate.close(partial(self._failure, error, self._handed))
        self._futures.clear()
        if self._ended is not None:
            self._ended()

    def _failure(self, error: DaemonError, start: int) -> DaemonError:
        """A copy of *error* for a request at the offset *start* of the stream. A copy, since each raise adds a traceback."""
        failure = copy.copy(error)
        failure.may_have_run = error.may_have_run and self._handed > start
        return failure

    def end_when_answered(self, ended: Callable[[], None]) -> None:
        """Close the connection when no call waits any more, and call *ended* then."""
        self._ended = ended
        if self._error is not None:
            ended()
        else:
            self._end_if_answered()

    def _end_if_answered(self) -> None:
        if not self._futures:
            self.close(away(self._path, "it is shutting down"))


def _drop(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
