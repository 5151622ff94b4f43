"""
Sends messages to a process of the daemon's without a wait.

Owns: copies of descriptors that wait to be sent. The socket is the caller's.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, WRITE, Reactor, Timer

#: Messages that may wait for the peer.
MOST_WAITING = 4096


class MessageSender:
    """
    The sending half of a SOCK_SEQPACKET socket that doesn't block, and that the caller watches for READ. *failed* is
    called with the reason when no more can be sent, also if the peer takes nothing for *stuck_s*: a bound method of the
    socket's holder, which calls `close` there.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket, failed: Callable[[str], None], stuck_s: float) -> None:
        self._reactor, self._sock, self._failed, self._stuck_s = reactor, sock, failed, stuck_s
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._stuck = NO_TIMER
        self._open = True

    def send(self, data: bytes, fds: Sequence[int] = ()) -> bool:
        """
        Send one message now, or as soon as the peer takes it. Returns False if none can be sent; OSError if it has to
        wait, and its descriptors, which stay the caller's, can't be copied.
        """
        if not self._open:
            return False
        if not self._waiting and self._sent(data, fds):
            return True
        return self._queued(data, fds)

    def flush(self) -> None:
        """Send what waits: the socket is ready for WRITE."""
        while self._waiting:
            data, fds = self._waiting[0]
            if not self._sent(data, fds):
                return
            self._waiting.popleft()
            in_any_case(*(partial(os.close, fd) for fd in fds))
            self._stuck.cancel()
            if self._waiting:
                self._stuck = self._limit()
        if self._open:
            self._reactor.change(self._sock.fileno(), READ)

    def close(self) -> None:
        """Forget what waits; `send` returns False from now on. Call it before the socket is closed; repeatedly is fine."""
        self._open = False
        waiting, self._waiting = self._waiting, deque()
        in_any_case(self._stuck.cancel, *(partial(os.close, fd) for _, fds in waiting for fd in fds))

    def _queued(self, data: bytes, fds: Sequence[int]) -> bool:
        if not self._open:  # the attempt to send has failed
            return False
        if len(self._waiting) >= MOST_WAITING:
            self._failed("it takes no messages")
            return False
        self._waiting.append((data, _copies(fds)))
        if not self._stuck.is_set:
            self._reactor.change(self._sock.fileno(), READ | WRITE)
            self._stuck = self._limit()
        return True

    def _limit(self) -> Timer:
        # Of the holder's method, so that an exception of it ends the holder (loop/barrier.py).
        return self._reactor.after(self._stuck_s, partial(self._failed, f"it took no messages for {self._stuck_s:g} s"))

    def _sent(self, data: bytes, fds: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._sock, [data], list(fds), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self._failed(str(error.strerror))
            return False
        return True


def _copies(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        copies.extend(map(os.dup, fds))  # what was made is there, also where one fails
    except OSError:
        in_any_case(*(partial(os.close, fd) for fd in copies))
        raise
    return copies
