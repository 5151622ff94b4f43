"""
One client's connection: when its requests are read, when its answers are sent, and when it ends.

A client that sends half a frame, floods, stops reading, or vanishes loses only its own connection and jobs. Nothing
here waits: sockets are non-blocking, and one turn of the loop serves a user a bounded amount (rounds.py).

Theory of operation. A connection has an input side (`inbox`: frames, then payloads that wait), operations that requests
ask for (`operations`), requests in flight by the client's ids (`flight`), and an output side (`parcel`: parcels in
order). It is read while its payloads are served and its output is short; otherwise the kernel's buffer fills and the
client waits. Every request gets one reply, in the order in which they are ready, unless the connection ends first: then
its tickets are cancelled and its sessions closed. A peer that breaks the protocol gets one refusal with id 0 and is
closed, since the start of the next frame is unknown. CONNECTION is the table of states; a pair that is missing is a bug
of ours.

One sweep a second checks the deadlines of all connections: a timer for each request would cost more than the request.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import JobStart, Ran, reason
from leeward.daemon.run.runner_states import after
from leeward.daemon.run.verdict import bug
from leeward.daemon.serving.flight import Flight
from leeward.daemon.serving.inbox import FRAME_S, Inbox
from leeward.daemon.serving.intake import NAME
from leeward.daemon.serving.operations import Operations
from leeward.daemon.serving.parcel import Outbox, Parcel
from leeward.daemon.serving.peers import asks, say_no
from leeward.daemon.serving.rounds import CONNECTING, STEP, Share
from leeward.daemon.serving.sandboxes import FIRST_SEAT
from leeward.daemon.telling.log import log
from leeward.errors import Busy, PeerError
from leeward.spec.job import Job
from leeward.spec.peers import credentials

if TYPE_CHECKING:
    from leeward.daemon.serving.server import Server

#: Seconds after which an idle connection may be closed to make room for the owner; and the same for a connection that
#: has never sent a request, since clients connect when they have one.
IDLE_S, FRESH_S = 1.0, 0.25
#: Bytes of replies that wait for a client before nothing more is read from it.
OUTPUT = 1 << 20
#: Seconds that a client may leave a reply unread before it counts as gone.
UNREAD_S = 30.0


class ConnectionState(enum.Enum):
    NEW = "new"          # has never asked for anything
    OPEN = "open"        # has asked for something
    AWAITED = "awaited"  # the daemon closes it after its first request
    PARTING = "parting"  # the daemon closes it when the requests that the kernel has are answered
    ENDED = "ended"      # everything that it sent was read; it is closed when all of it is answered
    CLOSED = "closed"


class ConnectionEvent(enum.Enum):
    ASKED = "asked"    # its first request is here
    PART = "part"      # the daemon closes it
    END = "end"        # the end of its stream was read
    CLOSED = "closed"  # by the client, by us, or by an error


CONNECTION: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.NEW, ConnectionEvent.ASKED): ConnectionState.OPEN,
    (ConnectionState.AWAITED, ConnectionEvent.ASKED): ConnectionState.PARTING,
    (ConnectionState.NEW, ConnectionEvent.PART): ConnectionState.AWAITED,
    (ConnectionState.OPEN, ConnectionEvent.PART): ConnectionState.PARTING,
    # A client that disconnects is closed at once: nobody will read its answers.
    (ConnectionState.NEW, ConnectionEvent.END): ConnectionState.CLOSED,
    (ConnectionState.OPEN, ConnectionEvent.END): ConnectionState.CLOSED,
    # The end of a parting connection was caused by the daemon: the client gets its answers.
    (ConnectionState.AWAITED, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.PARTING, ConnectionEvent.END): ConnectionState.ENDED,
    (ConnectionState.ENDED, ConnectionEvent.END): ConnectionState.ENDED,
    **{(state, ConnectionEvent.PART): state for state in (
        ConnectionState.AWAITED, ConnectionState.PARTING, ConnectionState.ENDED)},
    **{(state, ConnectionEvent.CLOSED): ConnectionState.CLOSED for state in ConnectionState
       if state is not ConnectionState.CLOSED},
}

#: States of a connection that hasn't sent a request yet.
SILENT = ConnectionState.NEW, ConnectionState.AWAITED
#: States in which the kernel may have unread bytes of the client, which are served before the connection ends.
LEAVING = ConnectionState.AWAITED, ConnectionState.PARTING

_CLOSED, _ENDED = ConnectionState.CLOSED, ConnectionState.ENDED


class Connection:
    costs = "connection"

    __slots__ = ("_fd", "_flight", "_heard", "_inbox", "_operations", "_output", "_reading", "_server", "_share",
                 "_state", "_stream", "sock")

    def __init__(self, server: Server, sock: socket.socket, share: Share) -> None:
        self._server, self.sock, self._fd = server, sock, sock.fileno()
        self._share = share
        self._state = ConnectionState.NEW
        self._inbox = Inbox(server, share)
        self._flight = Flight(server, share, self._fd, self)
        self._operations = Operations(server, share, self._flight, self)
        self._output = Outbox(self._flight.own, server.reactor.now)
        self._heard = server.reactor.now()
        self._reading = True
        self._stream = server.reactor.stream(sock, self)
        try:
            self.watch()
        except BaseException:
            self._stream.close()
            raise

    def _happen(self, event: ConnectionEvent) -> None:
        self._state = after("connection", CONNECTION, self._state, event)

    @property
    def unfinished(self) -> bool:
        return bool(self._flight.tickets or self._flight.kept or self._output or self._inbox.more
                    or self._state in LEAVING or self._stream.backlog)

    @property
    def group(self) -> int:
        """The gid that the peer had when it connected."""
        return credentials(self.sock)[2]

    @property
    def guest(self) -> bool:
        return self._share.guest

    def idle(self, now: float) -> float:
        """Seconds for which it has been idle and may be closed to make room; 0.0 if anything of it runs, waits or is held."""
        flight = self._flight
        if self._state is _CLOSED or flight.sessions or flight.sandboxes.holds or self._inbox.held or self.unfinished:
            return 0.0
        seconds = now - self._heard
        return seconds if seconds > (FRESH_S if self._state in SILENT else IDLE_S) else 0.0

    def lazy(self, now: float) -> float:
        """Seconds for which the client has left its waiting or kept large results alone; 0.0 if none waits."""
        since = self._output.unread_since
        return now - (self._heard if since is None else since) if self._flight.unread else 0.0

    # --- input ----------------------------------------------------------------

    def failed(self, error: int) -> None:
        self.close(reason(error))

    def received(self, data: bytes) -> None:
        if self._state is _CLOSED:
            return
        if not data:
            self._end()
            return
        now = self._server.reactor.now()
        self._server.rounds.charge(self._share.budget, 0, came=len(data))
        try:
            self._inbox.feed(data, now)
        except PeerError as error:
            self.refuse("bad_request", str(error))
            return
        except Busy as error:
            self.refuse(error.kind, error.message)
            return
        self._heard = now
        self._serve()

    def _end(self) -> None:
        if CONNECTION[self._state, ConnectionEvent.END] is _CLOSED:
            self.close("end of stream")
            return
        self._happen(ConnectionEvent.END)
        self.watch()

    def _serve(self) -> None:
        inbox, operations, rounds, budget = self._inbox, self._operations, self._server.rounds, self._share.budget
        if inbox.pending and self._state in SILENT:
            self._happen(ConnectionEvent.ASKED)
        try:
            for _ in range(STEP):
                if self._state is _CLOSED or self._output.size > OUTPUT or not (inbox.more and rounds.may(budget)):
                    break
                payload = inbox.next(self._heard)
                if payload is None:
                    break
                if self._state in SILENT:
                    self._happen(ConnectionEvent.ASKED)
                operations.copied = 0
                operations.serve(payload)
                rounds.charge(budget, 1, max(len(payload), operations.copied), operations.copied)
        except PeerError as error:
            self.refuse("bad_request", str(error))
        except Busy as error:
            self.refuse(error.kind, error.message)
        if self._state is _CLOSED:
            return
        if inbox.more and self._output.size <= OUTPUT:
            rounds.later(budget, self._fd, self._serve)
        self.watch()
        self._shut_when_done()

    def watch(self) -> None:
        """Watch the socket for input while replies have room, and for room while there is output."""
        if self._state is _CLOSED:
            return
        if self._state is _ENDED and not self.unfinished:
            self.close("parted")
            return
        reading = (not self._inbox.more and self._state is not _ENDED and self._output.size <= OUTPUT)
        if reading and self._server.rounds.exhausted(self._share.budget):
            reading = False
            self._server.rounds.later(self._share.budget, self._fd, self._serve)
        if reading is not self._reading:
            self._reading = reading
            self._stream.read(reading)
        self._stream.allow_fast_path(reading and not (self._output or self._state in LEAVING or self._inbox.held)
                           and self._share.free and self._server.as_armed
                           and not self._server.unread_results(self._share))

    # --- the fast path --------------------------------------------------------

    def job_started(self, start: JobStart) -> None:
        """For the stream: the fast path has sent a complete request of code alone to a runner."""
        again = self._passed(start.request, start.started)
        if self._state is _CLOSED and 0 < start.session < FIRST_SEAT:
            return  # it ended with its session
        flight = self._flight
        ticket = flight.job_started(start) if start.session else self._server.jobs.job_started(
            Job(code=start.code, name=NAME, limits=self._server.config.limits), partial(flight.done, start.request),
            self._share.user, start)
        if self._state is _CLOSED or again:
            ticket.cancel()
        else:
            flight.tickets[start.request] = ticket
        if again and self._state is not _CLOSED:
            self.refuse("bad_request", f"request {start.request} is still in flight")

    def ran(self, ran: Ran) -> None:
        """For the stream: the fast path has run a job of a session, and has answered it."""
        again = self._passed(ran.request, ran.ended)
        if self._state is _CLOSED and ran.session < FIRST_SEAT:
            return
        self._flight.ran(ran)
        if again and self._state is not _CLOSED:
            self.refuse("bad_request", f"request {ran.request} is still in flight")

    def refused(self, count: int) -> None:
        """For the stream: count *count* requests that the fast path has refused because no runner was free."""
        server, share = self._server, self._share
        server.watcher.metrics.requests += count
        self._heard = server.reactor.now()
        if self._state in SILENT:
            self._happen(ConnectionEvent.ASKED)
        server.rounds.charge(share.budget, count)
        server.jobs.admission.shed(self._fd, count, self._heard)
        server.watcher.request_refused("busy", share.user, count)
        self.watch()

    def _passed(self, request: int, when: float) -> bool:
        """Count a request that took the fast path. Returns whether its number was in use."""
        self._server.watcher.metrics.requests += 1
        if self._state in SILENT:
            self._happen(ConnectionEvent.ASKED)
        self._heard = when
        return request in self._flight.tickets

    # --- output ---------------------------------------------------------------

    def send(self, *parcels: Parcel) -> None:
        """Send *parcels* after all answers that wait, with nothing in between; or close them if the client is gone."""
        if self._state is _CLOSED:
            in_any_case(*(parcel.close for parcel in parcels))
            return
        waited = bool(self._output)
        for parcel in parcels:
            self._output.put(parcel)
        if not waited:
            self._flush()
        self._shut_when_done()  # this may have been the last answer

    def answered(self) -> None:
        """Note that the client has an answer that went by the fast path."""
        self._heard = self._server.reactor.now()
        self.watch()
        if self._flight.kept.wanted:
            self._shut_when_done()

    def _flush(self) -> None:
        if self._state is _CLOSED:
            return
        try:
            self._output.flush(self._stream)
        except OSError as error:
            self.close(error.strerror or "write failed")
            return
        self._heard = self._server.reactor.now()
        if self._inbox.more and self._output.size <= OUTPUT and not self._reading:
            self._server.rounds.later(self._share.budget, self._fd, self._serve)
        self.watch()

    def room(self) -> None:
        self._flush()

    def sent(self, count: int) -> None:
        """For the stream: the kernel has taken *count* bytes of the first parcel, or has failed."""
        self._output.sent(-1 if self._state is _CLOSED else count)
        if count < 0:
            self.close(reason(-count))
        self._flush()

    # --- the end --------------------------------------------------------------

    def part(self, at_once: bool = False) -> None:
        """
        Read the requests that have been sent and no further ones, and close the connection when all are answered.

        A client that sends later finds it closed before a byte was read, and connects again. One that has just
        connected is about to send, and might not try again: unless *at_once*, its first request, and the rest of a
        frame, are awaited.
        """
        if self._state is _CLOSED:
            return
        self._happen(ConnectionEvent.PART)
        self.watch()
        if self._state is not _CLOSED and (
                at_once or not (self._flight.owes or self._inbox.held or self._inbox.more or self._state in SILENT
                                or asks(self.sock))):
            self._shut()

    def _shut_when_done(self) -> None:
        """Shut the receiving side of a parting connection, unless its client owes the rest of a frame or a request."""
        if self._state in LEAVING and not (self._inbox.held or self._inbox.more or self._flight.owes):
            self._shut()

    def _shut(self) -> None:
        """Receive nothing more, except the bytes that the kernel already has; after them it reports the end."""
        try:
            self.sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the peer has gone; reading tells

    def look(self, now: float) -> None:
        """Close the connection, or its sessions, if a deadline has passed."""
        inbox, output, most = self._inbox, self._output, self._server.config.idle_timeout
        late = inbox.late(now, self._reading)
        if not output:
            output.unread_since = (output.unread_since or now) if self._stream.backlog else None
        if late:
            self.refuse("bad_request", f"a frame that isn't complete after {FRAME_S:.0f} s")
        elif output.unread_since is not None and now - output.unread_since > UNREAD_S:
            self.close("replies unread")
        elif self._flight.kept.late(UNREAD_S):
            self.close("kept results unread")
        elif (most and now - self._heard > most and inbox.since is None
              and not (self.unfinished or self._flight.sandboxes.holds)):
            self.close("idle")
        else:
            self._flight.sessions.look(now)

    def refuse(self, kind: str, message: str) -> None:
        """Send a refusal with id 0, if the socket has room for it, and close the connection."""
        log.debug("connection refused", why=message)
        self._server.rounds.charge(self._share.budget, CONNECTING)
        self._server.watcher.peer_refused("protocol" if kind == "bad_request" else kind, self._share.user,
                                        credentials(self.sock)[0])
        if not (self._output or self._stream.backlog):  # else it would land inside another frame
            say_no(self.sock, kind, message)
        self.close(message)

    def close(self, why: str) -> None:
        """End the connection, its jobs and its sessions."""
        if self._state is _CLOSED:
            return
        self._happen(ConnectionEvent.CLOSED)
        server, in_flight = self._server, len(self._flight.tickets)
        in_any_case(
            self._stream.close, partial(server.gone, self._fd), partial(server.jobs.ledger.connection_closed, self._fd),
            partial(server.rounds.forget, self._share.budget, self._fd), self._inbox.close, self._operations.close,
            partial(server.part_from, self._share), self._output.close, self._flight.end,
            partial(server.reactor.closer.close, self.sock),
            partial(log.debug, "connection closed", why=why, in_flight=in_flight))

    def broken(self, error: Exception) -> None:
        self.close(bug(error))
