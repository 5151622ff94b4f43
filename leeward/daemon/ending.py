"""
What ends a process that serves clients: signals, and time without use; its clients can read their last replies.

Runs in: the daemon, and `leeward run`.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

from leeward.base.points import point
from leeward.daemon.early import ENDING
from leeward.daemon.loop.barrier import nothing
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor, Repeating
from leeward.daemon.serving.server import Server
from leeward.daemon.telling.log import log
from leeward.daemon.worker.orphans import reap_orphans

#: Seconds that running jobs have after a SIGTERM. Together with the rest the daemon ends within 5.
DRAIN_S = 4.0
#: Seconds that clients have to read their last replies; and seconds after the order to end before which the socket
#: stays: on a busy host a client that has just connected may send its request late.
FLUSH_S, SETTLE_S = 0.3, 2.0
#: Seconds after the drain and the end of running jobs after which the daemon ends without waiting for either.
OVERDUE_S = 1.5


@point("daemon.drain")
def drain_s() -> float:
    return DRAIN_S


def see_off(reactor: Reactor, server: Server, requested: float, stop_listening: Callable[[], None]) -> None:
    """Give clients time for their last replies, after an end *requested* by CLOCK_MONOTONIC; then refuse what was read."""
    give_up = max(time.monotonic() + FLUSH_S, requested + SETTLE_S)
    while not server.flushed and time.monotonic() < give_up:
        reactor.turn(0.05)
    server.part(all_of_them=True)
    # Before the workers, whose end may take a moment: a daemon that starts now finds the socket's path free, and a
    # client that connects gets an error at once.
    stop_listening()
    give_up = time.monotonic() + FLUSH_S
    while server.connections and time.monotonic() < give_up:
        reactor.turn(0.05)


#: Checks within the time after which the daemon ends.
LOOKS = 10


class Idle:
    """
    Ends a daemon that nobody uses for *seconds*, 0 is never; *activity* returns its number of requests, and whether it
    is busy.

    One timer checks LOOKS times within that time; requests don't touch it. So the daemon ends between 1 and 1.1 times
    the idle time after its last use. An open connection without requests doesn't keep it: its client connects again by
    itself.
    """

    def __init__(self, reactor: Reactor, seconds: Callable[[], float], activity: Callable[[], tuple[int, bool]],
                 end: Callable[[], None]) -> None:
        self._reactor, self._seconds, self._activity, self._end = reactor, seconds, activity, end
        self._seen, self._since = -1, 0.0
        self._looks = Repeating(reactor, 0.0, self._look)

    def watch(self) -> None:
        """Start to check, or start anew after a change of the configuration."""
        self._looks.stop()
        self._looks.seconds = self._seconds() / LOOKS
        if self._looks.seconds:
            self._looks.start()

    def _look(self) -> bool:
        requests, busy = self._activity()
        now = self._reactor.now()
        if busy or requests != self._seen:
            self._seen, self._since = requests, now
        elif now - self._since >= self._seconds():
            log.info("idle: nobody has asked for anything", seconds=self._seconds())
            self._end()
            return False
        return True


#: Seconds from a child's end to the look for orphans, since the children of one parent end together; and to the next
#: look, if there was no descriptor for a whole one.
_REAP_S, _AGAIN_S = 0.05, 1.0


class Signals:
    """
    Calls *arrived* with the name of each signal of ENDING, until `close` restores the handlers from before. Each signal
    writes a byte to a socketpair that the reactor watches, so none is handled in the middle of a callback. SIGCHLD has
    dead orphans reaped, which come to a subreaper at any time.
    """

    def __init__(self, reactor: Reactor, arrived: Callable[[str], None]) -> None:
        self._reactor, self._arrived = reactor, arrived
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._reaping = NO_TIMER
        self._old = {number: signal.signal(number, nothing)  # the byte on the wake-up descriptor reports it
                     for number in (*ENDING, signal.SIGCHLD)}
        reactor.watch(self._read.fileno(), READ, self._ready)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # `early.start` may have blocked them

    def _ready(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._read.recv(64):
                if number in ENDING:
                    self._arrived(signal.Signals(number).name)
                elif not self._reaping.is_set:
                    self._reaping = self._reactor.after(_REAP_S, self._reap)

    def _reap(self) -> None:
        if not reap_orphans(alone=True):
            self._reaping = self._reactor.after(_AGAIN_S, self._reap)

    def close(self) -> None:
        self._reaping.cancel()
        self._reactor.barrier.steps(
            partial(signal.set_wakeup_fd, self._old_fd),
            *(partial(signal.signal, number, handler) for number, handler in self._old.items()),
            partial(self._reactor.forget, self._read.fileno()), self._read.close, self._write.close)
