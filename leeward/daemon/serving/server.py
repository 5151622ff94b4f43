"""The socket server: accepts clients, and holds the state that all of them share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward._native import last_use
from leeward.daemon.config import Config
from leeward.daemon.descriptors import RESULTS, Shares, owners
from leeward.daemon.loop.reactor import Reactor, Repeating
from leeward.daemon.pool.asks import AskBook
from leeward.daemon.pool.broker import Answered
from leeward.daemon.pool.egress_record import EgressRecord
from leeward.daemon.pool.quotas import NONE, Quotas
from leeward.daemon.run.report import Arena
from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes
from leeward.daemon.sandboxes.terms import Launch, SandboxTerms
from leeward.daemon.serving import inbox, peers
from leeward.daemon.serving.connection import Connection
from leeward.daemon.serving.inbox import RequestArena
from leeward.daemon.serving.parcel import FILES, PART_OF_WATCHES, LentFiles
from leeward.daemon.serving.rounds import CONNECTING, GUEST_SHARE, Rounds, Share
from leeward.daemon.telling.log import log
from leeward.daemon.telling.metrics import Metrics
from leeward.daemon.telling.observer import Observer
from leeward.errors import BadRequest, Busy
from leeward.spec.peers import credentials, is_outside, said_of_peer
from leeward.spec.pool_key import PoolKey

if TYPE_CHECKING:
    from leeward.daemon.pool.branches import Branch
    from leeward.daemon.pool.pool import Pool

#: Seconds between sweeps, and so the precision of the connections' deadlines.
SWEEP_S = 1.0
#: Seconds without accept(2) after it ran out of descriptors.
_PAUSE_S = 0.1
#: Seconds between two searches of all connections for idle ones.
_LOOK_S = 0.1
#: Seconds after which a client that reads nothing of its large results may lose its connection, if their bound is reached.
LAZY_S = 1.0

#: Takes the lease, the request, the descriptors, the user, and the callback for the answer; returns what cancels it.
Fetch = Callable[[int, dict[str, object], Sequence[int], int, Answered], Callable[[], None]]


def no_fetch(*_: object) -> Callable[[], None]:
    """The `fetch` of a server without a broker."""
    raise Busy("there is no broker")


def no_place(key: PoolKey) -> Branch:
    """The `place` of a server that has one pool."""
    raise BadRequest(f"this daemon has no {key.name}")


def _own_sandboxes(sock: socket.socket, pid: int) -> tuple[str, str] | None:
    """
    Why a process of the daemon's own user isn't served: it is in one of the daemon's sandboxes, and has connected by a name
    of the socket that came into a shown folder later. Who has this socket commands the locks.
    """
    try:
        outside = said_of_peer(sock, pid, is_outside)
    except OSError:
        return "busy", "no descriptor is left to look at the client's process"
    return None if outside else ("forbidden", "this daemon serves no process of its own sandboxes, nor one that has ended")


class Server:
    """
    Serves clients on a listening socket, or on sockets that it is given. *place* returns what serves requests for
    another pool than *jobs*, and raises if there is none; without *shares* only the configuration bounds connections.

    `held` are bytes of unfinished frames of all connections, `requests` those of arenas, `arenas` memory files and
    large frames in unsent parcels, at most `most_results`. `as_armed`: jobs get the limits with which their runners
    were armed.
    """

    def __init__(self, reactor: Reactor, jobs: Pool, config: Config, *, status: Callable[[], Mapping[str, Any]],
                 shut_down: Callable[[bool], None], users: peers.ServedUsers, watcher: Observer | None = None,
                 shares: Shares | None = None,
                 terms: Callable[[], SandboxTerms] = lambda: SandboxTerms(Launch()),
                 place: Callable[[PoolKey], Branch] = no_place) -> None:
        self.reactor, self.jobs, self.config = reactor, jobs, config
        self.status, self.shut_down, self.place = status, shut_down, place
        self.uid, self.group, self.quotas = users.uid, users.group, users.quotas
        self.watcher = Observer(reactor, Metrics()) if watcher is None else watcher
        self._room = shares
        self.most_results = RESULTS if shares is None else shares.results
        self._lent: dict[int, LentFiles] = {}
        self.most_lent = min(FILES, last_use.most() // PART_OF_WATCHES)
        self.desk: LiveSandboxes = LiveSandboxes(reactor, jobs, terms, own=self._own, book=self.watcher.events,
                         reserve=lambda user: max(self.config.folder_reserve, self.quotas.of(user).folder_reserve),
                         snapshots=lambda user: self.quotas.of(user).snapshot_memory or self.config.snapshot_memory,
                         snapshot_idle=lambda: self.config.snapshot_idle,
                         leaves=lambda user, own, left: self.quotas.leaves(user, own, left))
        self.egress = EgressRecord()
        self.asks: AskBook = AskBook(reactor, self.egress)
        self.fetch: Fetch = no_fetch
        self._idle: list[Connection] = []  # connections that may be closed for the owner's, the next one last
        self._looked = self._looked_for_lazy = 0.0
        self.rounds = Rounds(reactor)
        self._waiting = peers.WaitingClients(reactor, self._admit, self._refuse)
        self._starved = False  # the last accept(2) found no descriptor
        self._armed_with = config.limits  # the limits of jobs on the fast path, which doesn't change those of a runner
        self.as_armed = True
        self.shares: dict[int, Share] = {}
        self.connections: dict[int, Connection] = {}
        self.held = self.arenas = self.requests = 0
        self._listener: socket.socket | None = None
        self._parted = self._all_parted = self._closed = False
        self._sweep = Repeating(reactor, SWEEP_S, self._look)

    def listen(self, listener: socket.socket) -> None:
        """Accept clients from *listener*, which stays the caller's."""
        listener.setblocking(False)
        self._listener = listener
        self.reactor.accept(listener, self._meet, self._cannot_accept)

    def _own(self) -> list[str]:
        """Paths of the host that belong to the daemon."""
        name = "" if self._listener is None else self._listener.getsockname()
        return [os.path.realpath(name)] if isinstance(name, str) and name.startswith("/") else []

    def stop_listening(self) -> None:
        if self._listener is not None:
            self.reactor.forget(self._listener.fileno())
            self._listener = None

    def _cannot_accept(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOMEM: the client stays in the backlog. Without the pause
        # a listener that is readable and can't be read would spin.
        self._pause()
        if not self._starved:  # once, however long it lasts
            self._starved = True
            log.warning("cannot accept", error=error.strerror)

    def _pause(self) -> None:
        if self._listener is not None:
            self.reactor.forget(self._listener.fileno())
        self.reactor.after(_PAUSE_S, self._resume)

    def _meet(self, sock: socket.socket) -> None:
        if self._closed:
            self.reactor.closer.close(sock)
            return
        if self.reactor.closer.full:  # with sockets of clients that passed descriptors: new clients wait in the backlog
            self._pause()
        self._starved = False
        pid, uid, gid = credentials(sock)
        self.rounds.charge(self.rounds.budget(uid, uid not in (self.uid, 0)), CONNECTING)
        client = peers.WaitingClient(sock, pid, uid)
        if not peers.admitted(uid, self.uid, self.group, partial(peers.groups_of, sock, gid)):
            members = "" if self.group is None else f", members of group {self.group}"
            self._turn_away(client, "forbidden",
                            f"this daemon serves user {self.uid}{members} and root, not user {uid}")
        elif uid == self.uid and (refusal := _own_sandboxes(sock, pid)):
            self._turn_away(client, *refusal)
        elif self._all_its_own(uid):
            self._refuse(client)
        elif not self._admit(client):
            if uid in (0, self.uid) and not self._parted:
                self._waiting.wait(client)
            else:
                self._refuse(client)

    def _most(self, uid: int) -> int:
        """How many connections there may be at once if the new one is this user's."""
        return self.places if uid in (0, self.uid) else self.places - owners(self.places)

    def _rest_is_others(self, uid: int) -> int:
        """How many connections the guest has, if fewer are free, so that some are left for each later guest; else 0."""
        share = self.shares.get(uid)
        mine = 0 if share is None or not share.guest else share.connections
        return mine if mine >= self._most(uid) - len(self.connections) else 0

    def _all_its_own(self, uid: int) -> int:
        """The number of connections that this user may have, if the user has them all; otherwise 0."""
        mine, share = self.quotas.of(uid).connections, self.shares.get(uid)
        return mine if mine and share is not None and share.connections >= mine else 0

    def _admit(self, client: peers.WaitingClient) -> bool:
        """Serve *client*, if there is a place for it or one can be made."""
        uid = client.uid
        if self._all_its_own(uid) or self._rest_is_others(uid) or (
                len(self.connections) >= self._most(uid) and not (uid in (0, self.uid) and self.make_room())):
            return False
        self._serve(client)
        return True

    def _serve(self, client: peers.WaitingClient) -> None:
        self._part_too(self.adopt(client.sock, client.uid))

    def _part_too(self, connection: Connection) -> None:
        if self._parted:  # it came while the daemon parts from its clients: serve it as well
            connection.part(self._all_parted)

    def _refuse(self, client: peers.WaitingClient) -> None:
        mine, part = self._all_its_own(client.uid), self._rest_is_others(client.uid)
        if mine:
            why = f"user {client.uid} has {mine} connections open already, the most that one user may have"
        elif part and len(self.connections) < self._most(client.uid):
            why = f"user {client.uid} has {part} connections open already, and the last ones are kept for other users"
        else:
            why = f"{self._most(client.uid)} connections are open already{self._why_so_few()}"
        self._turn_away(client, "busy", why)

    @property
    def places(self) -> int:
        """Connections that there may be at once, by the configuration and the descriptors."""
        asked = self.config.max_connections
        return asked if self._room is None else min(asked, self._room.connections)

    @property
    def most_requests(self) -> int:
        """Bytes of request arenas that there may be."""
        return inbox.TOTAL if self._room is None else min(inbox.TOTAL, self._room.arenas * RequestArena.size)

    def _why_so_few(self) -> str:
        if self._room is None or self.places == self.config.max_connections:
            return ""
        return f", all that a limit of {self._room.limit} descriptors leaves room for"

    def make_room(self) -> bool:
        """Close the longest idle connection, a guest's before the owner's, so that the owner can always connect."""
        now = self.reactor.now()
        if not self._idle and now > self._looked + _LOOK_S:  # a client that connects in a loop causes one search only
            self._looked = now
            idle = [connection for connection in self.connections.values() if connection.idle(now)]
            self._idle = sorted(idle, key=lambda connection: (connection.guest, connection.idle(now)))
        while self._idle:
            connection = self._idle.pop()
            if connection.idle(now) and not peers.asks(connection.sock):
                connection.close("it made room for the owner")
                return True
        return False

    def close_laziest(self, fd: int) -> bool:
        """
        Close the connection but *fd* that left large results unread for longest, from LAZY_S on. Returns if there was
        one.
        """
        now = self.reactor.now()
        if now <= self._looked_for_lazy + _LOOK_S:  # a client that asks in a loop causes one search only
            return False
        self._looked_for_lazy = now
        others = [each for number, each in self.connections.items() if number != fd]
        laziest = max(others, key=lambda each: each.lazy(now), default=None)
        if laziest is None or laziest.lazy(now) < LAZY_S:
            return False
        laziest.close("its client reads no results, of which too many wait")
        self._looked_for_lazy = 0.0  # there may be another one
        return True

    def _resume(self) -> None:
        if self.reactor.closer.full:
            self.reactor.after(_PAUSE_S, self._resume)
        elif self._listener is not None and not self.reactor.watches(self._listener.fileno()):
            self.reactor.accept(self._listener, self._meet, self._cannot_accept)

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback of the server has failed. Repeat the steps that it may have left undone."""
        if not self._closed:
            self.reactor.after(_PAUSE_S, self._resume)
            self._sweep.start()

    def _turn_away(self, client: peers.WaitingClient, kind: str, message: str) -> None:
        sock = client.sock
        sock.setblocking(False)
        peers.say_no(sock, kind, message)
        self.reactor.closer.close(sock)
        self.watcher.peer_refused(kind, client.uid, client.pid)

    def adopt(self, sock: socket.socket, user: int | None = None) -> Connection:
        """Serve a connected client, *user*'s or the daemon's own, unchecked; the socket is the server's from now on."""
        sock.setblocking(False)
        user = self.uid if user is None else user
        share = self.join(user)
        try:
            connection = Connection(self, sock, share)
        except BaseException:
            self.part_from(share)
            raise
        self.connections[sock.fileno()] = connection
        self._sweep.start()
        return connection

    def join(self, user: int) -> Share:
        """Count one more connection of *user*, until `part_from`."""
        share = self.shares.get(user)
        if share is None:
            guest = user not in (self.uid, 0)
            share = self.shares[user] = Share(user, guest, self.rounds.budget(user, guest),
                                              free=self.quotas.of(user) == NONE)
        share.connections += 1
        share.budget.connections += 1
        return share

    def part_from(self, share: Share) -> None:
        share.connections -= 1
        share.budget.connections -= 1
        if not share.connections:
            self.shares.pop(share.user, None)

    def lend(self, user: int, arenas: Sequence[Arena]) -> None:
        """Count memory files that are about to be sent to *user*, a guest; Busy, OSError if that can't be done."""
        lent = self._lent.setdefault(user, LentFiles(self.desk.last_uses))
        for result in arenas:
            lent.lend(result)

    def unread_results(self, share: Share) -> str:
        """Return which results have to be read before another job of *share*'s user may start, as a message; "" if none."""
        most = self.most_results
        if self.arenas >= most:
            return f"{most} large results wait for clients that don't read them"
        if share.guest and share.arenas >= max(1, most // GUEST_SHARE):
            return f"{max(1, most // GUEST_SHARE)} large results of yours wait, and you don't read them"
        return self._lent_too_much(share.user) if share.guest else ""

    def _lent_too_much(self, user: int) -> str:
        """
        Return a message that says which results *user* has to close before others can be had; "" if none. A guest leaves as
        many to others as it has, so that whoever comes next may have some.
        """
        def too_much() -> bool:
            return lent.full or len(lent) >= self.most_lent - sum(map(len, self._lent.values()))

        lent = self._lent.get(user) or LentFiles(self.desk.last_uses)
        if not too_much():
            return ""
        self.desk.last_uses.wait(0.0)
        return f"you have {len(lent)} large results of {lent.size} bytes: let go of some" if too_much() else ""

    def _look_at_lent(self) -> None:
        self.desk.last_uses.wait(0.0)
        self._lent = {user: lent for user, lent in self._lent.items() if len(lent)}

    def govern(self, quotas: Quotas) -> None:
        """Apply new *quotas* to users, and the changed `config` to jobs."""
        self.quotas = quotas
        self.as_armed = self.config.limits == self._armed_with
        for share in self.shares.values():
            share.free = quotas.of(share.user) == NONE
        for connection in list(self.connections.values()):
            connection.watch()

    def _look(self) -> bool:
        self._look_at_lent()
        now = self.reactor.now()
        for connection in list(self.connections.values()):
            self.reactor.barrier.call(connection.look, now)
        return bool(self.connections or self._lent)

    @property
    def flushed(self) -> bool:
        """Whether no request waits and every reply has been taken by the kernel."""
        return not any(connection.unfinished for connection in self.connections.values())

    def part(self, all_of_them: bool = False) -> None:
        """
        Accept no more connections, and close those of the clients, which then connect to the next daemon; *all_of_them*
        also if they haven't sent a request yet, or half a frame.
        """
        self._parted, self._all_parted = True, all_of_them
        self.reactor.barrier.steps(self.stop_listening, *(
            partial(connection.part, all_of_them) for connection in list(self.connections.values())),
            *(partial(self._serve, client) for client in self._waiting.clear()))

    def close(self) -> None:
        self._closed = True
        self._sweep.stop()
        self.reactor.barrier.steps(self.stop_listening, *(
            partial(connection.close, "the daemon ends") for connection in list(self.connections.values())),
            *(partial(self.reactor.closer.close, client.sock) for client in self._waiting.clear()), self.rounds.close,
            self.desk.close)

    def gone(self, fd: int) -> None:
        """For a connection: it is closed."""
        self.connections.pop(fd, None)
