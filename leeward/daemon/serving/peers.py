"""
Who is served: users, their groups, refusals, and the owner's clients that wait a moment for a place.

SO_PEERCRED and SO_PEERGROUPS are in unix(7).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import partial

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.reactor import Reactor, Repeating
from leeward.daemon.pool.quotas import Quotas
from leeward.daemon.telling.log import log
from leeward.wire.answers import encode_refusal

#: getsockopt(2) for a peer's supplementary groups, Linux 4.13; the socket module doesn't have its name.
_SO_PEERGROUPS = 59
#: Bytes of an answer that the socket module takes: 256 groups.
_MOST_GROUPS = 1024


@dataclass(frozen=True, slots=True)
class ServedUsers:
    """The users that a daemon serves: its own, root, and members of *group* as guests; quotas are those of its start."""

    uid: int
    group: int | None = None
    quotas: Quotas = field(default_factory=Quotas)


def admitted(peer: int, own: int, group: int | None = None, groups: Callable[[], tuple[int, ...]] = tuple) -> bool:
    """Whether the daemon of user *own* serves user *peer*: its own user, root, and members of *group*."""
    return peer in (own, 0) or (group is not None and group in groups())


def groups_of(sock: socket.socket, gid: int) -> tuple[int, ...]:
    """Return the groups that the process had when it connected *sock*; only its primary group if there are too many."""
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
    except OSError as error:
        log.warning("groups of a peer can't be told", error=error.strerror)
        return (gid,)
    return (gid, *struct.unpack(f"{len(more) // 4}I", more))


def say_no(sock: socket.socket, kind: str, message: str) -> None:
    """Send a refusal with id 0, if the peer is there and *sock*, which doesn't block, has room for it."""
    try:
        sock.send(encode_refusal(0, kind, message))
    except OSError:
        pass  # it is gone, or doesn't read; it is closed all the same


#: Clients that wait at once; descriptors.PASSING has room for them.
SEATS = 4
#: Seconds that a client waits, at most: more than a silent connection may keep its place, plus one interval of checks.
WAIT_S = 0.5
#: Seconds between checks for a place.
_LOOK_S = 0.05


@dataclass(slots=True)
class WaitingClient:
    """A client of the owner that waits for a place, until a time by the reactor's clock."""

    sock: socket.socket
    pid: int
    uid: int
    until: float = 0.0


class WaitingClients:
    """
    The owner's clients that came while all places were taken. *admit* serves one if there is a place, and says whether.

    They aren't refused at once, as a new connection loses its place only when it has sent nothing for a quarter of a
    second: a burst of silent ones could take all places, and every client, the owner's too, would be refused for that
    time.
    """

    def __init__(self, reactor: Reactor, admit: Callable[[WaitingClient], bool],
                 refuse: Callable[[WaitingClient], None]) -> None:
        self._reactor, self._admit, self._refuse = reactor, admit, refuse
        self._waiting: list[WaitingClient] = []
        self._looks = Repeating(reactor, _LOOK_S, self._look)

    def wait(self, client: WaitingClient) -> None:
        """Let *client* wait. If too many wait, the first one that has sent nothing is refused, or *client* itself."""
        client.sock.setblocking(False)
        client.until = self._reactor.now() + WAIT_S
        self._waiting.append(client)
        if len(self._waiting) > SEATS:
            silent = (each for each in self._waiting if not asks(each.sock))
            gone = next(silent, client)
            self._waiting.remove(gone)
            self._refuse(gone)
        self._looks.start()

    def clear(self) -> list[WaitingClient]:
        waiting, self._waiting = self._waiting, []
        self._looks.stop()
        return waiting

    def _look(self) -> bool:
        """Admit waiting clients, first those that have sent something."""
        now = self._reactor.now()
        first = sorted(self._waiting, key=lambda each: not asks(each.sock))
        self._reactor.barrier.steps(*(partial(self._serve, client, now) for client in first))
        return bool(self._waiting)

    def _serve(self, client: WaitingClient, now: float) -> None:
        self._waiting.remove(client)
        if _gone(client.sock):
            self._reactor.closer.close(client.sock)
            return
        if self._admit(client):
            return
        if now >= client.until:
            self._refuse(client)
        else:
            self._waiting.append(client)


def asks(sock: socket.socket) -> bool:
    """Whether the kernel has unread bytes of the client."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def _gone(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
