"""
Processes of shards that are to end: they get some time for that, and are killed then.

Runs in:   the daemon, on the reactor's thread.
Owns:      these processes, and their places among the control groups.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import partial

from leeward.daemon.telling.log import log
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer

#: Seconds that a shard has to end, and between two looks whether it has.
END_S, _LOOK_S = 3.0, 0.05


class Departures:
    """The processes that are on their way out."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._leaving: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        self._look: Timer | None = None

    def add(self, process: subprocess.Popen[bytes], leave: Callable[[], None]) -> None:
        """Reap *process* when it has ended, or kill it after END_S; then call *leave*."""
        self._leaving[process] = leave
        self._reactor.after(END_S, partial(self._end, process))
        self._check()

    def _check(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for process in list(self._leaving):
            if process.poll() is not None:
                self._end(process)
        if self._leaving:
            self._look = self._reactor.after(_LOOK_S, self._check)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        leave = self._leaving.pop(process, None)
        if leave is not None:
            if process.poll() is None:
                log.warning("a shard doesn't end: it is killed", pid=process.pid)
            in_any_case(process.kill, process.wait, leave)

    def close(self) -> None:
        """Wait for all of them, for END_S together."""
        deadline = time.monotonic() + END_S
        for process in list(self._leaving):
            try:
                process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # `_end` kills it
            self._end(process)

    def broken(self, _error: Exception) -> None:
        """For the barrier: a look has failed. The next one follows as usual."""
        if self._leaving and self._look is None:
            self._look = self._reactor.after(_LOOK_S, self._check)
