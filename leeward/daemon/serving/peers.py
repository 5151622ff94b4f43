"""
Decides which users the daemon serves, and logs the users that it refuses.

Runs in:   the daemon.
Source:    unix(7), SO_PEERCRED and SO_PEERGROUPS
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from leeward.daemon.telling.events import EventBook
from leeward.daemon.telling.log import log
from leeward.daemon.telling.metrics import Metrics
from leeward.dataclass import dataclass, field
from leeward.pool.quotas import Quotas
from leeward.protocols import Protocol
from leeward.wire.answers import encode_refusal

#: getsockopt(2) for a peer's supplementary groups, Linux 4.13; the socket module doesn't have its name.
_SO_PEERGROUPS = 59
#: Bytes of an answer that the socket module takes: 256 groups.
_MOST_GROUPS = 1024


@dataclass(frozen=True, slots=True)
class ServedUsers:
    """
    The users that a daemon serves.

    Attributes:
        uid: the daemon's own user, who is served like root.
        group: the group whose members are served as guests.
        quotas: the quotas of the users, as of the daemon's start.
    """

    uid: int
    group: int | None = None
    quotas: Quotas = field(default_factory=Quotas)


def admitted(peer: int, own: int, group: int | None = None, groups: Callable[[], tuple[int, ...]] = tuple) -> bool:
    """
    Whether the daemon of user *own* serves user *peer*: its own user, root, and members of *group*.

    Args:
        groups: returns the peer's groups.
    """
    return peer in (own, 0) or (group is not None and group in groups())


def groups_of(sock: socket.socket, gid: int) -> tuple[int, ...]:
    """Return the groups that the process had when it connected *sock*; only its primary group if there are too many."""
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
    except OSError as error:
        log.warning("groups of a peer can't be told", error=error.strerror)
        return (gid,)
    return (gid, *struct.unpack(f"{len(more) // 4}I", more))


class RefusalObserver(Protocol):
    """
    Counts and records refusals.

    Attributes:
        metrics: where requests are counted.
        events: the last ends of each user's jobs and sandboxes.
    """

    @property
    def metrics(self) -> Metrics: ...
    @property
    def events(self) -> EventBook: ...
    def request_refused(self, kind: str, user: int, count: int = 1) -> None: ...
    def peer_refused(self, reason: str, user: int, pid: int) -> None: ...


class Unwatched:
    """Logs refused peers, and counts nothing."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.events = EventBook()

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        return

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        log.warning("peer refused", reason=reason, user=user, pid=pid)


def say_no(sock: socket.socket, kind: str, message: str) -> None:
    """Send a refusal with id 0, if the peer is there and *sock*, which doesn't block, has room for it."""
    try:
        sock.send(encode_refusal(0, kind, message))
    except OSError:
        pass  # it is gone, or doesn't read; it is closed all the same
