"""
One client: its requests, and what it is answered.

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
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from leeward import __version__
from leeward.daemon import arena
from leeward.daemon.arena import RequestArena
from leeward.daemon.config import Config
from leeward.daemon.home import Home, Share, Ticket
from leeward.daemon.intake import NAME, job_of
from leeward.daemon.leases import Leases
from leeward.daemon.log import log
from leeward.daemon.outbox import Outbox
from leeward.daemon.parcel import Parcel, pack
from leeward.daemon.peers import credentials
from leeward.errors import BadRequest, Busy, Forbidden, PeerError, Refused
from leeward.pool.report import Arena as Results
from leeward.pool.report import Report
from leeward.spec.job import Job
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
from leeward.worker.stream import Begun, Ran, Stream, reason

#: Seconds that a frame may take from its first byte to its last; 64 MiB take 0.1 s here.
FRAME_S = 10.0
#: Seconds that a client may leave a reply unread before it counts as gone.
UNREAD_S = 30.0
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
#: Requests of one connection served in a row.
_TURN_FRAMES = 32



class Connection:
    """
    One client. The theory of operation is in the module's head.
    """

    __slots__ = ("_arena", "_closed", "_copied", "_ended", "_fd", "_frame_since", "_fresh", "_heard", "_home",
                 "_in_flight", "_output", "_parting", "_pending", "_reader", "_reading", "_sessions", "_share",
                 "_sock", "_stream")

    def __init__(self, home: Home, sock: socket.socket, share: Share) -> None:
        self._home, self._sock, self._fd = home, sock, sock.fileno()
        self._share = share
        self._reader = FrameReader()
        self._pending: deque[bytes] = deque()
        self._in_flight: dict[int, Ticket | None] = {}
        self._output = Outbox(self._own)
        self._frame_since: float | None = None   # when the unfinished frame began
        self._heard = time.monotonic()
        self._closed = False
        self._parting = self._ended = False  # asked to part; has read all that it ever will
        self._fresh = True  # nothing was ever asked
        self._arena: RequestArena | None = None
        self._copied = False  # a request out of the arena, in this turn
        self._reading = True
        self._sessions = Leases(home.jobs, self)
        self._stream: Stream = home.reactor.stream(sock, self)
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
            if self._home.held > INPUT:
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
        self._home.held += more
        self._share.held += more

    def _serve(self) -> None:
        """
        Answer pending requests, a bounded number of them.
        """
        self._copied = False
        for _ in range(_TURN_FRAMES):
            # One of the arena a turn: a frame of some bytes may stand for as many as came by the socket in many turns.
            if not self._pending or self._closed or self._output.size > OUTPUT or self._copied:
                break
            self._request(self._pending.popleft())
        if self._closed:
            return
        if self._pending and self._output.size <= OUTPUT:
            self._home.reactor.soon(self._serve)
        self._watch()

    def _watch(self) -> None:
        """
        Wait for what can be served: input while there is room for replies, room while there is output.
        """
        if self._ended and not self.unfinished:
            self.close("parted")
            return
        reading = not self._pending and not self._ended and self._output.size <= OUTPUT
        if reading is not self._reading:
            self._reading = reading
            self._stream.read(reading)
        self._stream.plain(reading and not (self._output or self._parting or self._reader.held)
                           and self._share.free and self._home.as_armed and not self._crowded())

    # --- requests -------------------------------------------------------------

    def _request(self, payload: bytes) -> None:
        self._home.metrics.requests += 1
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
                answer = self._home.status()
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
                self._home.reactor.soon(self._home.shut_down)
                answer = {}
            reply = encode_ok(number, answer)
        except (BadRequest, Refused) as error:
            kind, why = refusal_of(error)
            reply = encode_refusal(number, kind, why)
            self._home.watcher.request_refused(kind, self._share.user)
        except Exception as error:
            # A bug of ours; whoever asked is told, and everybody else is served on.
            log.exception("a request failed")
            reply = encode_refusal(number, "internal", f"a bug of the daemon's, please report it: {error!r}")
            self._home.watcher.request_refused("internal", self._share.user)
        self._send(Parcel(memoryview(reply)))

    def _grant(self, number: int) -> Parcel:
        """
        An arena of this connection's own, as the answer to request *number*.
        """
        size = RequestArena.size
        if self._arena is not None:
            raise BadRequest("this connection has an arena already")
        if self._home.requests + size > arena.TOTAL:
            raise Busy(f"arenas of {self._home.requests} bytes are open already")
        if self._share.guest and self._share.requests + size > arena.TOTAL // GUEST_SHARE:
            raise Busy(f"arenas of {self._share.requests} bytes of yours are open already")
        try:
            self._arena, fd = RequestArena.make()
        except OSError as error:
            raise Busy(f"no arena can be made: {error.strerror}") from None
        self._home.requests += size
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
        home = self._home
        self._check_flight()
        self._check_read()
        done = partial(self._done, request.id)
        job = None if request.session else job_of(request, home.config)
        self._in_flight[request.id] = None
        try:
            ticket = self._sessions.execute(request, done) if job is None else home.jobs.submit(
                job, done, home.config.queue_timeout, self._share.user, Client(self._fd, request.id))
        except BaseException:
            del self._in_flight[request.id]
            raise
        if request.id in self._in_flight:  # not answered at once
            self._in_flight[request.id] = ticket

    def _crowded(self) -> str:
        """
        Which results have to be read before a job of this client's may start, if any.
        """
        if self._home.arenas >= ARENAS:
            return f"{ARENAS} large results wait for clients that don't read them"
        if self._share.guest and self._share.arenas >= ARENAS // GUEST_SHARE:
            return f"{ARENAS // GUEST_SHARE} large results of yours wait, and you don't read them"
        return ""

    def begun(self, begun: Begun) -> None:
        """
        For the stream: a plain request was whole and alone, and a runner has it.
        """
        again = self._sent(begun.request, begun.started)
        if self._closed and begun.session:
            return  # it went with its session
        done = partial(self._done, begun.request)
        ticket = self._sessions.begun(begun, done) if begun.session else self._home.jobs.begun(
            Job(code=begun.code, name=NAME, limits=self._home.config.limits), done, self._share.user, begun)
        if self._closed or again:
            ticket.cancel()
        else:
            self._in_flight[begun.request] = ticket
        if again and not self._closed:
            self._refuse("bad_request", f"request {begun.request} is still in flight")

    def ran(self, ran: Ran) -> None:
        """
        For the stream: the same of a session, and it is answered.
        """
        again = self._sent(ran.request, ran.ended)
        if self._closed:
            return
        self._sessions.ran(ran)
        if again:
            self._refuse("bad_request", f"request {ran.request} is still in flight")

    def _sent(self, request: int, when: float) -> bool:
        """
        Count a request that went the short way; was its number in use?
        """
        self._home.metrics.requests += 1
        self._fresh = False
        self._heard = when
        return request in self._in_flight

    def _cancel(self, target: int) -> bool:
        if target not in self._in_flight:
            return False
        ticket = self._in_flight.pop(target)
        if ticket is not None:
            ticket.cancel()
            self._sessions.cancelled(target)
        self._send(Parcel(memoryview(encode_refusal(target, "cancelled", "the client took the request back"))))
        self._home.watcher.request_refused("cancelled", self._share.user)
        return True

    # --- for its sessions -----------------------------------------------------

    @property
    def config(self) -> Config:
        return self._home.config

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
        self._home.watcher.request_refused(why.kind, self._share.user)

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
                parcel = pack(number, report, self._home.config.results)
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
            self._home.watcher.request_refused(refused, self._share.user)

    # --- output ---------------------------------------------------------------

    def _send(self, parcel: Parcel) -> None:
        if self._closed:
            parcel.close()
            return
        self._output.put(parcel)
        if len(self._output) == 1:
            self._flush()

    def _own(self, more: int) -> None:
        """
        Count *more* large results that wait for this client.
        """
        if more:
            self._home.arenas += more
            self._share.arenas += more

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            self._output.flush(self._stream)
        except OSError as error:
            self.close(error.strerror or "write failed")
            return
        self._heard = time.monotonic()
        if self._pending and self._output.size <= OUTPUT and not self._reading:
            self._home.reactor.soon(self._serve)
        self._watch()

    def room(self) -> None:
        """
        For the stream: there is room for output.
        """
        self._flush()

    def sent(self, count: int) -> None:
        """
        For the stream: so much of the first parcel was taken, or none will be.
        """
        self._output.sent(-1 if self._closed else count)
        if count < 0:
            self.close(reason(-count))
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
        idle = self._home.config.idle_timeout
        if self._frame_since is not None and not self._reading:
            self._frame_since = now  # it is we who don't read
        if not self._output:
            self._output.unread_since = (self._output.unread_since or now) if self._stream.backlog else None
        if self._frame_since is not None and now - self._frame_since > FRAME_S:
            self._refuse("bad_request", f"a frame that isn't complete after {FRAME_S:.0f} s")
        elif self._output.unread_since is not None and now - self._output.unread_since > UNREAD_S:
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
        self._home.watcher.peer_refused("protocol" if "bad_request" == kind else kind, self._share.user,
                                        credentials(self._sock)[0])
        if not (self._output or self._stream.backlog):  # else it would land inside another frame
            try:
                self._sock.send(encode_refusal(0, kind, message))
            except OSError:
                pass  # it doesn't read; it is closed all the same
        self.close(message)

    def close(self, why: str) -> None:
        """
        End the connection and what it asked for.
        """
        if self._closed:
            return
        self._closed = True
        home = self._home
        log.debug("connection closed", why=why, in_flight=len(self._in_flight))
        self._stream.close()
        home.gone(self._fd)
        self._hold(-self._reader.held)
        if self._arena is not None:
            self._arena.close()
            home.requests -= RequestArena.size
            self._share.requests -= RequestArena.size
        self._share.connections -= 1
        if not self._share.connections:
            del home.shares[self._share.user]
        self._sock.close()
        self._pending.clear()
        self._output.close()
        for ticket in list(self._in_flight.values()):
            if ticket is not None:
                ticket.cancel()
        self._in_flight.clear()
        self._sessions.end()
