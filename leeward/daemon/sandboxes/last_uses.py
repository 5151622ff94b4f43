"""
When nobody has a file any more: not the daemon, and no process of a sandbox that has it open or mapped.

What a sandbox's processes have of a file, down to a descriptor without any right, keeps its memory or its place on disk
when the daemon has closed or removed it long ago. The kernel tells the end of all of that at once.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from leeward._native import last_use
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.errors import Busy, told


class LastUses:
    costs = "session"

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queue = -1
        self._first = 0  # of the queue's numbers: none is one of an earlier queue's
        self._gone: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, gone: Callable[[int], None]) -> int:
        """
        Call *gone* once nobody has the file, with the number that is returned: one for each file, whose first *gone* it is.
        Busy if the host has no watch left.
        """
        try:
            if self._queue < 0:
                self._queue = last_use.new_queue()
                self._reactor.watch(self._queue, READ, self._hear)
            number = last_use.watch(self._queue, fd)
        except OSError as error:
            raise Busy(f"the host has no watch for the file left (fs.inotify): {told(error)}") from error
        self._gone.setdefault(number, gone)
        return self._first + number

    def wait(self, seconds: float) -> None:
        """Wait for files that are being closed, at most *seconds*."""
        if self._queue >= 0:
            poll = select.poll()
            poll.register(self._queue, select.POLLIN)
            poll.poll(seconds * 1000)
            self._hear(0)

    def _hear(self, _events: int) -> None:
        for number in list(last_use.told(self._queue, self._gone)):
            gone = self._gone.pop(number, None)
            if gone is not None:
                self._reactor.barrier.call(gone, self._first + number)

    def broken(self, _error: Exception) -> None:
        """For the barrier: what is watched counts as in use from now on."""
        self.close()

    def close(self) -> None:
        self._gone.clear()
        queue, self._queue = self._queue, -1
        self._first += 1 << 32
        if queue >= 0:
            in_any_case(lambda: self._reactor.forget(queue), lambda: os.close(queue))
