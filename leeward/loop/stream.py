"""
A client's connection, as bytes that come and go.

Runs in:   the daemon.

The interface that the server's connections use, and its reference implementation: the reactor reports readiness, then
Python makes a system call. native.py implements it by the shim, where Python makes no system call.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from array import array
from collections.abc import Callable, Sequence

from leeward.dataclass import dataclass
from leeward.loop import closing
from leeward.protocols import Protocol

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

#: Bytes of one read; malloc still serves it without mmap(2).
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class JobStart:
    """
    A job that the fast path has started.

    Attributes:
        request: the client's id of it.
        runner: the number of the runner that has it.
        session: in which the client asked for it, or 0.
        started: CLOCK_MONOTONIC seconds.
        unsent: bytes of the job's frame that its pipe didn't take.
    """

    request: int
    code: bytes
    runner: int
    session: int
    started: float
    unsent: int


@dataclass(slots=True)
class Ran:
    """
    A session's job that the fast path has started, and answered: an end in order, with nothing to tell.

    Attributes:
        request, runner, session: as of `JobStart`.
        started, ended: CLOCK_MONOTONIC seconds.
        cpu_time: seconds.
        memory_peak: bytes.
    """

    request: int
    runner: int
    session: int
    started: float
    ended: float
    cpu_time: float
    memory_peak: int


class Receiver(Protocol):
    """
    The owner of a connection.
    """

    def received(self, data: bytes) -> None:
        """
        The next bytes; none at the end of the stream.
        """

    def failed(self, error: int) -> None:
        """
        The stream is broken, by this errno.
        """

    def room(self) -> None:
        """
        There is room: a `send` that raised BlockingIOError may be tried again.
        """

    def sent(self, count: int) -> None:
        """
        A `send` that returned None is complete: bytes taken, or -errno. Also called after `close`.
        """

    def job_started(self, start: JobStart) -> None:
        """
        A request of code alone took the fast path. Called before the job's report.
        """

    def ran(self, ran: Ran) -> None:
        """
        A request of code alone of a session went by the fast path, and its answer as well.
        """

    def refused(self, count: int) -> None:
        """
        So many requests of code alone have been refused by the fast path.
        """

    def broken(self, error: Exception) -> None:
        """
        One of these has raised *error*.
        """


class Stream(Protocol):
    """
    One connection. It is read from at first.
    """

    @property
    def fd(self) -> int: ...

    def read(self, on: bool) -> None:
        """
        Read input, or stop reading. Bytes that are being received may still arrive.
        """

    def allow_fast_path(self, on: bool) -> None:
        """
        Whether nothing of this connection waits, so that a whole request may go by the fast path.
        """

    def send(self, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        """
        Bytes taken; or None: *data* must stay as it is until `sent` is called.

        Raises:
            BlockingIOError: `room` is called when there is some.
            OSError: the stream is broken.
        """

    @property
    def backlog(self) -> int:
        """
        Bytes of answers that went by the fast path and that the kernel hasn't taken.
        """

    def close(self) -> None:
        """
        Call nothing any more. The socket belongs to the caller, which has to close it next.
        """


class Waiter(Protocol):
    """
    The reactor, as far as a stream needs it.
    """

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None: ...
    def change(self, fd: int, events: int) -> None: ...
    def forget(self, fd: int) -> None: ...


class ReferenceStream:
    """
    By readiness and a system call each.
    """

    costs = "connection"

    def __init__(self, reactor: Waiter, sock: socket.socket, receiver: Receiver) -> None:
        self._reactor, self._sock, self._receiver = reactor, sock, receiver
        self.fd = sock.fileno()
        self._reading, self._waits, self._open = True, False, True
        self._events = READ
        self._guarded = closing.guarded(sock)
        reactor.watch(self.fd, READ, self._ready)

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
    """
    An errno of `failed`, in words.
    """
    if errno.EPERM == error:
        return "it passed descriptors"
    return "hung up" if errno.EPIPE == error else os.strerror(error)
