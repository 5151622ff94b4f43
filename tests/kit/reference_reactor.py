"""The event loop in Python, over epoll: the reference, which says what the shim's loop has to do. Only tests have it."""

from __future__ import annotations

import errno
import math
import select
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leeward.daemon.loop import closing
from leeward.daemon.loop.native import NativeStream
from leeward.daemon.loop.reactor import READ, WRITE, Reactor

if TYPE_CHECKING:  # frameworks' environments have no structlog
    from leeward.daemon.serving.connection import Connection

#: Bytes of one read; malloc allocates so many without mmap(2).
_CHUNK = 1 << 16
#: Connections accepted in a row, each of which is served or refused before the next.
_TURN_ACCEPTS = 64


class ReferenceStream:
    """A stream that waits until its socket is ready, and then makes a system call."""

    costs = "connection"

    def __init__(self, reactor: Reactor, sock: socket.socket, receiver: Connection) -> None:
        self._reactor, self._sock, self._receiver = reactor, sock, receiver
        self.fd, self.broken = sock.fileno(), receiver.broken
        self._reading, self._waits, self._open = True, False, True
        self._events = READ
        self._guarded = closing.guarded(sock)
        reactor.watch(self.fd, self._events, self._ready)

    def read(self, on: bool) -> None:
        self._reading = on
        self._watch()

    def allow_fast_path(self, on: bool) -> None:
        return  # there is no fast path here

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        try:
            if fds:
                return self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
            return self._sock.send(data)
        except BlockingIOError:
            self._waits = True
            self._watch()
            raise

    @property
    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        self._open = False
        self._reactor.forget(self.fd)

    def _watch(self) -> None:
        events = (READ if self._reading else 0) | (WRITE if self._waits else 0)
        if events != self._events:
            self._events = events
            self._reactor.change(self.fd, events)

    def _ready(self, events: int) -> None:
        if events & WRITE and self._waits:
            self._waits = False
            self._watch()
            self._receiver.room()
        if not self._open:
            return
        if events & READ and self._reading:
            self._receive()
        elif events & ~(READ | WRITE):
            self._receiver.failed(errno.EPIPE)

    def _receive(self) -> None:
        try:
            data = closing.receive(self._sock, _CHUNK) if self._guarded else self._sock.recv(_CHUNK)
        except closing.DescriptorsPassed:
            self._receiver.failed(errno.EPERM)
            return
        except BlockingIOError:
            return
        except OSError as error:
            self._receiver.failed(error.errno or 0)
            return
        self._receiver.received(data)


class _Door:
    """A listening socket, and the callback for its connections."""

    def __init__(self, reactor: Reactor, listener: socket.socket, met: Callable[[socket.socket], None],
                 failed: Callable[[OSError], None]) -> None:
        self._reactor, self._listener, self._met, self._failed = reactor, listener, met, failed

    def ready(self, _events: int) -> None:
        for _ in range(_TURN_ACCEPTS):
            if not self._reactor.watches(self._listener.fileno()):
                return
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._reactor.forget(self._listener.fileno())
                self._reactor.barrier.call(self._failed, error)
                return
            self._reactor._meet(self._met, sock)


class ReferenceReactor(Reactor):
    """A reactor that waits by epoll_wait(2), and makes a system call for each read and write."""

    def __init__(self) -> None:
        self._waits_until = 0.0
        super().__init__()

    @property
    def transport(self) -> str:
        return "socket"

    def accept(self, listener: socket.socket, met: Callable[[socket.socket], None],
               failed: Callable[[OSError], None]) -> None:
        self.watch(listener.fileno(), READ, _Door(self, listener, met, failed).ready)

    def stream(self, sock: socket.socket, receiver: Connection) -> NativeStream:
        return ReferenceStream(self, sock, receiver)  # type: ignore[return-value]  # it has the same calls

    def pulse(self) -> tuple[int, float]:
        return self.turns, self._waits_until

    def close(self) -> None:
        self._epoll.close()

    def _open(self) -> None:
        self._epoll = select.epoll()

    def _register(self, fd: int, events: int) -> None:
        self._epoll.register(fd, events)

    def _modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def _unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def _serve(self, patience: float) -> None:
        self._waits_until = math.inf if patience < 0 else self.now() + patience
        ready = self._epoll.poll(patience)
        self.turns += 1
        self._waits_until = 0.0
        for fd, events in ready:
            self._call(fd, events)
