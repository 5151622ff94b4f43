"""
The requests of one connection that have no answer yet, and the answers that they get.

Each request has one answer. It is in `tickets` from its acceptance to its answer, and the code that answers it removes
it first. The connection's sessions are here as well: a job that is withdrawn ends the session in which it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.pool.sessions import Cancellable
from leeward.daemon.run.report import Report
from leeward.daemon.serving.parcel import KeptResults, Parcel, pack, parcels
from leeward.daemon.serving.rounds import CONNECTION_SHARE, GUEST_TAKEN, Share
from leeward.daemon.serving.sandboxes import FIRST_SEAT, Sandboxes
from leeward.daemon.serving.sessions import Leases
from leeward.daemon.serving.waiting import Exchanges, LiveOutput
from leeward.daemon.telling.log import log
from leeward.errors import Busy, Refused
from leeward.wire.answers import encode_refusal, encode_refused

if TYPE_CHECKING:
    from leeward.daemon.serving.connection import Connection
    from leeward.daemon.serving.server import Server


#: The numbers of connections, from 1.
_numbers = itertools.count(1)


class Flight:
    """
    The requests in flight of *connection*: `tickets` by the client's number, None if there is nothing to
    cancel; `unread` counts large results that wait for the client, docks among them; `weights` are bytes of a guest's
    large requests.
    """

    costs = "connection"

    __slots__ = ("broken", "connection", "exchanges", "fd", "kept", "live", "number", "sandboxes", "server", "sessions",
                 "share", "tickets", "unread", "user", "weights")

    def __init__(self, server: Server, share: Share, fd: int, connection: Connection) -> None:
        self.server, self.share, self.connection = server, share, connection
        self.fd, self.user, self.number = fd, share.user, next(_numbers)
        self.broken = connection.broken  # for the barrier
        self.tickets: dict[int, Cancellable | None] = {}
        self.weights: dict[int, int] = {}
        self.unread = 0
        self.sessions: Leases = Leases(self)
        self.sandboxes: Sandboxes = Sandboxes(server.desk, self)
        self.exchanges: Exchanges = Exchanges(self)
        self.live: LiveOutput = LiveOutput(self)
        self.kept: KeptResults = KeptResults(self.own, server.reactor.now)

    def own(self, more: int) -> None:
        """Add *more* to the number of large results that this client hasn't read, among which docks are counted."""
        self.unread += more
        self.server.arenas += more
        self.share.arenas += more

    @property
    def owes(self) -> bool:
        """Whether the client needs further requests here: to read kept results, or to answer calls of its jobs."""
        return bool(self.exchanges.held) or (self.kept.wanted and bool(self.tickets or self.kept))

    def check(self) -> None:
        """Check whether another request may be accepted; Busy if the connection has as many in flight as it may."""
        count = len(self.tickets) - self.exchanges.taking
        if count >= self.server.config.connection_requests:
            raise Busy(f"{count} requests of this connection are in flight already, all that one may have"
                       " (connection_requests)")

    def check_weight(self, size: int) -> None:
        """Check whether a guest may have *size* more bytes of unanswered requests; Busy if not."""
        taken = self.share.taken
        if taken and taken + size > GUEST_TAKEN:
            raise Busy(f"requests of {taken} bytes of yours have no answer yet; a guest may have {GUEST_TAKEN}")

    def weigh(self, number: int, size: int) -> None:
        """Count the bytes of request *number*, if it has no answer yet."""
        if number in self.tickets:
            self.weights[number] = size
            self.share.taken += size

    def check_job(self) -> None:
        """Check whether another job may be accepted; Busy as `check`, or if too many results wait to be read."""
        self.check()
        unread = self.server.unread_results(self.share)
        if unread and not (self.server.close_laziest(self.fd) and not self.server.unread_results(self.share)):
            raise Busy(unread)
        most = max(1, self.server.most_results // CONNECTION_SHARE)
        if self.unread >= most:
            raise Busy(f"{most} large results wait for this connection, and its client doesn't read them")

    def cancel(self, target: int) -> bool:
        """Cancel request *target*, if it is in flight, and answer it as cancelled. Returns whether it was in flight."""
        if target not in self.tickets:
            return False
        ticket = self.drop(target)
        if ticket is not None:
            ticket.cancel()
            self.sessions.cancelled(target)
        self.connection.send(Parcel(memoryview(encode_refusal(target, "cancelled", "the client took the request back"))))
        self.server.watcher.request_refused("cancelled", self.user)
        return True

    def interrupt(self, target: int) -> bool:
        """Raise KeyboardInterrupt in the job of *target*, or cancel it before it begins. Returns whether it was in flight."""
        ticket = self.tickets.get(target)
        return isinstance(ticket, Ticket) and (ticket.interrupt() or self.cancel(target))

    def kill(self, target: int) -> bool:
        """End the job of request *target*, and answer it with its output so far; otherwise as `interrupt`."""
        ticket = self.tickets.get(target)
        return isinstance(ticket, Ticket) and (ticket.kill() or self.cancel(target))

    def end(self) -> None:
        tickets = [ticket for ticket in self.tickets.values() if ticket is not None]
        self.share.taken -= sum(self.weights.values())
        self.weights.clear()
        in_any_case(*(ticket.cancel for ticket in tickets), self.tickets.clear, self.sessions.end,
                    self.kept.close, self.sandboxes.docks.close, self.sandboxes.holds.end, self.sandboxes.seats.end)

    def drop(self, number: int) -> Cancellable | None:
        """Remove request *number*, which is answered now. A request that waits for calls of its job is answered as well."""
        ticket = self.tickets.pop(number, None)
        if self.weights:
            self.share.taken -= self.weights.pop(number, 0)
        self.exchanges.close(number)
        self.live.close(number)
        return ticket

    # --- the fast path --------------------------------------------------------

    def job_started(self, start: JobStart) -> Cancellable:
        """Return the ticket of a job of a session, or of a bound kernel, that the fast path has sent."""
        seats = self.sandboxes.seats
        return seats.job_started(start) if start.session >= FIRST_SEAT else self.sessions.job_started(start)

    def ran(self, ran: Ran) -> None:
        (self.sandboxes.seats if ran.session >= FIRST_SEAT else self.sessions).ran(ran)

    # --- the answers of jobs --------------------------------------------------

    def done(self, number: int, report: Report) -> None:
        self.drop(number)
        try:
            self._report(number, report)
        except Exception as error:  # a part of an answer may have been sent, so no other can follow
            self.server.reactor.barrier.caught(self.done, error)

    def _report(self, number: int, report: Report) -> None:
        if report.answered:
            self.connection.answered()
            return
        refused = ""
        if report.result is not None:
            try:
                parcel = pack(number, report, self.server.config.results)
                if parcel.arenas and self.share.guest:
                    try:
                        self.server.lend(self.user, parcel.arenas)
                    except BaseException:  # what can't be counted isn't sent
                        parcel.close()
                        raise
                parcel = self.kept.parcel(number, parcel)
            except (Busy, OSError, ValueError) as error:
                log.error("a result cannot be sent", error=str(error))
                refused = "internal"
                parcel = Parcel(memoryview(encode_refusal(number, refused, f"the result can't be sent: {error}")))
        else:
            refusal = report.refusal
            if refusal is None:
                refused, parcel = "internal", Parcel(memoryview(encode_refusal(number, "internal", "no result")))
            else:
                refused, parcel = refusal.kind, Parcel(memoryview(encode_refused(number, refusal)))
        self.connection.send(parcel)
        if refused:
            self.server.watcher.request_refused(refused, self.user)

    # --- later answers --------------------------------------------------------

    def wait(self, request: int, ticket: Cancellable) -> None:
        """Register *request*, which is answered later; *ticket* is cancelled if the client no longer waits for it."""
        self.tickets[request] = ticket

    def answer(self, request: int, answer: Mapping[str, Any]) -> None:
        self.drop(request)
        self.connection.send(*parcels(request, answer))

    def deliver(self, request: int, parcel: Parcel) -> None:
        self.drop(request)
        self.connection.send(self.kept.parcel(request, parcel))

    def refuse(self, request: int, why: Refused) -> None:
        self.drop(request)
        self.connection.send(Parcel(memoryview(encode_refused(request, why))))
        self.server.watcher.request_refused(why.kind, self.user)
