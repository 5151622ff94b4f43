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
from functools import partial

from leeward.loop.reactor import READ, Reactor, Timer
from leeward.run.excess import pause

#: Bytes that are read at once: as many as a pipe holds.
CHUNK = 64 << 10

#: Reads that `take` makes at most: a terminal holds some 64 KiB, and a read returns at most 4 KiB of them.
_READS = 32

#: Output of a background process after its command's end is read and discarded, a chunk in this many seconds, so that
#: it gets no SIGPIPE and doesn't block for long.
_IDLY_S = 0.01

#: Fewer bytes than these are few, and the seconds after which more are read.
_FEW, _GATHER_S = CHUNK // 2, 0.002


class Spill:
    """
    Args:
        fd: the read end, which doesn't block; the spill owns it.
        wrote: called with each chunk, until the process's end is reported.
        ended: called when no writer is left.

    Attributes:
        over: no writer is left, or the spill was closed.
        paused: nothing is read.
        gathers: a short pause follows a read of few bytes, so that many small writes take few reads.
        slow: a pause follows each read, because most of the output isn't kept; see excess.py.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, fd: int, wrote: Callable[[bytes], None] | None, ended: Callable[[], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._fd, self._wrote, self._ended = reactor, fd, wrote, ended
        self._broken = broken
        self.over = self.paused = self.gathers = self.slow = False
        self._idly = False
        self._late = 0.0
        self._timer: Timer | None = None
        reactor.watch(fd, READ, self._ready)

    def _ready(self, _events: int) -> None:
        data = self._read()
        if data is None:
            return
        if not data:
            self.close()
            self._ended()
            return
        if self._wrote is not None:
            self._wrote(data)
        if self.over or self.paused:
            return
        if self._idly or self.slow:
            self._rest(_IDLY_S if self._idly else pause(self._late))
        elif self.gathers and len(data) < _FEW:
            self._rest(_GATHER_S)

    def _rest(self, seconds: float) -> None:
        self._reactor.forget(self._fd)
        when = self._reactor.now() + seconds
        self._timer = self._reactor.at(when, partial(self._again, when))

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
            self._stop_watching()

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

    def _again(self, when: float) -> None:
        self._timer = None
        self._late = self._reactor.now() - when
        self._reactor.watch(self._fd, READ, self._ready)

    def _stop_watching(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._reactor.forget(self._fd)

    def close(self) -> None:
        if self.over:
            return
        self.over = True
        self._stop_watching()
        os.close(self._fd)
