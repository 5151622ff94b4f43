"""
The daemon's event loop: descriptors and deadlines, one thread, no more.

Runs in:   the daemon, and `leeward run`.
Why ours:  one round trip by asyncio's streams costs 46 us, by epoll 15;
           docs/decisions/ has the figures.

This one is the reference, in Python over epoll. The daemon usually has the one of native.py, which
does the same by the shim, and more.
"""

from __future__ import annotations

import heapq
import itertools
import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from leeward.worker.express import Express
from leeward.worker.stream import READ, WRITE, PlainStream, Receiver, Stream

__all__ = ["GONE", "READ", "WRITE", "Reactor", "Timer"]

GONE = select.EPOLLHUP | select.EPOLLERR

Callback = Callable[[int], None]


_NOBODY = (None, 0)
#: Connections accepted in a row.
_TURN_ACCEPTS = 64


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

    Attributes:
        express: the short way of short jobs, where there is one.
        refused: why there is no io_uring though it was wanted; else "".

    Descriptors stay the caller's: `forget` one before closing it. Times are
    CLOCK_MONOTONIC seconds, so a change of the wall clock moves nothing.
    """

    def __init__(self) -> None:
        self._callbacks: dict[int, tuple[Callback, int]] = {}  # and the turn since when it is watched
        self._turns = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._count = itertools.count()
        self._stopped = False
        self.express: Express | None = None
        self.refused = ""
        self._open()

    @property
    def transport(self) -> str:
        """
        How it talks to clients: "socket" or "uring".
        """
        return "socket"

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """
        Call *callback(events)* whenever *fd* is ready; level-triggered.
        """
        self._register(fd, events)
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
            self._unregister(fd)

    def accept(self, listener: socket.socket, met: Callable[[socket.socket], None],
               failed: Callable[[OSError], None]) -> None:
        """
        Call *met* with each new connection, until *failed* is called or the listener is forgotten.
        """
        def some(_events: int) -> None:
            for _ in range(_TURN_ACCEPTS):
                if listener.fileno() not in self._callbacks:
                    return
                try:
                    sock, _address = listener.accept()
                except BlockingIOError:
                    return
                except ConnectionAbortedError:
                    continue
                except OSError as error:
                    self.forget(listener.fileno())
                    failed(error)
                    return
                met(sock)
        self.watch(listener.fileno(), READ, some)

    def stream(self, sock: socket.socket, receiver: Receiver) -> Stream:
        """
        Let *receiver* have what comes by *sock*, which doesn't block and stays the caller's.
        """
        return PlainStream(self, sock, receiver)

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
        self._serve(self._patience(limit))
        now = time.monotonic()
        if self.express is not None:
            self.express.settle(math.inf if self._soon or (self._timers and self._timers[0][0] <= now) else now)
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _call(self, fd: int, events: int) -> None:
        # One served earlier in this turn may have forgotten it, or have closed it and watch
        # another by the same number now, about which *events* says nothing.
        callback, since = self._callbacks.get(fd, _NOBODY)
        if callback is not None and since < self._turns:
            callback(events)

    def _patience(self, limit: float | None) -> float:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        waits = [] if limit is None else [limit]
        if self._timers:
            waits.append(max(0.0, self._timers[0][0] - time.monotonic()))
        if self.express is not None and self.express.due is not None:
            waits.append(max(0.0, self.express.due - time.monotonic()))
        return min(waits, default=-1.0)

    def close(self) -> None:
        """
        Close what it has of the kernel; watched descriptors stay open.
        """
        self._epoll.close()

    # --- the way to the kernel, which native.py replaces ------------------------

    def _open(self) -> None:
        self._epoll = select.epoll()

    def _register(self, fd: int, events: int) -> None:
        self._epoll.register(fd, events)

    def _unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def _serve(self, patience: float) -> None:
        """
        Wait, at most *patience* seconds or without end if negative, and serve what is ready.
        """
        ready = self._epoll.poll(patience)
        self._turns += 1
        for fd, events in ready:
            self._call(fd, events)
