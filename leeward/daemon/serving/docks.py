"""
Docks: sockets on which a client leaves descriptors of its folders.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client. A connection's own socket takes no descriptor at all. The opener receives those of a dock,
           in one message, for the one request that names the dock. The daemon itself never has one of them open.
"""

from __future__ import annotations

import os
import socket

from leeward.errors import BadRequest, Busy

#: Docks of one connection at once, at most.
MOST = 2


class Docks:
    """
    The docks of one connection.
    """

    def __init__(self) -> None:
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
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Busy(f"no dock can be made: {error.strerror}") from None
        self._last += 1
        self._docks[self._last] = here
        return self._last, there.detach()

    def take(self, number: int) -> int:
        """
        Remove a dock and return the daemon's end, which the caller owns from now on.

        Raises:
            BadRequest: there is no dock of that number.
        """
        dock = self._docks.pop(number, None)
        if dock is None:
            raise BadRequest(f"this connection has no dock {number}: mounts need one for each sandbox_open")
        return dock.detach()

    def close(self) -> None:
        while self._docks:
            os.close(self._docks.popitem()[1].detach())
