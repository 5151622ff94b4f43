"""
Reads the output pipe, or the terminal, of one process of a live runner while the process writes.

Runs in:   the daemon.
Trust:     none in the writer: a turn of the loop reads at most one chunk, and the writer of a pipe that isn't read
           blocks when the pipe is full.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from leeward.loop.reactor import READ, Reactor, Timer

#: Bytes that are read at once: as many as a pipe holds.
CHUNK = 64 << 10

#: Reads that `take` makes at most: a terminal holds some 64 KiB, and a read returns at most 4 KiB of them.
_READS = 32

#: Output of a background process after its command's end is read and discarded, a chunk in this many seconds, so that
#: it gets no SIGPIPE and doesn't block for long.
_IDLY_S = 0.01


class Spill:
    """
    Args:
        fd: the read end, which doesn't block; the spill owns it.
        wrote: called with each chunk, until the process's end is reported.
        ended: called when no writer is left.

    Attributes:
        over: no writer is left, or the spill was closed.
        paused: nothing is read.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, fd: int, wrote: Callable[[bytes], None] | None, ended: Callable[[], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._fd, self._wrote, self._ended = reactor, fd, wrote, ended
        self._broken = broken
        self.over = self.paused = False
        self._idly = False
        self._timer: Timer | None = None
        reactor.watch(fd, READ, self._ready)

    def _ready(self, _events: int) -> None:
        data = self._read()
        if data is None:
            return
        if not data:
            self.close()
            self._ended()
        elif self._idly:
            self._reactor.forget(self._fd)
            self._timer = self._reactor.after(_IDLY_S, self._again)
        elif self._wrote is not None:
            self._wrote(data)

    def _read(self) -> bytes | None:
        try:
            return os.read(self._fd, CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # the last slave of a terminal was closed

    def take(self) -> None:
        """Read the whole present content, because the process has ended. `ended` isn't called."""
        for _ in range(_READS):
            data = None if self.over or self.paused or self._idly else self._read()
            if data and self._wrote is not None:
                self._wrote(data)
            if not data or len(data) == CHUNK:
                break
        if data == b"":
            self.close()

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the process."""
        self._broken(error)

    def pause(self) -> None:
        if not self.over and not self.paused and not self._idly:
            self.paused = True
            self._reactor.forget(self._fd)

    def resume(self) -> None:
        if not self.over and self.paused:
            self.paused = False
            self._reactor.watch(self._fd, READ, self._ready)

    def idle(self) -> None:
        """Read slowly from now on and discard the bytes, because the process's end was reported."""
        if self.over or self._idly:
            return
        self._idly, self._wrote = True, None
        if self.paused:
            self.paused = False
            self._reactor.watch(self._fd, READ, self._ready)

    def _again(self) -> None:
        self._timer = None
        if not self.over:
            self._reactor.watch(self._fd, READ, self._ready)

    def close(self) -> None:
        if self.over:
            return
        self.over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        elif not self.paused:
            self._reactor.forget(self._fd)
        os.close(self._fd)
