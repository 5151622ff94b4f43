"""
Signals as events of the reactor.

Runs in:   the daemon, its shards, and `leeward run`.

Each signal writes a byte to a socketpair that the reactor watches, so a signal is never handled in the middle of
another callback. After SIGCHLD dead orphans are reaped, which come to a subreaper at any time.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType

from leeward.daemon.early import ENDING
from leeward.loop.reactor import READ, Reactor, Timer
from leeward.worker.orphans import reap_orphans

#: Seconds from a child's end to the look for orphans, since the children of one parent end together; and to the next
#: look, if there was no descriptor for a whole one.
_REAP_S, _AGAIN_S = 0.05, 1.0


class Signals:
    """Calls *arrived* with the name of each signal of ENDING that comes, until `close` restores the handlers from before."""

    def __init__(self, reactor: Reactor, arrived: Callable[[str], None]) -> None:
        self._reactor, self._arrived = reactor, arrived
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._reaping: Timer | None = None
        self._old = {number: signal.signal(number, _nothing) for number in (*ENDING, signal.SIGCHLD)}
        reactor.watch(self._read.fileno(), READ, self._ready)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # `early.start` may have blocked them

    def _ready(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._read.recv(64):
                if number in ENDING:
                    self._arrived(signal.Signals(number).name)
                elif self._reaping is None:
                    self._reaping = self._reactor.after(_REAP_S, self._reap)

    def _reap(self) -> None:
        self._reaping = None if reap_orphans(alone=True) else self._reactor.after(_AGAIN_S, self._reap)

    def broken(self, _error: Exception) -> None:
        """For the barrier: a look has failed. The next one follows as usual."""
        self._reaping = None

    def close(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        self._reactor.barrier.steps(
            partial(signal.set_wakeup_fd, self._old_fd),
            *(partial(signal.signal, number, handler) for number, handler in self._old.items()),
            partial(self._reactor.forget, self._read.fileno()), self._read.close, self._write.close)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Python's handler does nothing; the byte on the wake-up descriptor reports the signal."""
