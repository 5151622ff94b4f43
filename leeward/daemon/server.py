"""
The socket server: connections, requests, replies.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client. One that sends half a frame, floods, stops reading, or
           vanishes costs itself: its connection, and the jobs that it asked for. A guest, who is
           let in by the group, can have a share of what is counted for all, and not end the daemon.
Waits:     never. Sockets are non-blocking, and one turn of the loop serves a connection
           at most _TURN_FRAMES requests before the others have theirs.

Theory of operation. A connection has an input side (FrameReader, then `_pending`
payloads), requests in flight by the client's ids, and an output side (parcels in order).
It is read while its pending payloads are served and its output is short; else the
kernel's buffer fills and the client waits. Every request gets one reply, in the order in
which they are ready, unless the connection ends first. When it ends, for whatever
reason, its tickets are cancelled and its sessions closed: nobody is there to take the results. A peer that
breaks the protocol gets one refusal with id 0 and is closed, because after a bad frame
there is no knowing where the next one starts.

Deadlines are looked at by one sweep a second for all connections: a timer for each
request would cost more than the request.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from leeward import __version__
from leeward.daemon import arena
from leeward.daemon.arena import RequestArena
from leeward.daemon.config import Config
from leeward.daemon.intake import NAME, job_of
from leeward.daemon.leases import Leases
from leeward.daemon.metrics import Metrics
from leeward.daemon.parcel import Parcel, pack
from leeward.errors import BadRequest, Busy, Forbidden, PeerError, Refused
from leeward.pool.quotas import NONE, Quotas
from leeward.pool.report import Arena as Results
from leeward.pool.report import Report
from leeward.pool.sessions import Session
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.wire.frames import VERSION, FrameReader, decode
from leeward.wire.messages import (
    Arena,
    Cancel,
    Execute,
    Interrupt,
    Ping,
    SessionClose,
    SessionOpen,
    SessionReset,
    Shutdown,
    Slot,
    Status,
    encode_ok,
    encode_refusal,
    parse_request,
    refusal_of,
    request_id,
)
from leeward.worker.express import Client
from leeward.worker.reactor import Reactor, Timer
from leeward.worker.stream import Begun, Stream, reason

#: Seconds that a frame may take from its first byte to its last; 64 MiB take 0.1 s here.
FRAME_S = 10.0
#: Seconds that a client may leave a reply unread before it counts as gone.
UNREAD_S = 30.0
#: Seconds between sweeps, and so the grain of these deadlines.
SWEEP_S = 1.0
#: Requests of one connection at once. More than pool and queue hold by default, so that
#: a batch meets the queue's limit first.
IN_FLIGHT = 256
#: Bytes of replies that wait for a client before nothing more is read from it.
OUTPUT = 1 << 20
#: Bytes of unfinished frames of all connections together.
INPUT = 512 << 20
#: Memory files that wait for their clients to read, each an open descriptor; and large answers without one.
ARENAS = 128
#: The part of INPUT, ARENAS and arena.TOTAL that all connections of one guest together may have.
GUEST_SHARE = 4
#: A frame that came whole, or nearly, isn't worth counting against INPUT.
_CHUNK = 1 << 16
#: Bytes of answers that are sent as one.
_TOGETHER = 1 << 16
#: Requests of one connection served in a row.
_TURN_FRAMES = 32
#: Seconds without accept(2) after it ran out of descriptors.
_PAUSE_S = 0.1
#: getsockopt(2) for a peer's supplementary groups, Linux 4.13; the socket module doesn't have its name.
_SO_PEERGROUPS = 59
#: Bytes of an answer that the socket module takes: 256 groups.
_MOST_GROUPS = 1024

log = structlog.get_logger("leeward.server")


class Ticket(Protocol):
    """
    A submitted job.
    """

    def cancel(self) -> None: ...


class Jobs(Protocol):
    """
    What the server needs of leeward.pool.Pool.
    """

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: Client | None = None) -> Ticket: ...
    def begun(self, job: Job, done: Callable[[Report], None], user: int, begun: Begun) -> Ticket: ...
    @property
    def most_sessions(self) -> int: ...
    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int) -> Session: ...


class Watcher(Protocol):
    """
    Who counts and records what is refused.
    """

    def request_refused(self, kind: str, user: int) -> None: ...
    def peer_refused(self, reason: str, user: int, pid: int) -> None: ...


class Unwatched:
    """
    Tells the log of peers.
    """

    def request_refused(self, kind: str, user: int) -> None:
        return

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        log.warning("peer refused", reason=reason, user=user, pid=pid)


def admitted(peer: int, own: int, group: int | None = None, groups: Callable[[], tuple[int, ...]] = tuple) -> bool:
    """
    Whether the daemon of user *own* serves user *peer*: itself, root, and members of *group*.

    Args:
        groups: tells the peer's groups.
    """
    return peer in (own, 0) or (group is not None and group in groups())


def _groups_of(sock: socket.socket, gid: int) -> tuple[int, ...]:
    """
    The groups that the process had which connected *sock*; only the first if they are too many to tell.
    """
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS)
    except OSError as error:
        log.warning("groups of a peer can't be told", error=error.strerror)
        return (gid,)
    return (gid, *struct.unpack(f"{len(more) // 4}I", more))


@dataclass(slots=True)
class Share:
    """
    What the connections of one user have together.

    Attributes:
        free: no quota holds him, so his jobs may go the short way.
    """

    user: int
    guest: bool
    free: bool = False
    connections: int = 0
    held: int = 0
    arenas: int = 0
    sessions: int = 0
    requests: int = 0  # bytes of request arenas


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
        pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        share = self.shares.get(uid)
        most = self.config.max_connections
        mine = self.quotas.of(uid).connections
        if not admitted(uid, self.uid, self.group, partial(_groups_of, sock, gid)):
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


class Connection:
    """
    One client. The theory of operation is in the module's head.
    """

    __slots__ = ("_arena", "_closed", "_copied", "_ended", "_fd", "_flying", "_frame_since", "_fresh", "_heard",
                 "_in_flight", "_output", "_output_size", "_parting", "_pending", "_reader", "_reading", "_server",
                 "_sessions", "_share", "_sock", "_stream", "_unread_since")

    def __init__(self, server: Server, sock: socket.socket, share: Share) -> None:
        self._server, self._sock, self._fd = server, sock, sock.fileno()
        self._share = share
        self._reader = FrameReader()
        self._pending: deque[bytes] = deque()
        self._in_flight: dict[int, Ticket | None] = {}
        self._output: deque[Parcel] = deque()
        self._output_size = 0
        self._frame_since: float | None = None   # when the unfinished frame began
        self._unread_since: float | None = None  # when the kernel last took a byte of the waiting output
        self._heard = time.monotonic()
        self._closed = False
        self._parting = self._ended = False  # asked to part; has read all that it ever will
        self._fresh = True  # nothing was ever asked
        self._arena: RequestArena | None = None
        self._copied = False  # a request out of the arena, in this turn
        self._reading = True
        self._sessions = Leases(server.jobs, self)
        self._flying = False  # the first parcel is with the kernel, which will say how much it took
        self._stream: Stream = server.reactor.stream(sock, self)
        self._watch()

    @property
    def unfinished(self) -> bool:
        # Asked to part, it may have bytes in the kernel that nobody has looked at.
        return bool(self._in_flight or self._output or self._pending or (self._parting and not self._ended)
                    or self._stream.backlog)

    # --- input ----------------------------------------------------------------

    def failed(self, error: int) -> None:
        """
        For the stream.
        """
        self.close(reason(error))

    def received(self, data: bytes) -> None:
        """
        For the stream: the next bytes, or its end.
        """
        if self._closed:
            return
        if not data:
            if self._parting:
                self._ended = True
                self._watch()
            else:
                self.close("end of stream")
            return
        before = self._reader.held
        try:
            self._pending += self._reader.feed(data)
        except PeerError as error:
            self._hold(-before)
            self._refuse("bad_request", str(error))
            return
        held = self._reader.held
        self._hold(held - before)
        now = time.monotonic()
        self._heard = now
        if not held:
            self._frame_since = None
        elif self._frame_since is None or self._pending:
            self._frame_since = now
        if held > _CHUNK:
            if self._server.held > INPUT:
                self._refuse("busy", f"requests of {INPUT} bytes are on their way already")
                return
            if self._share.guest and self._share.held > INPUT // GUEST_SHARE:
                self._refuse("busy", f"requests of {INPUT // GUEST_SHARE} bytes of yours are on their way already")
                return
        self._serve()
        if self._parting and not held:
            self._shut()

    def _hold(self, more: int) -> None:
        """
        Count *more* bytes of an unfinished frame.
        """
        self._server.held += more
        self._share.held += more

    def _serve(self) -> None:
        """
        Answer pending requests, a bounded number of them.
        """
        self._copied = False
        for _ in range(_TURN_FRAMES):
            # One of the arena a turn: a frame of some bytes may stand for as many as came by the socket in many turns.
            if not self._pending or self._closed or self._output_size > OUTPUT or self._copied:
                break
            self._request(self._pending.popleft())
        if self._closed:
            return
        if self._pending and self._output_size <= OUTPUT:
            self._server.reactor.soon(self._serve)
        self._watch()

    def _watch(self) -> None:
        """
        Wait for what can be served: input while there is room for replies, room while there is output.
        """
        if self._ended and not self.unfinished:
            self.close("parted")
            return
        reading = not self._pending and not self._ended and self._output_size <= OUTPUT
        if reading is not self._reading:
            self._reading = reading
            self._stream.read(reading)
        self._stream.plain(reading and not (self._output or self._parting or self._reader.held)
                           and self._share.free and self._server.as_armed and not self._crowded())

    # --- requests -------------------------------------------------------------

    def _request(self, payload: bytes) -> None:
        self._server.metrics.requests += 1
        self._fresh = False
        try:
            message = decode(payload)
            number = request_id(message)
            if number in self._in_flight:
                raise PeerError(f"request {number} is still in flight")
        except PeerError as error:
            self._refuse("bad_request", str(error))
            return
        try:
            request = parse_request(message)
            if isinstance(request, Slot):
                request = self._out_of_slot(request)
            if isinstance(request, Execute):
                self._execute(request)
                return
            if isinstance(request, Arena):
                self._send(self._grant(number))
                return
            answer: Mapping[str, Any] | None
            if isinstance(request, Ping):
                answer = {"version": __version__, "wire": VERSION}
            elif isinstance(request, Status):
                answer = self._server.status()
            elif isinstance(request, Cancel):
                answer = {"cancelled": self._cancel(request.target)}
            elif isinstance(request, (SessionOpen, SessionReset, SessionClose, Interrupt)):
                self._check_flight()
                answer = self._sessions.serve(request)
                if answer is None:
                    return
            else:
                assert isinstance(request, Shutdown)
                if self._share.guest:
                    raise Forbidden(f"this daemon is not user {self._share.user}'s to end")
                log.info("a client asks to shut down")
                self._server.reactor.soon(self._server.shut_down)
                answer = {}
            reply = encode_ok(number, answer)
        except (BadRequest, Refused) as error:
            kind, why = refusal_of(error)
            reply = encode_refusal(number, kind, why)
            self._server.watcher.request_refused(kind, self._share.user)
        except Exception as error:
            # A bug of ours; whoever asked is told, and everybody else is served on.
            log.exception("a request failed")
            reply = encode_refusal(number, "internal", f"a bug of the daemon's, please report it: {error!r}")
            self._server.watcher.request_refused("internal", self._share.user)
        self._send(Parcel(memoryview(reply)))

    def _grant(self, number: int) -> Parcel:
        """
        An arena of this connection's own, as the answer to request *number*.
        """
        size = RequestArena.size
        if self._arena is not None:
            raise BadRequest("this connection has an arena already")
        if self._server.requests + size > arena.TOTAL:
            raise Busy(f"arenas of {self._server.requests} bytes are open already")
        if self._share.guest and self._share.requests + size > arena.TOTAL // GUEST_SHARE:
            raise Busy(f"arenas of {self._share.requests} bytes of yours are open already")
        try:
            self._arena, fd = RequestArena.make()
        except OSError as error:
            raise Busy(f"no arena can be made: {error.strerror}") from None
        self._server.requests += size
        self._share.requests += size
        answer = {"slots": arena.SLOTS, "size": arena.SLOT, "arenas": [size]}
        return Parcel(memoryview(encode_ok(number, answer)), [Results(fd, size)], weight=1)

    def _out_of_slot(self, request: Slot) -> Execute:
        """
        The request that lies in the arena, by a copy of our own.
        """
        if self._arena is None:
            raise BadRequest("this connection has no arena; ask for one")
        self._check_flight()
        self._check_read()
        self._copied = True
        try:
            message = decode(self._arena.take(request.slot, request.length))
            number = request_id(message)
        except PeerError as error:
            raise BadRequest(f"slot {request.slot}: {error}") from None
        if number != request.id:
            raise BadRequest(f"slot {request.slot} holds request {number}, not {request.id}")
        inner = parse_request(message)
        if not isinstance(inner, Execute):
            raise BadRequest(f"slot {request.slot} holds no execute request")
        return inner

    def _check_flight(self) -> None:
        if len(self._in_flight) >= IN_FLIGHT:
            raise Busy(f"{IN_FLIGHT} requests of this connection are in flight already")

    def _check_read(self) -> None:
        crowded = self._crowded()
        if crowded:
            raise Busy(crowded)

    def _execute(self, request: Execute) -> None:
        server = self._server
        self._check_flight()
        self._check_read()
        done = partial(self._done, request.id)
        job = None if request.session else job_of(request, server.config)
        self._in_flight[request.id] = None
        try:
            ticket = self._sessions.execute(request, done) if job is None else server.jobs.submit(
                job, done, server.config.queue_timeout, self._share.user, Client(self._fd, request.id))
        except BaseException:
            del self._in_flight[request.id]
            raise
        if request.id in self._in_flight:  # not answered at once
            self._in_flight[request.id] = ticket

    def _crowded(self) -> str:
        """
        Which results have to be read before a job of this client's may start, if any.
        """
        if self._server.arenas >= ARENAS:
            return f"{ARENAS} large results wait for clients that don't read them"
        if self._share.guest and self._share.arenas >= ARENAS // GUEST_SHARE:
            return f"{ARENAS // GUEST_SHARE} large results of yours wait, and you don't read them"
        return ""

    def begun(self, begun: Begun) -> None:
        """
        For the stream: a plain request was whole and alone, and a runner has it.
        """
        server = self._server
        server.metrics.requests += 1
        self._fresh = False
        self._heard = begun.started
        again = begun.request in self._in_flight
        done = partial(self._done, begun.request)
        ticket = self._sessions.begun(begun, done) or server.jobs.begun(
            Job(code=begun.code, name=NAME, limits=server.config.limits), done, self._share.user, begun)
        if self._closed or again:
            ticket.cancel()
        else:
            self._in_flight[begun.request] = ticket
        if again and not self._closed:
            self._refuse("bad_request", f"request {begun.request} is still in flight")

    def _cancel(self, target: int) -> bool:
        if target not in self._in_flight:
            return False
        ticket = self._in_flight.pop(target)
        if ticket is not None:
            ticket.cancel()
            self._sessions.cancelled(target)
        self._send(Parcel(memoryview(encode_refusal(target, "cancelled", "the client took the request back"))))
        self._server.watcher.request_refused("cancelled", self._share.user)
        return True

    # --- for its sessions -----------------------------------------------------

    @property
    def config(self) -> Config:
        return self._server.config

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def user(self) -> int:
        return self._share.user

    @property
    def guest_sessions(self) -> int | None:
        return self._share.sessions if self._share.guest else None

    def count_sessions(self, more: int) -> None:
        self._share.sessions += more

    def wait(self, request: int, ticket: Ticket) -> None:
        self._in_flight[request] = ticket

    def answer(self, request: int, answer: Mapping[str, Any]) -> None:
        self._in_flight.pop(request, None)
        self._send(Parcel(memoryview(encode_ok(request, answer))))

    def refuse(self, request: int, why: Refused) -> None:
        self._in_flight.pop(request, None)
        self._send(Parcel(memoryview(encode_refusal(request, why.kind, why.message))))
        self._server.watcher.request_refused(why.kind, self._share.user)

    def take_back(self, request: int) -> None:
        self._cancel(request)

    # --- answers --------------------------------------------------------------

    def _done(self, number: int, report: Report) -> None:
        self._in_flight.pop(number, None)
        if report.told:
            self._heard = time.monotonic()
            self._watch()
            return
        refused = ""
        if report.result is not None:
            try:
                parcel = pack(number, report, self._server.config.results)
            except (OSError, ValueError) as error:
                log.error("a result cannot be sent", error=str(error))
                refused = "internal"
                parcel = Parcel(memoryview(encode_refusal(number, refused, f"the result can't be sent: {error}")))
        else:
            refusal = report.refusal
            refused, message = ("internal", "no result") if refusal is None else (refusal.kind, refusal.message)
            parcel = Parcel(memoryview(encode_refusal(number, refused, message)))
        self._send(parcel)
        if refused:
            self._server.watcher.request_refused(refused, self._share.user)

    # --- output ---------------------------------------------------------------

    def _send(self, parcel: Parcel) -> None:
        if self._closed:
            parcel.close()
            return
        self._output.append(parcel)
        self._output_size += len(parcel.frame)
        self._own(parcel.weight)
        if len(self._output) == 1:
            self._flush()

    def _own(self, more: int) -> None:
        """
        Count *more* large results that wait for this client.
        """
        if more:
            self._server.arenas += more
            self._share.arenas += more

    def _give_up(self, parcel: Parcel) -> None:
        self._own(-parcel.weight)
        parcel.close()

    def _flush(self) -> None:
        while self._output and not (self._closed or self._flying):
            parcel = self._first()
            try:
                sent = self._stream.send(parcel.frame, [arena.fd for arena in parcel.arenas])
            except BlockingIOError:
                if self._unread_since is None:
                    self._unread_since = time.monotonic()
                break
            except OSError as error:
                self.close(error.strerror or "write failed")
                return
            if sent is None:
                self._flying = True
                if self._unread_since is None:
                    self._unread_since = time.monotonic()
                break
            self._took(parcel, sent)
        if self._closed:
            return
        self._heard = time.monotonic()
        if self._pending and self._output_size <= OUTPUT and not self._reading:
            self._server.reactor.soon(self._serve)
        self._watch()

    def _first(self) -> Parcel:
        """
        What goes out next: small answers that wait behind each other go together.
        """
        first = self._output.popleft()
        frames, size = [first.frame], len(first.frame)
        while self._output and not (first.arenas or self._output[0].arenas) and \
                size + len(self._output[0].frame) <= _TOGETHER:
            frames.append(self._output.popleft().frame)
            size += len(frames[-1])
        if len(frames) > 1:
            first = Parcel(memoryview(b"".join(frames)))
        self._output.appendleft(first)
        return first

    def _took(self, parcel: Parcel, sent: int) -> None:
        """
        The kernel has *sent* bytes of the first parcel, and its descriptors.
        """
        if parcel.arenas:
            self._own(-len(parcel.arenas))
            parcel.weight -= len(parcel.arenas)
            parcel.close()
        self._unread_since = None
        self._output_size -= sent
        if sent < len(parcel.frame):
            parcel.frame = parcel.frame[sent:]
        else:
            self._own(-parcel.weight)
            self._output.popleft()

    def room(self) -> None:
        """
        For the stream: there is room for output.
        """
        self._flush()

    def sent(self, count: int) -> None:
        """
        For the stream: so much of the first parcel was taken, or none will be.
        """
        self._flying = False
        if self._closed:
            self._give_up(self._output.popleft())
            return
        if count < 0:
            self.close(reason(-count))
            return
        self._took(self._output[0], count)
        self._flush()

    # --- the end --------------------------------------------------------------

    def part(self) -> None:
        """
        Take what has been sent, no new request after that; close when all of it is answered.

        A client that sends later finds the connection closed before a byte was taken, and connects anew. One that
        has only just connected is about to send, and wouldn't: its first request is waited for.
        """
        self._parting = True
        self._watch()
        if not (self._closed or self._reader.held or self._fresh or self._more()):
            self._shut()

    def _more(self) -> bool:
        """
        Has the kernel bytes of this client's? They are on their way to `received`, which looks whether to shut then.
        """
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def _shut(self) -> None:
        """
        No more bytes come in, but for those that the kernel has already: it gives them to us, then the end.
        """
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the peer has gone; reading tells

    def reconsider(self) -> None:
        """
        What this user may do has changed.
        """
        self._watch()

    def look(self, now: float) -> None:
        """
        Close what has passed a deadline.
        """
        idle = self._server.config.idle_timeout
        if self._frame_since is not None and not self._reading:
            self._frame_since = now  # it is we who don't read
        if not self._output:
            self._unread_since = (self._unread_since or now) if self._stream.backlog else None
        if self._frame_since is not None and now - self._frame_since > FRAME_S:
            self._refuse("bad_request", f"a frame that isn't complete after {FRAME_S:.0f} s")
        elif self._unread_since is not None and now - self._unread_since > UNREAD_S:
            self.close("replies unread")
        elif idle and not self.unfinished and self._frame_since is None and now - self._heard > idle:
            self.close("idle")
        else:
            self._sessions.look(now)

    def _refuse(self, kind: str, message: str) -> None:
        """
        Say why with id 0, as far as the client takes it, and close.
        """
        log.info("connection refused", why=message)
        self._server.watcher.peer_refused("protocol" if "bad_request" == kind else kind, self._share.user, self._peer())
        if not (self._output or self._stream.backlog):  # else it would land inside another frame
            try:
                self._sock.send(encode_refusal(0, kind, message))
            except OSError:
                pass  # it doesn't read; it is closed all the same
        self.close(message)

    def _peer(self) -> int:
        """
        The pid of the process that connected, for the security log.
        """
        return int(struct.unpack("iII", self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def close(self, why: str) -> None:
        """
        End the connection and what it asked for.
        """
        if self._closed:
            return
        self._closed = True
        server = self._server
        log.debug("connection closed", why=why, in_flight=len(self._in_flight))
        self._stream.close()
        del server.connections[self._fd]
        self._hold(-self._reader.held)
        if self._arena is not None:
            self._arena.close()
            server.requests -= RequestArena.size
            self._share.requests -= RequestArena.size
        self._share.connections -= 1
        if not self._share.connections:
            del server.shares[self._share.user]
        self._sock.close()
        self._pending.clear()
        while len(self._output) > self._flying:  # what the kernel may still send is given up when it says so
            self._give_up(self._output.pop())
        for ticket in list(self._in_flight.values()):
            if ticket is not None:
                ticket.cancel()
        self._in_flight.clear()
        self._sessions.end()
