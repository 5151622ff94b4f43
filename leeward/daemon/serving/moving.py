"""
The move of a connection to another process of the daemon: to a shard for fresh jobs, and back for all other requests.

Theory of operation. A connection moves when nothing of it is in flight, so that each request is answered by the process
that has read it. The move is one message with the connection's descriptor and the bytes that weren't served.

The daemon decides about a new connection at its first request that isn't neutral: it moves if that is a fresh job and a
shard has fewer connections, else it stays. A shard moves a connection back at its first request that isn't for a shard.
While jobs are in flight, that request and later ones are set aside, up to a bound, but for those that such a job may
need (to cancel it, to answer its calls, to take its output): they are served.

No byte may be lost. A receive of io_uring that is cancelled may have taken bytes already, so a connection that waits
for its move is read by recv(2), when a duplicate of its descriptor is readable.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.protocols import Protocol
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.wire.frames import frame
from leeward.wire.requests import Execute, KeepResults, Ping, RequestAboutOther, Status

if TYPE_CHECKING:
    from leeward.daemon.serving.connection import Connection

#: Bytes of requests that may be set aside before nothing more is read.
ASIDE = 1 << 20

#: Requests that say nothing about what the client is going to do.
_NEUTRAL = Ping, KeepResults, Status


class OtherProcesses(Protocol):
    """The other processes of the daemon, for a connection. *in_shard*: whether this process is a shard."""

    in_shard: bool

    def wanted(self, fd: int) -> bool:
        """In the daemon: whether a shard is to serve *fd*, which asks for a fresh job; else it counts as our own."""

    def status(self, own: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        """Pass the map of `leeward status` with the shards' counts added to *done*, later. Returns what cancels this."""

    def make_room(self) -> bool:
        """Have a shard close an idle connection soon. Returns False: there is no room yet."""

    def gone(self, fd: int) -> None:
        """The connection *fd* of this process is closed."""

    def pass_on(self, sock: socket.socket, user: int, unread: bytes, keeps: bool) -> bool:
        """Pass the connection on, and return whether that was possible; the caller then closes its descriptor."""


class ServedAt(enum.Enum):
    UNDECIDED = "undecided"  # here, until its first request that isn't neutral
    SETTLED = "settled"      # here, to its end, or it is closed
    MOVING = "moving"        # here, until nothing of it is in flight


def is_fresh(request: object) -> bool:
    """Whether *request* is a fresh job of the default pool, which is what shards serve."""
    return type(request) is Execute and not (
        request.session or request.environment or request.egress or request.profile or request.policy)


class Moving:
    """Where one connection is served. *serving*: a request is being served just now, so it can't move yet."""

    __slots__ = ("_aside", "_duplicate", "_exchange", "_reactor", "place", "serving", "size")

    def __init__(self, reactor: Reactor, exchange: OtherProcesses | None) -> None:
        self._reactor, self._exchange = reactor, exchange
        self.place = ServedAt.SETTLED if exchange is None else ServedAt.UNDECIDED
        self.serving = False
        self._aside: list[bytes | memoryview] = []
        self.size = 0  # bytes of the requests that are set aside
        self._duplicate = -1

    @property
    def on_its_way(self) -> bool:
        return self.place is ServedAt.MOVING

    @property
    def fast(self) -> bool:
        """Whether requests may take the fast path, which doesn't ask where they are to be served."""
        return self.place is ServedAt.SETTLED or (
            self.place is ServedAt.UNDECIDED and self._exchange is not None and self._exchange.in_shard)

    def elsewhere(self, request: object, fd: int, may: Callable[[], bool], here: Callable[[int], bool]) -> bool:
        """
        Whether another process is to serve *request*, and the connection moves there: only if it *may*, as nothing is
        in flight and the user is one for shards; *here* tells whether a number is in flight or kept here.
        """
        exchange = self._exchange
        if exchange is None or self.place is ServedAt.SETTLED:
            return False
        if self.place is ServedAt.MOVING:
            return not (isinstance(request, RequestAboutOther) and here(request.target))
        if exchange.in_shard:
            if is_fresh(request) or isinstance(request, (RequestAboutOther, Ping, KeepResults)):
                return False
        elif isinstance(request, _NEUTRAL):
            return False
        elif not (is_fresh(request) and may() and exchange.wanted(fd)):
            self.place = ServedAt.SETTLED
            return False
        self.place = ServedAt.MOVING
        return True

    def arrived(self) -> None:
        """The connection has come from another process. In the daemon it stays from now on."""
        if self._exchange is None or not self._exchange.in_shard:
            self.place = ServedAt.SETTLED

    def set_aside(self, payload: bytes | memoryview) -> None:
        self._aside.append(payload)
        self.size += len(payload)

    def go(self, connection: Connection) -> None:
        """Pass *connection* on, if it has to go and nothing of it is in flight; if that fails it stays, and is served."""
        if self.place is not ServedAt.MOVING or self.serving:
            return
        if not connection.still:
            self._look_out(connection)
            return
        assert self._exchange is not None
        sock, user, rest, keeps = connection.unserved()
        aside, self._aside, self.size = self._aside, [], 0
        rest = b"".join(map(frame, aside)) + rest
        self.close()
        if self._exchange.pass_on(sock, user, rest, keeps):
            connection.close("moved", moved=True)
        else:
            connection.received(rest)

    def _look_out(self, connection: Connection) -> None:
        """Read *connection* while it waits for its move, unless it has enough to serve, or too much is set aside."""
        if self.size > ASIDE or connection.crowded:
            self._look_away()
        elif self._duplicate < 0:
            self._duplicate = os.dup(connection.sock.fileno())
            self._reactor.watch(self._duplicate, READ, connection.read_on)

    def _look_away(self) -> None:
        if self._duplicate >= 0:
            self._reactor.forget(self._duplicate)
            os.close(self._duplicate)
            self._duplicate = -1

    def close(self) -> None:
        """Wait for no move any more. May be called repeatedly."""
        self.place = ServedAt.SETTLED
        self._look_away()
