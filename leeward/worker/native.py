"""
The daemon's event loop by the shim: by io_uring, or by epoll where the kernel refuses that.

Runs in:   the daemon.

It does what `Reactor` does, whose timers and turn it has. And a connection's bytes come with the turn, and a short
job may go the short way: express.py.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from leeward._native import loop as native
from leeward.errors import KernelRefusal, Unsupported
from leeward.worker.express import Express
from leeward.worker.reactor import Reactor
from leeward.worker.stream import Begun, Receiver, Stream


def _first(event: Any) -> bool:
    """
    Is it of what goes the short way, and told before all else?
    """
    return bool(native.STARTED == event.kind or event.session)


class NativeReactor(Reactor):
    """
    The same by the shim.

    Args:
        io: "uring", "socket", or "auto" for the first of them that the kernel allows.
        express: whether short jobs go the short way.

    Raises:
        Unsupported: "uring" was asked for, and can't be had.
    """

    def __init__(self, io: str, *, express: bool = True) -> None:
        self._io = io
        super().__init__()
        self._streams: dict[int, NativeStream] = {}
        self._listeners: dict[int, tuple[Callable[[socket.socket], None], Callable[[OSError], None]]] = {}
        self._late: dict[int, Callable[[socket.socket], None]] = {}  # of listeners that were forgotten
        self._flying: dict[int, tuple[NativeStream, memoryview]] = {}  # by the stream's number
        self._numbers = itertools.count(1)
        self.express = Express(self._loop) if express else None

    @property
    def transport(self) -> str:
        return "uring" if self._uring else "socket"

    def change(self, fd: int, events: int) -> None:
        self._loop.change(fd, events)

    def forget(self, fd: int) -> None:
        listener = self._listeners.pop(fd, None)
        if listener is not None:
            self._late[fd] = listener[0]
        if listener is not None or self._callbacks.pop(fd, None) is not None:
            self._loop.forget(fd)

    def accept(self, listener: socket.socket, met: Callable[[socket.socket], None],
               failed: Callable[[OSError], None]) -> None:
        self._loop.accept(listener.fileno())
        self._listeners[listener.fileno()] = met, failed

    def stream(self, sock: socket.socket, receiver: Receiver) -> Stream:
        number = next(self._numbers)
        self._loop.stream(sock.fileno(), number)
        made = self._streams[sock.fileno()] = NativeStream(self, self._loop, sock.fileno(), number, receiver)
        return made

    def close(self) -> None:
        self._loop.close()
        self._flying.clear()

    # --- the way to the kernel ------------------------------------------------

    def _open(self) -> None:
        self._uring = self._io != "socket"
        try:
            self._loop = native.Loop(native.IO_URING if self._uring else native.EPOLL)
        except KernelRefusal as refusal:
            if self._io != "auto":
                raise Unsupported("io_uring", have=str(refusal), cure="leeward daemon run --io=socket",
                                  need="Linux 5.19, which allows it to this process, and a build with liburing",
                                  ) from refusal
            self._uring, self.refused = False, str(refusal)
            self._loop = native.Loop(native.EPOLL)

    def _register(self, fd: int, events: int) -> None:
        self._loop.watch(fd, events)

    def _serve(self, patience: float) -> None:
        count = self._loop.turn(-1 if patience < 0 else int(patience * 1e9))
        self._turns += 1
        if not count:
            return
        events = self._loop.events[0:count]
        # First what has begun: until its owners know, they might give its runner to somebody else. Of a session's
        # runner a turn may tell several times, and in order.
        for receiver, event in [(self._streams[event.fd].receiver, event) for event in events if _first(event)]:
            self._went(receiver, event)
        rest = [event for event in events if not _first(event)]
        if rest and self.express is not None:
            self.express.settle()
        self._others(rest)

    def _went(self, receiver: Receiver, event: Any) -> None:
        assert self.express is not None
        if native.STARTED == event.kind:
            self.express.begun(receiver, Begun(event.id, native.data_of(event, event.size), event.number,
                                               event.session, event.at, event.value))
        else:
            self.express.done(event.number, event.at, event.cpu, event.peak)

    def _others(self, events: Sequence[Any]) -> None:
        for event in events:
            kind = event.kind
            if native.READY == kind:
                self._call(event.fd, event.value)
            elif native.DATA == kind:
                self._received(event.fd, event.value, event)
            elif native.DONE == kind and self.express is not None:
                self.express.done(event.number, event.at, event.cpu, event.peak)
            elif native.HANDED == kind and self.express is not None:
                self.express.handed(event.number, native.data_of(event, event.value))
            elif native.ACCEPTED == kind:
                self._accepted(event.fd, event.value)
            elif native.ROOM == kind:
                self._room(event.fd)
            elif native.SENT == kind:
                self._sent(event.number, event.value)

    def _stream_before(self, fd: int) -> NativeStream | None:
        """
        The stream of *fd*, if it was there when the turn began.
        """
        stream = self._streams.get(fd)
        return stream if stream is not None and stream.since < self._turns else None

    def _received(self, fd: int, size: int, event: Any) -> None:
        stream = self._stream_before(fd)
        if stream is None:
            return
        stream.plain(False)  # who was served earlier in this turn may have said otherwise
        if size < 0:
            stream.receiver.failed(-size)
        else:
            stream.receiver.received(native.data_of(event, size) if size else b"")

    def _room(self, fd: int) -> None:
        stream = self._stream_before(fd)
        if stream is not None:
            stream.receiver.room()

    def _sent(self, number: int, count: int) -> None:
        stream, _ = self._flying.pop(number)
        stream.receiver.sent(count)

    def _accepted(self, listener: int, result: int) -> None:
        met, failed = self._listeners.get(listener, (self._late.get(listener), None))
        if result < 0:
            if failed is not None:
                del self._listeners[listener]
                failed(OSError(-result, os.strerror(-result)))
            return
        # Who was accepted before the listener was forgotten waits for an answer as everybody else.
        sock = socket.socket(fileno=result)
        if met is None:
            sock.close()
        else:
            met(sock)


class NativeStream:
    """
    A connection whose bytes the shim moves.

    Attributes:
        since: the turn in which it was made.
        plainly: whether the shim was told that it is plain.
    """

    __slots__ = ("_loop", "_number", "_reactor", "fd", "plainly", "receiver", "since")

    def __init__(self, reactor: NativeReactor, loop: native.Loop, fd: int, number: int, receiver: Receiver) -> None:
        self._reactor, self._loop, self._number = reactor, loop, number
        self.fd, self.receiver = fd, receiver
        self.since = reactor._turns
        self.plainly = False

    def read(self, on: bool) -> None:
        self._loop.read(self.fd, on)

    def plain(self, on: bool) -> None:
        if on != self.plainly:
            self.plainly = on
            self._loop.plain(self.fd, on)

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        sent = self._loop.send(self.fd, data, fds)
        if sent is None:
            self._reactor._flying[self._number] = self, data
        return sent

    @property
    def backlog(self) -> int:
        return self._loop.backlog(self.fd)

    def close(self) -> None:
        del self._reactor._streams[self.fd]
        self._loop.forget(self.fd)


def reactor_for(io: str, *, express: bool) -> Reactor:
    """
    The reactor that the switches ask for; the reference where they ask for nothing of the shim's.
    """
    return Reactor() if "socket" == io and not express else NativeReactor(io, express=express)
