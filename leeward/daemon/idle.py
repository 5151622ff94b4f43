"""
Ends a daemon that nobody uses, after the configuration's `idle_exit`.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. One timer checks ten times within the idle time; requests don't touch it. If the number of
requests has changed since the last check, or something runs or waits, the idle time begins anew. So the daemon ends
between 1 and 1.1 times the idle time after it was last used. An open connection without requests doesn't keep it
running: its client connects again by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.daemon.telling.log import log
from leeward.loop.reactor import Reactor, Timer

#: Checks within the time after which the daemon ends.
LOOKS = 10


class Idle:
    """
    The timer that ends an idle daemon.

    Args:
        seconds: returns the configuration's present `idle_exit`; 0 is never.
        activity: returns the number of requests so far, and whether anything runs or waits.
        end: ends the daemon.
    """

    def __init__(self, reactor: Reactor, seconds: Callable[[], float], activity: Callable[[], tuple[int, bool]],
                 end: Callable[[], None]) -> None:
        self._reactor, self._seconds, self._activity, self._end = reactor, seconds, activity, end
        self._seen, self._since = -1, 0.0
        self._timer: Timer | None = None

    def watch(self) -> None:
        """Start to check, or start anew after a change of the configuration."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._seconds()
        if seconds:
            self._timer = self._reactor.after(seconds / LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        requests, busy = self._activity()
        now = self._reactor.now()
        if busy or requests != self._seen:
            self._seen, self._since = requests, now
        elif now - self._since >= self._seconds():
            log.info("idle: nobody has asked for anything", seconds=self._seconds())
            self._end()
            return
        self.watch()

    def broken(self, _error: Exception) -> None:
        """For the barrier: a check has failed. The next check follows as usual."""
        self.watch()
