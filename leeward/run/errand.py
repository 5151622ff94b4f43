"""
A job's frame on its way into the job pipe.

Runs in:   the daemon.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice

from leeward.run.output import unread
from leeward.run.runner import Runner

#: Pieces of one write (IOV_MAX is 1024), and the bytes after which the pipe is left for the next turn of the loop: a
#: runner that reads as fast as the daemon writes would hold the loop until it has all.
_PIECES, MOST = 64, 1 << 20


class Errand:
    """
    Writes the frame of one job to the job pipe of *runner*.

    Attributes:
        unsent: bytes of the frame that the pipe hasn't taken.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: deque[memoryview] = deque()
        self.unsent = 0

    def set_out(self, pieces: Sequence[bytes | memoryview], unsent: int | None = None) -> None:
        """Send the frame that consists of *pieces*, or only its last *unsent* bytes."""
        self._waiting = deque(memoryview(piece) for piece in pieces)
        self.unsent = sum(map(len, pieces))
        if unsent is not None:
            self._taken(self.unsent - unsent)

    def go_on(self) -> bool:
        """Write as much of the frame as the pipe takes, MOST bytes at most. Returns whether nothing is left to write."""
        until = max(0, self.unsent - MOST)
        try:
            while self.unsent > until:
                self._taken(os.writev(self._runner.job, self._first(self.unsent - until)))
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the runner has ended; the report of its end gives the reason
        return not self.unsent

    def _first(self, most: int) -> list[memoryview]:
        pieces = []
        for piece in islice(self._waiting, _PIECES):
            pieces.append(piece[:most])
            most -= len(piece)
            if most <= 0:
                break
        return pieces

    def _taken(self, count: int) -> None:
        self.unsent -= count
        waiting = self._waiting
        while waiting and count >= len(waiting[0]):
            count -= len(waiting.popleft())
        if count:
            waiting[0] = waiting[0][count:]

    @property
    def left(self) -> int:
        """The number of bytes of the frame that the runner hasn't read, as far as the daemon can tell."""
        return self.unsent or unread(self._runner.job)
