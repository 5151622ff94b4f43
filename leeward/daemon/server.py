"""
The socket server: accepts clients, and has what all of them share.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.daemon.config import Config
from leeward.daemon.connection import Connection
from leeward.daemon.home import Jobs, Share
from leeward.daemon.log import log
from leeward.daemon.metrics import Metrics
from leeward.daemon.peers import Unwatched, Watcher, admitted, credentials, groups_of
from leeward.pool.quotas import NONE, Quotas
from leeward.wire.messages import (
    encode_refusal,
)
from leeward.worker.reactor import Reactor, Timer

#: Seconds between sweeps, and so the grain of the connections' deadlines.
SWEEP_S = 1.0
#: Seconds without accept(2) after it ran out of descriptors.
_PAUSE_S = 0.1



class Server:
    """
    Serves clients on listening sockets, or on sockets that it is given.

    Args:
        jobs: takes what clients want to have run.
        status: what `leeward status` shows.
        shut_down: called when a client asks the daemon to end.
        uid: whom to serve, beside root.
        group: whose members to serve as well, as guests.
        quotas: how many connections each user may have.
        metrics: where requests are counted.
        watcher: is told who and what is refused.
    """

    def __init__(self, reactor: Reactor, jobs: Jobs, config: Config, *, status: Callable[[], Mapping[str, Any]],
                 shut_down: Callable[[], None], uid: int, group: int | None = None, quotas: Quotas | None = None,
                 metrics: Metrics | None = None, watcher: Watcher | None = None) -> None:
        self.reactor, self.jobs, self.config = reactor, jobs, config
        self.status, self.shut_down, self.uid, self.group = status, shut_down, uid, group
        self.quotas = Quotas() if quotas is None else quotas
        self.metrics = Metrics() if metrics is None else metrics
        self.watcher: Watcher = Unwatched() if watcher is None else watcher
        self._armed_with = config.limits  # the short way runs jobs with these: nobody limits its runners anew
        self.as_armed = True
        self.shares: dict[int, Share] = {}
        self.connections: dict[int, Connection] = {}
        self.held = 0    # bytes of unfinished frames
        self.arenas = 0  # memory files, and large frames, in parcels that aren't sent
        self.requests = 0  # bytes of request arenas
        self._listener: socket.socket | None = None
        self._parted = self._closed = False
        self._sweep: Timer | None = None

    def listen(self, listener: socket.socket) -> None:
        """
        Accept clients from *listener*, which stays the caller's.
        """
        listener.setblocking(False)
        self._listener = listener
        self.reactor.accept(listener, self._meet, self._cannot_accept)

    def stop_listening(self) -> None:
        """
        Accept nobody any more.
        """
        if self._listener is not None:
            self.reactor.forget(self._listener.fileno())
            self._listener = None

    def _cannot_accept(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOMEM: the client stays in the backlog. Without the pause
        # a listener that is readable and can't be read would spin.
        log.warning("cannot accept", error=error.strerror)
        self.reactor.after(_PAUSE_S, self._resume)

    def _meet(self, sock: socket.socket) -> None:
        """
        Serve who has just connected, or turn him away.
        """
        if self._closed:
            sock.close()
            return
        pid, uid, gid = credentials(sock)
        share = self.shares.get(uid)
        most = self.config.max_connections
        mine = self.quotas.of(uid).connections
        if not admitted(uid, self.uid, self.group, partial(groups_of, sock, gid)):
            members = "" if self.group is None else f", members of group {self.group}"
            kind, why = "forbidden", f"this daemon serves user {self.uid}{members} and root, not user {uid}"
        elif len(self.connections) >= most:
            kind, why = "busy", f"{most} connections are open already"
        elif mine and share is not None and share.connections >= mine:
            kind, why = "busy", f"user {uid} has {mine} connections open already, all that he may have"
        else:
            connection = self.adopt(sock, uid)
            if self._parted:  # accepted in the moment of parting: the last one that is ours
                connection.part()
            return
        self._turn_away(sock, kind, why)
        self.watcher.peer_refused(kind, uid, pid)

    def _resume(self) -> None:
        if self._listener is not None:
            self.reactor.accept(self._listener, self._meet, self._cannot_accept)

    def _turn_away(self, sock: socket.socket, kind: str, message: str) -> None:
        sock.setblocking(False)
        try:
            sock.send(encode_refusal(0, kind, message))
        except OSError:
            pass  # it is gone, or never reads; either way it is away
        sock.close()

    def adopt(self, sock: socket.socket, user: int | None = None) -> Connection:
        """
        Serve a connected client, whoever it is. The socket is the server's from now on.

        Args:
            user: the peer's uid; the daemon's own if None.
        """
        sock.setblocking(False)
        user = self.uid if user is None else user
        share = self.shares.get(user)
        if share is None:
            share = self.shares[user] = Share(user, guest=user not in (self.uid, 0), free=self.quotas.of(user) == NONE)
        share.connections += 1
        connection = Connection(self, sock, share)
        self.connections[sock.fileno()] = connection
        if self._sweep is None:
            self._sweep = self.reactor.after(SWEEP_S, self._look)
        return connection

    def govern(self, quotas: Quotas) -> None:
        """
        Hold users to *quotas*, and jobs to what `config` says, from now on.
        """
        self.quotas = quotas
        self.as_armed = self.config.limits == self._armed_with
        for share in self.shares.values():
            share.free = quotas.of(share.user) == NONE
        for connection in list(self.connections.values()):
            connection.reconsider()

    def _look(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for connection in list(self.connections.values()):
            connection.look(now)
        if self.connections:
            self._sweep = self.reactor.after(SWEEP_S, self._look)

    @property
    def flushed(self) -> bool:
        """
        Whether no request waits and every reply has been taken by the kernel.
        """
        return not any(connection.unfinished for connection in self.connections.values())

    def part(self) -> None:
        """
        Accept nobody any more, and let the clients go over to who comes after us.
        """
        self.stop_listening()
        self._parted = True
        for connection in list(self.connections.values()):
            connection.part()

    def close(self) -> None:
        """
        Close every connection; what they asked for is cancelled.
        """
        self.stop_listening()
        self._closed = True
        for connection in list(self.connections.values()):
            connection.close("the daemon ends")
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def gone(self, fd: int) -> None:
        """
        For a connection: it is closed.
        """
        del self.connections[fd]
