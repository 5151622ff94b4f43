"""
The sessions of one connection: another connection's number means nothing, and all end with it, or after a time without
a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.pool.sessions import Cancellable, PoolSession, SessionState
from leeward.daemon.run.report import Report
from leeward.daemon.serving import profiles
from leeward.daemon.serving.intake import NAME, job_of
from leeward.daemon.serving.sandbox_calls import check_limits
from leeward.daemon.serving.waiting import Later
from leeward.errors import BadRequest, Busy, Refused, SessionOver
from leeward.spec.job import Functions, Job
from leeward.spec.limits import adjusted
from leeward.wire.requests import Execute, Interrupt, SessionClose, SessionOpen, SessionReset

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight


@dataclass(slots=True)
class _Held:
    session: PoolSession
    idle: float
    job: int = 0    # the request whose job runs in the session
    waits: int = 0  # the request, an open or a reset, that waits for a worker


class Leases:
    """The sessions of one connection, by number. A number isn't used twice."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._held: dict[int, _Held] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    # --- requests -------------------------------------------------------------

    def interrupt(self, request: Interrupt) -> Mapping[str, Any]:
        return {"interrupted": self._of(request.session).session.interrupt()}

    def close(self, request: SessionClose) -> Mapping[str, Any]:
        held = self._without_job(request.session)
        if held.waits:  # also an opening: a client can guess the number of a session that isn't open yet
            self._flight.cancel(held.waits)
        self._drop(request.session)
        return {}

    def _without_job(self, number: int) -> _Held:
        """Session *number*, whose job is taken back if there is one."""
        held = self._of(number)
        if held.job:
            self._flight.cancel(held.job)
        return held

    def _of(self, number: int) -> _Held:
        held = self._held.get(number)
        if held is None:
            raise SessionOver(f"this connection has no session {number}: it never had, or it is over")
        return held

    def open(self, request: SessionOpen) -> None:
        """Open a session; the answer comes later. Refused or BadRequest if it can't be done."""
        flight, config = self._flight, self._flight.server.config
        if len(self._held) >= config.connection_sessions:
            raise Busy(f"{len(self._held)} sessions of this connection are open already, all that one may have"
                       " (connection_sessions)")
        share = flight.share
        if share.guest and share.sessions >= max(1, flight.server.jobs.most_sessions // 4):
            raise Busy(f"user {flight.user} has {share.sessions} sessions open already, all that a guest may have")
        jobs, limits, policy = profiles.place_of(flight.server, request, flight.user)
        limits = adjusted(replace(limits, cuts_output=True), config.ceilings, request.limits)
        if request.idle > config.session_idle:
            raise BadRequest(f"idle={request.idle:g} is above this daemon's session_idle {config.session_idle:g}")
        self._last += 1
        number = self._last
        held: _Held | None = None
        at_once: list[Refused | None] = []

        def opened(why: Refused | None) -> None:
            if held is None:
                at_once.append(why)
            else:
                self._opened(request.id, number, held, why)

        session = jobs.open_session(limits, opened, config.queue_timeout, flight.user, policy)
        # Registered before it is answered: if the answer shows that the client has gone, everything that is registered
        # here is ended.
        held = self._held[number] = _Held(session, request.idle or config.session_idle, waits=request.id)
        share.sessions += 1
        if at_once:
            self._opened(request.id, number, held, at_once[0])
        else:
            flight.wait(request.id, Later(lambda: self._drop(number)))

    def _opened(self, request: int, number: int, held: _Held, why: Refused | None) -> None:
        held.waits = 0
        if why is None:
            self._flight.answer(request, {"session": number})
            self._offer(number)
        else:
            self._drop(number)
            self._flight.refuse(request, why)

    def reset(self, request: SessionReset) -> None:
        flight, held = self._flight, self._without_job(request.session)

        def opened(why: Refused | None) -> None:
            held.waits = 0
            if why is None:
                flight.answer(request.id, {})
                self._offer(request.session)
            else:
                flight.refuse(request.id, why)

        held.session.reset(opened, flight.server.config.queue_timeout)
        if held.session.state is SessionState.WAITING:
            held.waits = request.id
            flight.wait(request.id, Later(held.session.give_up))

    def execute(self, request: Execute, functions: Functions | None = None) -> Cancellable:
        """Run a job in its session; it may be answered at once. SessionOver, Busy, ShuttingDown or BadRequest if it can't."""
        held = self._of(request.session)
        check_limits(request.limits, "session", "job")
        job = job_of(request, self._flight.server.config, held.session.limits, functions)

        ticket = held.session.run(job, partial(self._job_over, request.session, request.id))
        if held.session.state is SessionState.RUNNING:
            held.job = request.id
        return ticket

    def _job_over(self, number: int, request: int, report: Report) -> None:
        held = self._held.get(number)
        if held is not None:
            held.job = 0
        self._flight.done(request, report)
        self._offer(number)

    # --- the fast path --------------------------------------------------------

    def _offer(self, number: int) -> None:
        """Let the fast path have the next job of this session."""
        held = self._held.get(number)
        if held is not None:
            held.session.offer(ReplyAddress(self._flight.fd, number))

    def job_started(self, start: JobStart) -> Cancellable:
        held = self._held[start.session]
        job = Job(code=start.code, name=NAME, limits=held.session.limits)
        ticket = held.session.job_started(job, partial(self._job_over, start.session, start.request), start)
        if held.session.state is SessionState.RUNNING:
            held.job = start.request
        return ticket

    def ran(self, ran: Ran) -> None:
        self._held[ran.session].session.ran(ran)

    def cancelled(self, request: int) -> None:
        """Note that the job *request* was cancelled, and has no report."""
        for held in self._held.values():
            if held.waits == request:
                held.waits = 0
            if held.job == request:
                held.job = 0
                held.session.lose("a job in it was taken back")

    # --- the end --------------------------------------------------------------

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._flight.share.sessions -= 1
            held.session.close()

    def look(self, now: float) -> None:
        """End sessions that have been idle for too long, or have reached their lifetime."""
        for number, held in list(self._held.items()):
            session = held.session
            if session.state not in (SessionState.IDLE, SessionState.LOST):
                continue
            if now - session.opened > self._flight.server.config.session_lifetime:
                self._drop(number)
            elif now - session.since > held.idle:
                if session.state is SessionState.LOST:
                    self._drop(number)
                else:
                    session.lose(f"it had no job for {held.idle:g} s")

    def end(self) -> None:
        in_any_case(*(partial(self._drop, number) for number in list(self._held)))
