"""
A client's connection as a stream of bytes in both directions.

The interface that the server's connections use, and its reference implementation, where the reactor reports readiness
and Python makes a system call. native.py implements it by the shim.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leeward.dataclass import dataclass
from leeward.loop import closing
from leeward.protocols import Protocol

if TYPE_CHECKING:
    from leeward.daemon.serving.connection import Connection
    from leeward.loop.reactor import Reactor

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

#: Bytes of one read; malloc allocates so many without mmap(2).
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class JobStart:
    """
    A job that the fast path has started at a time by CLOCK_MONOTONIC; *session* is 0 for a fresh one. *unsent*: bytes
    of its frame that the pipe didn't take.
    """

    request: int
    code: bytes
    runner: int
    session: int
    started: float
    unsent: int


@dataclass(slots=True)
class Ran:
    """A session's job that the fast path has started and answered; it has finished without details."""

    request: int
    runner: int
    session: int
    started: float
    ended: float
    cpu_time: float
    memory_peak: int


class Stream(Protocol):
    @property
    def fd(self) -> int: ...

    def read(self, on: bool) -> None:
        """Read input, or stop reading. Bytes that are being received may still arrive."""

    def allow_fast_path(self, on: bool) -> None:
        """Set whether nothing of this connection waits, so that a whole request may take the fast path."""

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        """
        Send *data* and *fds*. Returns how many bytes were taken; None if *data* must stay unchanged until `sent` is
        called. BlockingIOError if there is no room until `room` is called; else OSError if the stream is broken.
        """

    @property
    def backlog(self) -> int:
        """The number of bytes of the fast path's answers that the kernel hasn't taken yet."""

    def close(self) -> None:
        """End the stream: the receiver is called no more, except its `sent`. The caller then has to close the socket."""


class ReferenceStream:
    """A stream that waits until its socket is ready, and then makes a system call."""

    costs = "connection"

    def __init__(self, reactor: Reactor, sock: socket.socket, receiver: Connection, reading: bool = True) -> None:
        self._reactor, self._sock, self._receiver = reactor, sock, receiver
        self.fd = sock.fileno()
        self._reading, self._waits, self._open = reading, False, True
        self._events = READ if reading else 0
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

    def broken(self, error: Exception) -> None:
        self._receiver.broken(error)

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


def reason(error: int) -> str:
    """The text for an errno that `failed` was called with."""
    if error == errno.EPERM:
        return "it passed descriptors"
    return "hung up" if error == errno.EPIPE else os.strerror(error)
