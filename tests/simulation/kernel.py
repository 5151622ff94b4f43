"""
A kernel in memory: virtual time, and descriptors that are pipes, channels, pidfds and memory files.

Descriptors are counted like real ones, the lowest free number first, so that what mixes up an old use of a number
with a new one is found. Closing what isn't open, and whatever else no kernel would forgive, is a violation.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import random
import select
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any

#: Numbers below are the host's.
FIRST = 1 << 20
IN, OUT, ERR, HUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR, select.EPOLLHUP
ROOM = 64 << 10


class File:
    """What a descriptor is of. `references` says how many descriptors, messages and processes have it."""

    references = 0

    def events(self) -> int:
        return 0

    def gone(self) -> None:
        """Nobody has it any more."""


class Kernel:
    """
    Attributes:
        time: seconds, of the one clock.
        violations: what must not have happened.
        trace: what happened, for who looks for the reason.
    """

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.time = 1000.0
        self.files: dict[int, File] = {}
        self.processes: dict[int, Any] = {}  # by pid
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.watched: Container[int] = ()  # what the loop waits for
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._free: list[int] = []
        self._pids = itertools.count(100, 2)

    def now(self) -> float:
        return self.time

    def note(self, text: str) -> None:
        self.trace.append(f"{self.time - 1000.0:10.6f}  {text}")

    def violate(self, text: str) -> None:
        self.note(f"VIOLATION: {text}")
        self.violations.append(text)

    def pid(self) -> int:
        return next(self._pids)

    # --- what happens later ---------------------------------------------------

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.time + seconds, next(self._count), call))

    def soon(self, most: float, call: Callable[[], None]) -> None:
        """After at most so many seconds, rather sooner; now and then at once."""
        roll = self.dice.random()
        self.after(0.0 if roll < 0.1 else most * roll * roll, call)

    @property
    def due(self) -> float:
        return self._agenda[0][0] if self._agenda else float("inf")

    def act(self) -> None:
        """Have happen what is due."""
        while self._agenda and self._agenda[0][0] <= self.time:
            heapq.heappop(self._agenda)[2]()

    def wait(self, until: float, ready: Callable[[], list[Any]]) -> list[Any]:
        """Let time pass until *ready* finds something, or to *until*."""
        self.act()
        while not (found := ready()) and self.time < until:
            then = min(self.due, until)
            assert then < float("inf"), "nothing will ever happen"
            self.time = max(self.time, then)
            self.act()
        return found

    # --- descriptors ----------------------------------------------------------

    def open(self, file: File) -> int:
        file.references += 1
        fd = heapq.heappop(self._free) if self._free else FIRST + len(self.files)
        self.files[fd] = file
        return fd

    def close(self, fd: int) -> None:
        file = self.files.pop(fd, None)
        if file is None:
            self.violate(f"closed descriptor {fd - FIRST}, which isn't open")
            raise OSError(errno.EBADF, "not open")
        if fd in self.watched:
            self.violate(f"closed descriptor {fd - FIRST}, for which the loop waits")
        heapq.heappush(self._free, fd)
        self.drop(file)

    def drop(self, file: File) -> None:
        file.references -= 1
        if not file.references:
            file.gone()

    def hold(self, fd: int) -> File:
        """For a message or a process: the file too, until `drop`."""
        file = self.files[fd]
        file.references += 1
        return file

    def file(self, fd: int) -> Any:
        file = self.files.get(fd)
        if file is None:
            self.violate(f"used descriptor {fd - FIRST}, which isn't open")
            raise OSError(errno.EBADF, "not open")
        return file

    def pipe(self) -> tuple[ReadEnd, WriteEnd]:
        pipe = Pipe()
        return ReadEnd(pipe), WriteEnd(pipe)

    def unread(self, fd: int) -> int:
        return len(self.file(fd).pipe.held)


# --- pipes ------------------------------------------------------------------------


class Pipe:
    """
    Attributes:
        filled, drained: called when somebody has written or read.
    """

    def __init__(self) -> None:
        self.held = bytearray()
        self.reads = self.writes = True  # is there somebody who does?
        self.filled: Callable[[], None] = _nothing
        self.drained: Callable[[], None] = _nothing

    @property
    def room(self) -> int:
        return ROOM - len(self.held)


def _nothing() -> None:
    return


class ReadEnd(File):
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def events(self) -> int:
        return (IN if self.pipe.held else 0) | (0 if self.pipe.writes else HUP)

    def gone(self) -> None:
        self.pipe.reads = False
        self.pipe.drained()

    def read(self, size: int) -> bytes:
        held = self.pipe.held
        if not held and self.pipe.writes:
            raise BlockingIOError
        data = bytes(held[:size])
        del held[:size]
        self.pipe.drained()
        return data


class WriteEnd(File):
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def events(self) -> int:
        return (OUT if self.pipe.room else 0) | (0 if self.pipe.reads else ERR)

    def gone(self) -> None:
        self.pipe.writes = False
        self.pipe.filled()

    def write(self, data: bytes | memoryview) -> int:
        if not self.pipe.reads:
            raise BrokenPipeError
        size = min(len(data), self.pipe.room)
        if not size:
            raise BlockingIOError
        self.pipe.held += data[:size]
        self.pipe.filled()
        return size


class Plain(File):
    """One that is only ever held: a listener of seccomp, a folder, a control file."""

    content = b"sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0\n"


class Memory(File):
    """A memory file."""

    def __init__(self) -> None:
        self.content = bytearray()


class Pidfd(File):
    """
    Args:
        signalled: what a signal does.
    """

    def __init__(self, dead: Callable[[], bool], signalled: Callable[[int], None]) -> None:
        self.dead, self.signalled = dead, signalled

    def events(self) -> int:
        return IN if self.dead() else 0


# --- channels ---------------------------------------------------------------------


class Endpoint(File):
    """
    One end of a channel.

    Attributes:
        heard: called when there is something to receive, or the peer is gone.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.queue: deque[tuple[Any, list[File]]] = deque()
        self.peer: Endpoint
        self.over = False
        self.heard: Callable[[], None] = _nothing

    def events(self) -> int:
        return (IN if self.queue or self.peer.over else 0) | (HUP if self.peer.over else 0)

    def gone(self) -> None:
        self.over = True
        while self.queue:
            for file in self.queue.popleft()[1]:
                self._kernel.drop(file)
        self.peer.heard()

    def send(self, message: Any, files: Sequence[File] = ()) -> None:
        """The files' references go along."""
        if self.peer.over:
            for file in files:
                self._kernel.drop(file)
            raise BrokenPipeError
        self.peer.queue.append((message, list(files)))
        self.peer.heard()


class Socket:
    """As far as a channel's is looked at."""

    def setblocking(self, on: bool) -> None:
        return


class Channel:
    """isolation.channel.Channel, without bytes."""

    def __init__(self, kernel: Kernel, end: Endpoint) -> None:
        self._kernel = kernel
        self._fd = kernel.open(end)
        self.socket = Socket()

    @staticmethod
    def pairs(kernel: Kernel) -> Callable[[], tuple[Channel, Channel]]:
        def pair() -> tuple[Channel, Channel]:
            here, there = Endpoint(kernel), Endpoint(kernel)
            here.peer, there.peer = there, here
            return Channel(kernel, here), Channel(kernel, there)
        return pair

    def fileno(self) -> int:
        return self._fd

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        end: Endpoint = self._kernel.file(self._fd)
        end.send(message, [self._kernel.hold(fd) for fd in fds])

    def receive(self) -> tuple[Any, list[int]] | None:
        end: Endpoint = self._kernel.file(self._fd)
        if end.queue:
            message, files = end.queue.popleft()
            fds = [self._kernel.open(file) for file in files]
            for file in files:
                self._kernel.drop(file)
            return message, fds
        if end.peer.over:
            return None
        raise BlockingIOError

    def close(self) -> None:
        if self._fd >= 0:
            self._kernel.close(self._fd)
            self._fd = -1


def choose(dice: random.Random, weights: dict[str, float]) -> str:
    """One of them, by its weight."""
    return dice.choices(list(weights), list(weights.values()))[0]
