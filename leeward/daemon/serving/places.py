"""
The owner's clients that were accepted while all places are taken: they wait a moment for a place.

Runs in:   the daemon, on the reactor's one thread.

They aren't refused at once for this reason: a new connection loses its place only when it has sent nothing for a
quarter of a second. So a burst of silent connections could take all places, that of an idle client of the owner
included, and every client that connected then, the owner's too, would be refused for that time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from leeward.dataclass import dataclass
from leeward.loop.reactor import Reactor, Timer

#: Clients that wait at once; descriptors.PASSING has room for them.
SEATS = 4
#: Seconds that a client waits, at most: more than a silent connection may keep its place, plus one interval of checks.
WAIT_S = 0.5
#: Seconds between checks for a place.
_LOOK_S = 0.05


@dataclass(slots=True)
class WaitingClient:
    """
    A client of the owner that waits for a place.

    Attributes:
        until: the time at which the client is refused, by the reactor's clock.
    """

    sock: socket.socket
    pid: int
    uid: int
    until: float = 0.0


class WaitingClients:
    """
    The clients that wait for a place.

    Args:
        admit: serves a client if there is a place now, and returns whether there was one.
        refuse: refuses a client.
    """

    def __init__(self, reactor: Reactor, admit: Callable[[WaitingClient], bool],
                 refuse: Callable[[WaitingClient], None]) -> None:
        self._reactor, self._admit, self._refuse = reactor, admit, refuse
        self._waiting: list[WaitingClient] = []
        self._timer: Timer | None = None

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
        self._later()

    def clear(self) -> list[WaitingClient]:
        """Remove and return all waiting clients; the caller owns them."""
        waiting, self._waiting = self._waiting, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting

    def _later(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._reactor.after(_LOOK_S, self._look)

    def _look(self) -> None:
        """Admit waiting clients, first those that have sent something."""
        self._timer = None
        now = self._reactor.now()
        first = sorted(self._waiting, key=lambda each: not asks(each.sock))
        self._reactor.barrier.steps(*(partial(self._serve, client, now) for client in first))
        self._later()

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

    def broken(self, _error: Exception) -> None:
        """For the barrier: a check has failed. The next check follows as usual."""
        self._later()


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
