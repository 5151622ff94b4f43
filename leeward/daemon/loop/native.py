"""
The daemon's event loop in the shim, over io_uring, or over epoll where the kernel refuses io_uring.

`NativeReactor` does the same as `Reactor`, and inherits its timers and its turn. In addition a turn delivers
connections' bytes, and a short job may take the fast path (fast_path.py).
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from leeward._native import loop as native
from leeward.daemon.loop import closing
from leeward.daemon.loop.fast_path import FastPath
from leeward.daemon.loop.reactor import JobStart, Reactor
from leeward.errors import KernelRefusal, Unsupported

if TYPE_CHECKING:
    from leeward.daemon.serving.connection import Connection

#: Kinds of events, as globals because they are looked up for each event.
_STARTED, _READY, _DATA, _DONE = native.STARTED, native.READY, native.DATA, native.DONE


class NativeReactor(Reactor):
    """A `Reactor` in the shim. *io*: "uring" (Unsupported if the kernel doesn't allow it), "socket", or "auto"."""

    def __init__(self, io: str, *, fast_path: bool = True) -> None:
        self._io = io
        super().__init__()
        self._streams: dict[int, NativeStream] = {}
        self._listeners: dict[int, tuple[Callable[[socket.socket], None], Callable[[OSError], None]]] = {}
        self._late: dict[int, Callable[[socket.socket], None]] = {}  # of listeners that were forgotten
        self._flying: dict[int, tuple[NativeStream, memoryview]] = {}  # by the stream's number
        self._numbers = itertools.count(1)
        self.fast_path = FastPath(self._loop, self.barrier) if fast_path else None

    @property
    def transport(self) -> str:
        return "uring" if self._uring else "socket"

    def forget(self, fd: int) -> None:
        listener = self._listeners.pop(fd, None)
        if listener is not None:
            self._late[fd] = listener[0]
            self._loop.forget(fd)
        else:
            super().forget(fd)

    def watches(self, fd: int) -> bool:
        return fd in self._callbacks or fd in self._listeners or fd in self._streams

    def accept(self, listener: socket.socket, met: Callable[[socket.socket], None],
               failed: Callable[[OSError], None]) -> None:
        self._loop.accept(listener.fileno())
        self._listeners[listener.fileno()] = met, failed

    def stream(self, sock: socket.socket, receiver: Connection) -> NativeStream:
        number = next(self._numbers)
        self._loop.stream(sock.fileno(), number, guarded=closing.guarded(sock))
        made = self._streams[sock.fileno()] = NativeStream(self, self._loop, sock.fileno(), number, receiver)
        return made

    def close(self) -> None:
        self._loop.close()
        self._flying.clear()

    def pulse(self) -> tuple[int, float]:
        return self._loop.pulse()

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

    def _modify(self, fd: int, events: int) -> None:
        self._loop.change(fd, events)

    def _unregister(self, fd: int) -> None:
        self._loop.forget(fd)

    def _serve(self, patience: float) -> None:
        count = self._loop.turn(-1 if patience < 0 else int(patience * 1e9))
        self.turns += 1
        if not count:
            return
        # Started jobs are reported first: a holder that doesn't know of the start might give the runner to another job.
        # A session's runner may be reported several times in a turn, in order.
        first: list[tuple[Connection, Any]] = []
        rest: list[Any] = []
        events = self._loop.events
        for number in range(count):
            event = events[number]
            if event.kind == _STARTED or event.session:
                first.append((self._streams[event.fd].receiver, event))
            else:
                rest.append(event)
        for receiver, event in first:
            self.barrier.call(self._went, receiver, event)
        if rest and self.fast_path is not None and self.fast_path.held:
            self.fast_path.flush()
        for event in rest:
            self.barrier.call(self._other, event)

    def _went(self, receiver: Connection, event: Any) -> None:
        assert self.fast_path is not None
        if event.kind == _STARTED:
            self.fast_path.job_started(receiver, JobStart(event.id, native.data_of(event, event.size), event.number,
                                                          event.session, event.at, event.value))
        else:
            self.fast_path.done(event.number, event.at, event.cpu, event.peak)

    def _other(self, event: Any) -> None:
        kind = event.kind
        if kind == _READY:
            self._call(event.fd, event.value)
        elif kind == _DATA:
            self._received(event.fd, event.value, event)
        elif kind == _DONE and self.fast_path is not None:
            self.fast_path.done(event.number, event.at, event.cpu, event.peak)
        elif kind == native.HANDED and self.fast_path is not None:
            self.fast_path.handed(event.number, native.data_of(event, event.value))
        elif kind == native.ACCEPTED:
            self._accepted(event.fd, event.value)
        elif kind == native.ROOM and (stream := self._stream_before(event.fd)) is not None:
            self.barrier.call(stream.receiver.room)
        elif kind == native.REFUSED and (stream := self._stream_before(event.fd)) is not None:
            self.barrier.call(stream.receiver.refused, event.value)
        elif kind == native.SENT:
            self.barrier.call(self._flying.pop(event.number)[0].receiver.sent, event.value)
        elif kind == native.TRANSPORT:
            self._uring, self.refused = False, str(KernelRefusal("io_uring_enter", "the loop", -event.value))
            self.left_ring(self.refused)

    def _stream_before(self, fd: int) -> NativeStream | None:
        """The stream of *fd*, if it existed when the turn began; otherwise None."""
        stream = self._streams.get(fd)
        return stream if stream is not None and stream.since < self.turns else None

    def _received(self, fd: int, size: int, event: Any) -> None:
        stream = self._stream_before(fd)
        if stream is None:
            return
        stream.allow_fast_path(False)  # a callback earlier in this turn may have changed it
        if size < 0:
            self.barrier.call(stream.receiver.failed, -size)
        else:
            self.barrier.call(stream.receiver.received, native.data_of(event, size) if size else b"")

    def _accepted(self, listener: int, result: int) -> None:
        met, failed = self._listeners.get(listener, (self._late.get(listener), None))
        if result < 0:
            if failed is not None:
                del self._listeners[listener]
                self.barrier.call(failed, OSError(-result, os.strerror(-result)))
            return
        # Connections that were accepted before the listener was forgotten are served as all others.
        sock = socket.socket(fileno=result)
        if met is None:
            self.closer.close(sock)
        else:
            self._meet(met, sock)


class NativeStream:
    """A connection whose bytes the shim moves, made in the turn *since*."""

    __slots__ = ("_loop", "_number", "_reactor", "fast_path_allowed", "fd", "receiver", "since")

    def __init__(self, reactor: NativeReactor, loop: native.Loop, fd: int, number: int, receiver: Connection) -> None:
        self._reactor, self._loop, self._number = reactor, loop, number
        self.fd, self.receiver = fd, receiver
        self.since = reactor.turns
        self.fast_path_allowed = False

    def read(self, on: bool) -> None:
        """Read input, or stop reading. Bytes that are being received may still arrive."""
        self._loop.read(self.fd, on)

    def allow_fast_path(self, on: bool) -> None:
        """Set whether nothing of this connection waits, so that a whole request may take the fast path."""
        if on != self.fast_path_allowed:
            self.fast_path_allowed = on
            self._loop.fast_path(self.fd, on)

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        """
        Send *data* and *fds*. Returns how many bytes were taken; None if *data* must stay unchanged until `sent` is
        called. BlockingIOError if there is no room until `room` is called; else OSError if the stream is broken.
        """
        sent = self._loop.send(self.fd, data, fds)
        if sent is None:
            self._reactor._flying[self._number] = self, data
        return sent

    @property
    def backlog(self) -> int:
        """The number of bytes of the fast path's answers that the kernel hasn't taken yet."""
        return self._loop.backlog(self.fd)

    def close(self) -> None:
        """End the stream: the receiver is called no more, except its `sent`. The caller then has to close the socket."""
        del self._reactor._streams[self.fd]
        self._loop.forget(self.fd)
