"""
Input of clients for one process's stdin, written as fast as the pipe accepts it.

Runs in:   the daemon. Never blocks: a process that doesn't read delays only its own writers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from leeward.errors import Busy
from leeward.loop.reactor import WRITE, Reactor

if TYPE_CHECKING:
    from leeward.run.process import LiveProcess

#: Bytes that may wait to be written to one process.
MOST = 4 << 20

#: Bytes that are written in one turn of the loop, about: a process that reads as fast as the daemon writes would
#: otherwise hold the loop until it has all of its input.
TURN = 1 << 20

#: Called with the number of bytes of a write that were taken: fewer than all if the process has closed its stdin, or
#: ended.
Taken = Callable[[int], None]


class Feed:
    """A queue of writes to one process's stdin, done one after the other. The last write may close the stdin."""

    def __init__(self, reactor: Reactor, child: LiveProcess) -> None:
        self._reactor, self._child = reactor, child
        self._waiting: deque[tuple[memoryview, int, Taken]] = deque()
        self._watching = -1
        self._size = 0
        self._ends = False

    @property
    def open(self) -> bool:
        """Whether more can be written."""
        return self._child.stdin >= 0 and not self._ends

    def write(self, data: bytes | memoryview, taken: Taken, *, end: bool = False) -> None:
        """
        Write *data*, and close the pipe after it if *end* is true. *taken* is called once, perhaps before this returns.

        Raises:
            Busy: too many bytes wait to be written already.
        """
        if self._waiting and self._size + len(data) > MOST:
            raise Busy(f"{self._size} bytes wait to be read by the process already")
        if not self.open:
            taken(0)
            return
        self._ends = end
        self._waiting.append((memoryview(data), len(data), taken))
        self._size += len(data)
        if self._watching < 0:
            self._pump()

    def _pump(self, _events: int = 0) -> None:
        left = TURN
        while self._waiting:
            rest, size, taken = self._waiting[0]
            try:
                while rest and self._child.stdin >= 0:
                    if left <= 0:
                        raise BlockingIOError
                    count = os.write(self._child.stdin, rest[:left])
                    rest, self._size, left = rest[count:], self._size - count, left - count
            except BlockingIOError:
                self._waiting[0] = rest, size, taken
                self._watch()
                return
            except OSError:  # EPIPE: the process has closed its stdin
                self.close()
                return
            if rest:
                self.close()
                return
            self._waiting.popleft()
            taken(size)
        self._forget()
        if self._ends:
            self._child.close_stdin()

    def _watch(self) -> None:
        if self._watching < 0:
            self._watching = self._child.stdin
            self._reactor.watch(self._watching, WRITE, self._pump)

    def _forget(self) -> None:
        fd, self._watching = self._watching, -1
        if fd >= 0:
            self._reactor.forget(fd)

    def close(self) -> None:
        """Close the process's stdin, and complete the waiting writes with the number of bytes that it has taken so far."""
        self._forget()
        self._child.close_stdin()
        waiting, self._waiting, self._size = self._waiting, deque(), 0
        for rest, size, taken in waiting:
            taken(size - len(rest))
