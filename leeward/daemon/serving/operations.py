"""
The operations of the wire: one method for each kind of request of a connection.

A request that can't be decoded ends its connection; one that can't be fulfilled is refused. A guest, whom the group
lets in, gets a share of what is bounded for all, and can't end the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward import __version__
from leeward.base.points import point
from leeward.daemon.config import caps
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.pool.egress_record import EVERYBODY
from leeward.daemon.run.report import Arena as Results
from leeward.daemon.run.verdict import bug
from leeward.daemon.sandboxes.live_sandboxes import SandboxEntry
from leeward.daemon.serving import inbox, profiles, snapshots
from leeward.daemon.serving.flight import Flight
from leeward.daemon.serving.inbox import RequestArena
from leeward.daemon.serving.intake import job_of
from leeward.daemon.serving.parcel import Parcel, parcels
from leeward.daemon.serving.rounds import GUEST_SHARE, Share
from leeward.daemon.serving.sandboxes import ASLEEP, FIRST_SEAT, IN_SANDBOX, Sandboxes, page
from leeward.daemon.serving.waiting import RecallWait, UserBook
from leeward.daemon.telling.log import log
from leeward.errors import BadRequest, Busy, Forbidden, PeerError, Refused
from leeward.spec.job import Functions
from leeward.wire import fetches, outline
from leeward.wire import requests as wire
from leeward.wire.answers import encode_ok, encode_refusal, encode_refused, refusal_of
from leeward.wire.frames import MAX_TEXT, VERSION, decode, decode_in_place
from leeward.wire.sandbox_requests import (
    SandboxDock,
    SandboxExtend,
    SandboxList,
    SandboxOpen,
    SandboxRequest,
    SnapshotExport,
    SnapshotImport,
    SnapshotInfo,
    SnapshotList,
    SnapshotRead,
    SnapshotRemove,
    SnapshotWrite,
)
from leeward.wire.schema import Operation

if TYPE_CHECKING:
    from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes
    from leeward.daemon.serving.connection import Connection
    from leeward.daemon.serving.server import Server

#: Bytes from which a request is checked before it is decoded; the check of a smaller one costs as much as decoding it.
_LARGE = 1 << 12
#: Bytes of a guest's request that are counted while it has no answer.
_HEAVY = 1 << 16


class Operations:
    """The operations of one connection. *copied* counts bytes that were copied out of the arena."""

    costs = "connection"

    __slots__ = ("_arena", "_connection", "_flight", "_listens", "_server", "_share", "broken", "copied")

    def __init__(self, server: Server, share: Share, flight: Flight, connection: Connection) -> None:
        self._server, self._share, self._flight, self._connection = server, share, flight, connection
        self.broken = connection.broken  # for the barrier
        self._arena: RequestArena | None = None
        self._listens = False
        self.copied = 0

    def serve(self, payload: bytes | memoryview) -> None:
        """Answer one request, now or later."""
        server, flight = self._server, self._flight
        server.watcher.metrics.requests += 1
        if len(payload) >= _LARGE and server.jobs.crowded and self._too_late(outline.whole(payload)):
            return
        alone = None if isinstance(payload, memoryview) else outline.code_alone(payload)
        try:
            if alone is not None:
                message: Mapping[str, Any] = {}
            elif isinstance(payload, memoryview):
                message = decode_in_place(payload, MAX_TEXT)
            else:
                message = decode(payload, MAX_TEXT)
            number = wire.request_id(message) if alone is None else alone.id
            if number in flight.tickets:
                raise PeerError(f"request {number} is still in flight")
        except PeerError as error:
            self._connection.refuse("bad_request", str(error))
            return
        heavy = self._share.guest and len(payload) >= _HEAVY
        try:
            if heavy:
                flight.check_weight(len(payload))
            request = wire.parse_request(message) if alone is None else alone
            if isinstance(request, wire.Slot):
                found = self._out_of_slot(request)
                if found is None:
                    return
                request = found
                heavy = self._share.guest
            self._admit(request.operation)
            answer = HANDLERS[type(request)](self, request)
            if heavy:
                flight.weigh(number, max(len(payload), self.copied))
            if answer is None:
                return
            sent = [answer] if isinstance(answer, Parcel) else parcels(number, answer)
        except (BadRequest, Refused) as error:
            sent = [Parcel(memoryview(encode_refused(number, error)))]
            server.watcher.request_refused(refusal_of(error)[0], self._share.user)
        except Exception as error:
            # A bug of ours: this request is refused as `internal`, and the connection goes on.
            server.reactor.barrier.note(self.serve, error)
            sent = [Parcel(memoryview(encode_refusal(number, "internal", bug(error))))]
            self._server.watcher.request_refused("internal", self._share.user)
        self._connection.send(*sent)

    def _admit(self, operation: Operation) -> None:
        """Check whether a request may be served now: Forbidden to some guests, Busy if there is no room."""
        if operation.guests and self._share.guest:
            raise Forbidden(operation.guests.format(user=self._share.user))
        if operation.admits == "job":
            self._flight.check_job()
        elif operation.admits == "request":
            self._flight.check()

    def _too_late(self, number: int) -> bool:
        """Refuse job *number*, 0 if it is none, undecoded if it would wait too long: a flood costs no decoding then."""
        if not number or number in self._flight.tickets:
            return False
        why = self._server.jobs.admission.refusal(self._share.user, self._flight.fd, self._server.reactor.now())
        if why is not None:
            self._flight.refuse(number, why)
        return why is not None

    # --- jobs -----------------------------------------------------------------

    def _execute(self, request: wire.Execute) -> None:
        server, flight = self._server, self._flight
        if request.session >= FIRST_SEAT:
            flight.sandboxes.execute_bound(request)
            return
        functions = flight.exchanges.open(request.id, request.functions, server.config.ceilings.time)
        try:
            self._start(request, functions)
        except Exception:
            flight.exchanges.close(request.id)
            raise

    def _start(self, request: wire.Execute, functions: Functions | None) -> None:
        server, flight = self._server, self._flight
        if request.policy:
            self._pay(request.policy)
        jobs, limits, policy = profiles.place_of(server, request, self._share.user)
        job = None if request.session else job_of(request, server.config, limits, functions, policy)
        tickets = flight.tickets
        tickets[request.id] = None
        try:
            ticket = flight.sessions.execute(request, functions) if job is None else jobs.submit(
                job, partial(flight.done, request.id), max(server.config.queue_timeout, job.limits.wall or 0.0),
                self._share.user, ReplyAddress(flight.fd, request.id, flight.number))
        except Exception as error:
            if request.id in tickets:
                del tickets[request.id]
                raise
            server.reactor.barrier.note(self._execute, error)  # it has its answer, and gets no other
            return
        if request.id in tickets:  # not answered at once
            tickets[request.id] = ticket

    def _cancel(self, request: wire.Cancel) -> Mapping[str, Any]:
        flight = self._flight
        ends = flight.kill if request.kill else flight.interrupt if request.interrupt else flight.cancel
        return {"cancelled": ends(request.target)}

    # --- sessions and live sandboxes --------------------------------------------

    def _open_session(self, request: wire.SessionOpen) -> None:
        self._pay(request.policy)
        self._flight.sessions.open(request)

    def _pay(self, *policies: Mapping[str, Any]) -> None:
        """Charge for parsing *policies*, which costs many times as much as decoding their bytes."""
        self._server.rounds.charge(self._share.budget, fetches.policy_entries(*policies))

    def _open_sandbox(self, request: SandboxOpen) -> None:
        self._pay(request.policy, request.fetch_policy)
        self._flight.sandboxes.open(request)

    def _dock(self, request: SandboxDock) -> Parcel:
        if self._flight.kept.wanted:
            raise BadRequest("a dock is a descriptor, and this client takes none (keep_results)")
        number, fd = self._flight.sandboxes.docks.make()
        return Parcel(memoryview(encode_ok(request.id, {"dock": number, "socket": True})), [Results(fd, 0)], weight=1)

    # --- results of clients that take no descriptors ---------------------------

    def _keep(self, _request: wire.KeepResults) -> Mapping[str, Any]:
        self._flight.kept.wanted = True
        return {}

    def _read_kept(self, request: wire.KeptRead) -> Mapping[str, Any]:
        data = self._flight.kept.read(request)
        self.copied += len(data)
        return {"data": data}

    # --- large requests -------------------------------------------------------

    def _grant(self, request: wire.ArenaOpen) -> Parcel:
        server, share, size = self._server, self._share, RequestArena.size
        if self._flight.kept.wanted:
            raise BadRequest("an arena is a descriptor, and this client takes none (keep_results)")
        if self._arena is not None:
            raise BadRequest("this connection has an arena already")
        if server.requests + size > server.most_requests:
            raise Busy(f"arenas of {server.requests} bytes are open already")
        if share.guest and share.requests + size > server.most_requests // GUEST_SHARE:
            raise Busy(f"arenas of {share.requests} bytes of yours are open already")
        try:
            self._arena, fd = RequestArena.make()
        except OSError as error:
            raise Busy(f"no arena can be made: {error.strerror}") from None
        server.requests += size
        share.requests += size
        answer = {"slots": inbox.SLOTS, "size": inbox.SLOT, "arenas": [size]}
        return Parcel(memoryview(encode_ok(request.id, answer)), [Results(fd, size)], weight=1)

    def _out_of_slot(self, request: wire.Slot) -> wire.Execute | None:
        """Return the request in a slot, decoded from our own copy; None if it was refused before it was copied."""
        if self._arena is None:
            raise BadRequest("this connection has no arena; ask for one")
        if self._server.jobs.crowded and request.id == outline.unread(
                self._arena.look(request.slot, request.length)) and self._too_late(request.id):
            return None
        self._flight.check_job()
        if self._share.guest:
            self._flight.check_weight(request.length)
        self.copied += request.length
        try:
            message = decode(self._arena.take(request.slot, request.length), MAX_TEXT)
            number = wire.request_id(message)
        except PeerError as error:
            raise BadRequest(f"slot {request.slot}: {error}") from None
        if number != request.id:
            raise BadRequest(f"slot {request.slot} holds request {number}, not {request.id}")
        inner = wire.parse_request(message)
        if not isinstance(inner, wire.Execute):
            raise BadRequest(f"slot {request.slot} holds no execute request")
        return inner

    # --- the daemon -----------------------------------------------------------

    @point("daemon.ping")
    def _ping(self, _request: wire.Ping) -> Mapping[str, Any]:
        return {"version": __version__, "wire": VERSION, "caps": caps(self._server.config, self._server.jobs.most_jobs)}

    def _status(self, request: wire.Status) -> Mapping[str, Any]:
        return _as_asked(request, self._server.status())

    def _recall(self, request: wire.Recall) -> Mapping[str, Any] | None:
        return self._from_book(self._server.watcher.events, self._flight.user, request)

    def _egress_log(self, request: wire.EgressLog) -> Mapping[str, Any] | None:
        return self._from_book(self._server.egress, self._flight.user if self._share.guest else EVERYBODY, request)

    def _egress_asks(self, request: wire.EgressAsks) -> Mapping[str, Any] | None:
        if request.wait and not self._listens:
            self._listens = True
            self._server.asks.listen()
        return self._from_book(self._server.asks, EVERYBODY, request)

    def _from_book(self, book: UserBook, user: int,
                   request: wire.Recall | wire.EgressLog | wire.EgressAsks) -> Mapping[str, Any] | None:
        flight = self._flight
        answer = book.after(user, request.after)
        if answer["events"] or not request.wait:
            return answer
        flight.check()
        flight.wait(request.id, RecallWait(self._server.reactor, book, user, request.after, request.wait,
                                           partial(flight.answer, request.id), self.broken))
        return None

    def _shut_down(self, request: wire.Shutdown) -> Mapping[str, Any]:
        log.info("a client asks to shut down")
        self._server.reactor.soon(partial(self._server.shut_down, request.now))
        return {}

    def close(self) -> None:
        listens, self._listens = self._listens, False
        if listens:
            self._server.asks.unlisten()
        ours, self._arena = self._arena, None
        if ours is not None:
            self._server.requests -= RequestArena.size
            self._share.requests -= RequestArena.size
            ours.close()


def _as_asked(request: wire.Status, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if request.form != "json":
        return answer
    return {"json": json.dumps(answer)}


Answer = Mapping[str, Any] | Parcel | None
Handler = Callable[[Operations, Any], Answer]


def _in_sandbox(serve: Callable[[Sandboxes, Any, SandboxEntry], Answer]) -> Handler:
    """What serves a request that names a sandbox: *serve*, with the sandbox."""
    def handler(of: Operations, request: SandboxRequest) -> Answer:
        sandboxes = of._flight.sandboxes
        if isinstance(request, ASLEEP):
            if isinstance(request, SandboxExtend):
                of._pay(request.policy)
            return serve(sandboxes, request, sandboxes.find_asleep(request.sandbox))
        if sandboxes.wakes(request, sandboxes.find_asleep(request.sandbox)):
            return None
        return serve(sandboxes, request, sandboxes.find(request.sandbox))
    return handler


def _of_user(serve: Callable[[LiveSandboxes, Any, int], Answer]) -> Handler:
    return lambda of, request: serve(of._server.desk, request, of._flight.user)


#: What serves each kind of request, and those that are based on it: with a map, or the whole parcel; None if the answer
#: comes later. A request is admitted first, as its operation says.
_SERVES: Mapping[type, Handler] = {
    wire.Execute: Operations._execute,
    wire.Cancel: Operations._cancel,
    wire.FunctionTake: lambda of, request: of._flight.exchanges.take(request),
    wire.FunctionAnswer: lambda of, request: of._flight.exchanges.answer(request),
    wire.OutputTake: lambda of, request: of._flight.live.take(request),
    wire.ArenaOpen: Operations._grant,
    wire.KeepResults: Operations._keep,
    wire.KeptRead: Operations._read_kept,
    wire.KeptDrop: lambda of, request: {"dropped": of._flight.kept.drop(request)},
    wire.Ping: Operations._ping,
    wire.Status: Operations._status,
    wire.Recall: Operations._recall,
    wire.Shutdown: Operations._shut_down,
    wire.EgressLog: Operations._egress_log,
    wire.EgressAsks: Operations._egress_asks,
    wire.EgressAnswer: lambda of, request: {"taken": of._server.asks.answer(request.ask, request.allow, request.message)},
    wire.SessionOpen: Operations._open_session,
    wire.SessionReset: lambda of, request: of._flight.sessions.reset(request),
    wire.SessionClose: lambda of, request: of._flight.sessions.close(request),
    wire.Interrupt: lambda of, request: of._flight.sessions.interrupt(request),
    SandboxDock: Operations._dock,
    SandboxOpen: Operations._open_sandbox,
    SnapshotList: lambda of, _: snapshots.rows(of._server.desk, of._flight.user),
    **{kind: _of_user(serve) for kind, serve in (
        (SnapshotInfo, snapshots.info), (SnapshotRemove, snapshots.remove), (SnapshotExport, snapshots.export),
        (SnapshotRead, snapshots.read), (SnapshotImport, snapshots.begin_import), (SnapshotWrite, snapshots.write))},
    SandboxList: lambda of, request: page(of._server.desk, of._flight.user, request.after),
    **{kind: _in_sandbox(serve) for kind, serve in IN_SANDBOX.items()},
}

#: By kind of request, but for a slot, which stands for the request in it. An operation that nothing serves is an error
#: here, when the daemon starts.
HANDLERS: Mapping[type, Handler] = {
    one.kind: next(_SERVES[kind] for kind in one.kind.__mro__ if kind in _SERVES)
    for one in wire.OPERATIONS.values() if one.kind is not wire.Slot}
