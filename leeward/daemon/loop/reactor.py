"""
The daemon's event loop: descriptors and deadlines, and connections as streams of bytes; one thread, no more.

What is here is what doesn't depend on how the kernel is asked: timers, turns, and callbacks that fail. native.py asks it by
the shim; tests have a reference over epoll, and run on both. It is ours because one round trip by asyncio's streams costs
46 us, by epoll 15; docs/decisions/ has the figures.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.dataclass import dataclass
from leeward.daemon.loop.barrier import Barrier, nothing
from leeward.daemon.loop.closing import Closer

if TYPE_CHECKING:
    from leeward.daemon.loop.fast_path import FastPath
    from leeward.daemon.loop.native import NativeStream
    from leeward.daemon.serving.connection import Connection

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


@dataclass(frozen=True, slots=True)
class JobStart:
    """
    A job that the fast path has started at a time by CLOCK_MONOTONIC; *session* is 0 for a fresh one. *unsent*: bytes
    of its frame that the pipe didn't take.
    """

    request: int
    code: bytes
    runner: int
    session: int
    started: float
    unsent: int


@dataclass(slots=True)
class Ran:
    """A session's job that the fast path has started and answered; it has finished without details."""

    request: int
    runner: int
    session: int
    started: float
    ended: float
    cpu_time: float
    memory_peak: int


def reason(error: int) -> str:
    """The text for an errno that `failed` was called with."""
    if error == errno.EPERM:
        return "it passed descriptors"
    return "hung up" if error == errno.EPIPE else os.strerror(error)


__all__ = ["GONE", "NO_TIMER", "READ", "WRITE", "Reactor", "Repeating", "Timer"]

GONE = select.EPOLLHUP | select.EPOLLERR

Callback = Callable[[int], None]

_NOBODY = (None, 0, 0)

#: A descriptor stays ready until it is read. If its callback fails _FAILURES times within _WITHIN_S seconds, the
#: descriptor isn't watched for a while: for the first pause, doubled each time up to the second one, in seconds.
_FAILURES, _WITHIN_S = 5, 1.0
_PAUSE_S, _PAUSE_MOST_S = 0.1, 5.0

#: Cancelled timers that may stay in the heap until they are due.
_CANCELLED = 64


class _Cancelled:
    """The number of cancelled timers that are still in a reactor's heap."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Timer:
    """A call at a later time. It runs once, unless `cancel` is called before; `call` is None from then on."""

    __slots__ = ("_cancelled", "call", "when")

    def __init__(self, when: float, call: Callable[[], None], cancelled: _Cancelled | None = None) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call
        self._cancelled = cancelled

    @property
    def is_set(self) -> bool:
        """Whether the call is still to come."""
        return self.call is not None

    def cancel(self) -> None:
        """Make no call; harmless if there is none to come."""
        if self.call is not None:
            self.call = None
            if self._cancelled is not None:
                self._cancelled.count += 1


#: One that isn't set.
NO_TIMER = Timer(math.inf, nothing)
NO_TIMER.cancel()


class _Failing:
    """A descriptor's callback that has failed: the number of failures, since when they count, and the next pause."""

    __slots__ = ("callback", "count", "pause", "paused", "since")

    def __init__(self, callback: Callback, since: float) -> None:
        self.callback, self.since = callback, since
        self.count, self.pause, self.paused = 0, _PAUSE_S, False


class Reactor:
    """
    Calls back when a descriptor is ready or a time has come. Descriptors stay the caller's: `forget` one before closing
    it.

    `refused`: why there is no io_uring though it was wanted, or ""; `left_ring` is called with the reason when a ring
    that served fails and epoll takes its place; `rouse`, if set, wakes the watchdog's thread when work begins. `now` is
    CLOCK_MONOTONIC: code that a reactor serves measures by this clock and no other, as a simulated reactor has
    simulated time.
    """

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.barrier = Barrier(self.now)
        # By descriptor: the callback, the turn since which the descriptor is watched, and the events.
        self._callbacks: dict[int, tuple[Callback, int, int]] = {}
        self._failing: dict[int, _Failing] = {}
        self.turns = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = _Cancelled()
        self._soon: deque[Callable[[], None]] = deque()
        self._count = itertools.count()
        self.stopped = False
        self.fast_path: FastPath | None = None
        self.refused = ""
        self.left_ring: Callable[[str], None] = nothing
        self.rouse: Callable[[], None] | None = None
        self.closer = Closer()
        self._open()

    @property
    def transport(self) -> str:
        """The transport of clients' bytes: "socket" or "uring"."""
        raise NotImplementedError

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """Call *callback(events)* whenever *fd* is ready; level-triggered."""
        self._register(fd, events)
        self._callbacks[fd] = callback, self.turns, events

    def change(self, fd: int, events: int) -> None:
        """Wait for other *events* on a watched *fd*; 0 leaves only hang-up and error."""
        callback, since, _ = self._callbacks[fd]
        self._callbacks[fd] = callback, since, events
        if not (self._failing and self._is_paused(fd)):
            self._modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching *fd*; harmless if it isn't watched."""
        if self._callbacks.pop(fd, None) is not None and not (self._failing and self._was_paused(fd)):
            self._unregister(fd)

    def watches(self, fd: int) -> bool:
        """Whether *fd* is watched, a listener, or a stream."""
        return fd in self._callbacks

    def accept(self, listener: socket.socket, met: Callable[[socket.socket], None],
               failed: Callable[[OSError], None]) -> None:
        """Call *met* with each new connection, until *failed* is called or the listener is forgotten."""
        raise NotImplementedError

    def _meet(self, met: Callable[[socket.socket], None], sock: socket.socket) -> None:
        try:
            met(sock)
        except Exception as error:
            if sock.fileno() >= 0 and not self.watches(sock.fileno()):
                self.closer.close(sock)  # nobody serves this client
            self.barrier.caught(met, error)

    def stream(self, sock: socket.socket, receiver: Connection) -> NativeStream:
        """Pass the bytes of *sock*, non-blocking and the caller's, to *receiver*."""
        raise NotImplementedError

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer(when, call, self._cancelled)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self.at(self.now() + seconds, call)

    def soon(self, call: Callable[[], None]) -> None:
        """Call *call* when all descriptors that are ready now have been served."""
        self._soon.append(call)

    def pulse(self) -> tuple[int, float]:
        """For any thread: the number of past waits, and when the present one ends by `now`; 0.0 while callbacks run."""
        raise NotImplementedError

    def stop(self) -> None:
        self.stopped = True

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop` is called, or until *until* returns True after a turn."""
        self.stopped = False
        while not self.stopped and not (until is not None and until()):
            self.turn()

    def turn(self, limit: float | None = None) -> None:
        """Wait once, at most *limit* seconds, and serve the ready descriptors."""
        self._serve(self._patience(limit))
        now = self.now()
        if self.fast_path is not None and self.fast_path.held:
            self.fast_path.flush(math.inf if self._soon or (self._timers and self._timers[0][0] <= now) else now)
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled.count -= 1
            else:
                self.barrier.call(call)
        for _ in range(len(self._soon)):
            self.barrier.call(self._soon.popleft())

    def _call(self, fd: int, events: int) -> None:
        # A callback earlier in this turn may have forgotten the descriptor, or closed it and watched another one with
        # the same number, to which *events* don't apply.
        callback, since, _ = self._callbacks.get(fd, _NOBODY)
        if callback is not None and since < self.turns:
            try:
                callback(events)
            except Exception as error:
                self.barrier.caught(callback, error)
                self._count_failure(fd, callback)

    # --- descriptors whose callback fails again and again -----------------------

    def _count_failure(self, fd: int, callback: Callback) -> None:
        now = self.now()
        if self._callbacks.get(fd, _NOBODY)[0] is not callback:
            return  # the callback's holder has ended
        failing = self._failing.get(fd)
        if failing is None or failing.callback is not callback:
            failing = self._failing[fd] = _Failing(callback, now)
        elif now - failing.since > _WITHIN_S:
            failing.since, failing.count = now, 0
        failing.count += 1
        if failing.count >= _FAILURES:
            self._pause(fd, failing)

    def _pause(self, fd: int, failing: _Failing) -> None:
        failing.paused, failing.count = True, 0
        with contextlib.suppress(OSError):  # closed by a holder that is ending
            self._unregister(fd)
        self.after(failing.pause, partial(self._resume, fd, failing))
        failing.pause = min(2 * failing.pause, _PAUSE_MOST_S)

    def _resume(self, fd: int, failing: _Failing) -> None:
        if self._failing.get(fd) is failing and failing.paused:
            failing.since = self.now()
            self._register(fd, self._callbacks[fd][2])
            failing.paused = False

    def broken(self, _error: Exception) -> None:
        for fd, failing in self._failing.items():
            if failing.paused:
                self.after(failing.pause, partial(self._resume, fd, failing))

    def _is_paused(self, fd: int) -> bool:
        failing = self._failing.get(fd)
        return failing is not None and failing.paused

    def _was_paused(self, fd: int) -> bool:
        """As `_is_paused`, and forget the pause, because the descriptor is forgotten."""
        failing = self._failing.pop(fd, None)
        return failing is not None and failing.paused

    def _patience(self, limit: float | None) -> float:
        if self._soon:
            return 0.0
        self._drop_cancelled()
        until = self._timers[0][0] if self._timers else math.inf
        if self.fast_path is not None and self.fast_path.held and self.fast_path.due is not None:
            until = min(until, self.fast_path.due)
        if math.inf == until:
            return -1.0 if limit is None else limit
        seconds = max(0.0, until - self.now())
        return seconds if limit is None or seconds < limit else limit

    def _drop_cancelled(self) -> None:
        """Drop cancelled timers that are next, or most of the heap: a limit may be an hour, a job a millisecond."""
        timers, cancelled = self._timers, self._cancelled
        if cancelled.count > _CANCELLED and 2 * cancelled.count > len(timers):
            timers[:] = [each for each in timers if each[2].call is not None]
            heapq.heapify(timers)
            cancelled.count = 0
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
            cancelled.count -= 1

    # --- the way to the kernel --------------------------------------------------

    def _open(self) -> None:
        raise NotImplementedError

    def _register(self, fd: int, events: int) -> None:
        raise NotImplementedError

    def _modify(self, fd: int, events: int) -> None:
        raise NotImplementedError

    def _unregister(self, fd: int) -> None:
        raise NotImplementedError

    def _serve(self, patience: float) -> None:
        """Wait, at most *patience* seconds or without end if negative, and serve the ready descriptors."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the reactor's own descriptors; watched descriptors stay open."""
        raise NotImplementedError


class Repeating:
    """Calls *look* after *seconds*, again and again while that returns True or fails; `start` begins it, if it is over."""

    def __init__(self, reactor: Reactor, seconds: float, look: Callable[[], bool]) -> None:
        self._reactor, self.seconds, self._look = reactor, seconds, look
        self._timer = NO_TIMER

    def start(self) -> None:
        if not self._timer.is_set:
            self._timer = self._reactor.after(self.seconds, self._run)

    def stop(self) -> None:
        self._timer.cancel()

    def _run(self) -> None:
        try:
            go_on = self._look()
        except Exception as error:
            self._reactor.barrier.note(self._look, error)
            go_on = True
        if go_on:
            self.start()

    def broken(self, _error: Exception) -> None:
        """For the barrier."""
        self.stop()
        self.start()
