"""
Docks: sockets on which a client leaves descriptors of its folders.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client. A connection's own socket takes no descriptor at all. The opener receives those of a dock,
           in one message, for the one request that names the dock. The daemon itself never has one of them open, and
           doesn't close those that stay in a dock: how long that takes is up to the client (loop/closing.py).

A dock is a stream, in which a read of no bytes is the end; a client can't put an empty message before a descriptor.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from leeward.errors import BadRequest, Busy
from leeward.loop.closing import guarded

#: Docks of one connection at once, at most.
MOST = 2


class Docks:
    """
    The docks of one connection.

    Args:
        own: adds a number, perhaps negative, to the client's large results that wait: docks have their descriptors.
        close: closes a socket that may hold descriptors of a client, without waiting for them.
    """

    def __init__(self, own: Callable[[int], None], close: Callable[[socket.socket], None]) -> None:
        self._own, self._close = own, close
        self._last = 0
        self._docks: dict[int, socket.socket] = {}

    def make(self) -> tuple[int, int]:
        """
        Make a dock. Returns its number and the client's end, which the caller owns.

        Raises:
            Busy: the connection has too many docks, or no descriptor is left.
        """
        if len(self._docks) >= MOST:
            raise Busy(f"this connection has {MOST} docks already")
        try:
            here, there = socket.socketpair()
        except OSError as error:
            raise Busy(f"no dock can be made: {error.strerror}") from None
        guarded(here)
        self._last += 1
        self._docks[self._last] = here
        self._own(1)
        return self._last, there.detach()

    def take(self, number: int) -> socket.socket:
        """
        Remove a dock and return the daemon's end, which the caller owns from now on.

        Raises:
            BadRequest: there is no dock of that number.
        """
        dock = self._docks.pop(number, None)
        if dock is None:
            raise BadRequest(f"this connection has no dock {number}: mounts need one for each sandbox_open")
        self._own(-1)
        return dock

    def close(self) -> None:
        while self._docks:
            self._own(-1)
            self._close(self._docks.popitem()[1])
