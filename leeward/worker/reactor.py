"""
The daemon's event loop: descriptors and deadlines, one thread, no more.

Runs in:   the daemon, and `leeward run`.
Why ours:  one round trip by asyncio's streams costs 46 us, by epoll 15;
           docs/decisions/ has the figures.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections import deque
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
GONE = select.EPOLLHUP | select.EPOLLERR

Callback = Callable[[int], None]


_NOBODY = (None, 0)


class Timer:
    """
    A call that waits for its time; `cancel` it or let it run, once.
    """

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Reactor:
    """
    Calls back when a descriptor is ready or a time has come.

    Descriptors stay the caller's: `forget` one before closing it. Times are
    CLOCK_MONOTONIC seconds, so a change of the wall clock moves nothing.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, tuple[Callback, int]] = {}  # and the turn since when it is watched
        self._turns = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._count = itertools.count()
        self._stopped = False

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """
        Call *callback(events)* whenever *fd* is ready; level-triggered.
        """
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback, self._turns

    def change(self, fd: int, events: int) -> None:
        """
        Wait for other *events* on a watched *fd*; 0 leaves only hang-up and error.
        """
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """
        Stop watching *fd*; harmless if it isn't watched.
        """
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """
        Call at *when*, a time.monotonic() value.
        """
        timer = Timer(when, call)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """
        Call *seconds* from now.
        """
        return self.at(time.monotonic() + seconds, call)

    def soon(self, call: Callable[[], None]) -> None:
        """
        Call after what is ready now has been served.
        """
        self._soon.append(call)

    def stop(self) -> None:
        """
        Make `run` return after the current turn.
        """
        self._stopped = True

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """
        Serve until `stop`, or until *until* says so after a turn.
        """
        self._stopped = False
        while not self._stopped and not (until is not None and until()):
            self.turn()

    def turn(self, limit: float | None = None) -> None:
        """
        Wait once, at most *limit* seconds, and serve what is ready.
        """
        ready = self._epoll.poll(self._patience(limit))
        self._turns += 1
        for fd, events in ready:
            # One served earlier in this turn may have forgotten it, or have closed it and watch
            # another by the same number now, about which *events* says nothing.
            callback, since = self._callbacks.get(fd, _NOBODY)
            if callback is not None and since < self._turns:
                callback(events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _patience(self, limit: float | None) -> float:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        waits = [] if limit is None else [limit]
        if self._timers:
            waits.append(max(0.0, self._timers[0][0] - time.monotonic()))
        return min(waits, default=-1.0)

    def close(self) -> None:
        """
        Close the epoll descriptor; watched descriptors stay open.
        """
        self._epoll.close()
