"""
The sessions of one connection.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client. A session is looked up among those of the connection that asks, so another's number
           means nothing; it ends with the connection, and after a time without a job in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from leeward.daemon.config import Config
from leeward.daemon.intake import NAME, job_of
from leeward.dataclass import dataclass, replace
from leeward.errors import BadRequest, Busy, Refused, SessionOver
from leeward.pool.sessions import Session, State
from leeward.spec.job import Job
from leeward.spec.limits import Limits, adjusted
from leeward.wire.messages import Execute, Interrupt, SessionClose, SessionOpen, SessionReset
from leeward.worker.express import Client
from leeward.worker.report import Report
from leeward.worker.stream import Begun, Ran

#: Sessions of one connection at once.
SESSIONS = 16
#: Of a session's job, the limits that it can ask for.
_ADJUSTABLE = ("time", "output")

Asked = SessionOpen | SessionReset | SessionClose | Interrupt


class Jobs(Protocol):
    """
    What is needed of the pool.
    """

    @property
    def most_sessions(self) -> int: ...
    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int) -> Session: ...


class Ticket(Protocol):
    def cancel(self) -> None: ...


class Owner(Protocol):
    """
    The connection.
    """

    @property
    def config(self) -> Config: ...
    @property
    def fd(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def guest_sessions(self) -> int | None:
        """
        How many the user has on all connections, if he is a guest.
        """

    def wait(self, request: int, ticket: Ticket) -> None:
        """
        *request* has no answer yet; *ticket* is cancelled if nobody waits for it any more.
        """

    def answer(self, request: int, answer: Mapping[str, Any]) -> None: ...
    def refuse(self, request: int, why: Refused) -> None: ...
    def take_back(self, request: int) -> None:
        """
        End the job *request*, and refuse it as cancelled.
        """

    def count_sessions(self, more: int) -> None: ...


@dataclass(slots=True)
class _Held:
    session: Session
    idle: float
    job: int = 0    # the request that runs in it
    reset: int = 0  # the request that waits for its worker


@dataclass(frozen=True, slots=True)
class _Opening:
    """
    A session that waits for its worker, as a ticket.
    """

    give_up: Callable[[], None]

    def cancel(self) -> None:
        self.give_up()


class Leases:
    """
    By number; a number isn't used twice.
    """

    def __init__(self, jobs: Jobs, owner: Owner) -> None:
        self._jobs, self._owner = jobs, owner
        self._held: dict[int, _Held] = {}
        self._last = 0

    # --- requests -------------------------------------------------------------

    def serve(self, request: Asked) -> Mapping[str, Any] | None:
        """
        The answer to *request*, or None if it comes later.

        Raises:
            Refused, BadRequest: it can't be done.
        """
        if isinstance(request, SessionOpen):
            self._open(request)
            return None
        held = self._of(request.session)
        if isinstance(request, Interrupt):
            return {"interrupted": held.session.interrupt()}
        if held.job:
            self._owner.take_back(held.job)
        if isinstance(request, SessionClose):
            if held.reset:
                self._owner.take_back(held.reset)
            self._drop(request.session)
            return {}
        self._reset(request, held)
        return None

    def _of(self, number: int) -> _Held:
        held = self._held.get(number)
        if held is None:
            raise SessionOver(f"this connection has no session {number}: it never had, or it is over")
        return held

    def _open(self, request: SessionOpen) -> None:
        owner, config = self._owner, self._owner.config
        if len(self._held) >= SESSIONS:
            raise Busy(f"{SESSIONS} sessions of this connection are open already")
        guests = owner.guest_sessions
        if guests is not None and guests >= max(1, self._jobs.most_sessions // 4):
            raise Busy(f"user {owner.user} has {guests} sessions open already, all that a guest may have")
        limits = adjusted(config.limits, config.ceilings, request.limits)
        if request.idle > config.session_idle:
            raise BadRequest(f"idle={request.idle:g} is above this daemon's session_idle {config.session_idle:g}")
        self._last += 1
        number, refused = self._last, False

        def opened(why: Refused | None) -> None:
            nonlocal refused
            if why is None:
                owner.answer(request.id, {"session": number})
                self._offer(number)  # if it isn't among ours yet, that comes
                return
            refused = True
            self._drop(number)
            owner.refuse(request.id, why)

        session = self._jobs.open_session(limits, opened, config.queue_timeout, owner.user)
        if refused:
            session.close()
            return
        self._held[number] = _Held(session, request.idle or config.session_idle)
        owner.count_sessions(1)
        if State.WAITING is session.state:
            owner.wait(request.id, _Opening(lambda: self._drop(number)))
        else:
            self._offer(number)

    def _reset(self, request: SessionReset, held: _Held) -> None:
        owner = self._owner

        def opened(why: Refused | None) -> None:
            held.reset = 0
            if why is None:
                owner.answer(request.id, {})
                self._offer(request.session)
            else:
                owner.refuse(request.id, why)

        held.session.reset(opened, owner.config.queue_timeout)
        if State.WAITING is held.session.state:
            held.reset = request.id
            owner.wait(request.id, _Opening(held.session.give_up))

    def execute(self, request: Execute, done: Callable[[Report], None]) -> Ticket:
        """
        Run a job in its session; *done* may be called before this returns.

        Raises:
            SessionOver, Busy, ShuttingDown, BadRequest: it can't be run.
        """
        held = self._of(request.session)
        for name in request.limits:
            if name not in _ADJUSTABLE:
                raise BadRequest(f"limit {name!r:.40} is the session's, asked for when it is opened; a job in it can"
                                 f" ask for {' and '.join(_ADJUSTABLE)}")
        config = self._owner.config
        job = job_of(request, replace(config, limits=held.session.limits))

        ticket = held.session.run(job, partial(self._over, request.session, held, done))
        if State.RUNNING is held.session.state:
            held.job = request.id
        return ticket

    def _over(self, number: int, held: _Held, done: Callable[[Report], None], report: Report) -> None:
        held.job = 0
        done(report)
        self._offer(number)

    # --- the short way --------------------------------------------------------

    def _offer(self, number: int) -> None:
        """
        Let the short way have the next job of this session.
        """
        held = self._held.get(number)
        if held is not None:
            held.session.offer(Client(self._owner.fd, number))

    def begun(self, begun: Begun, done: Callable[[Report], None]) -> Ticket:
        """
        The ticket of a session's job that the short way has sent.
        """
        held = self._held[begun.session]
        job = Job(code=begun.code, name=NAME, limits=held.session.limits)
        ticket = held.session.begun(job, partial(self._over, begun.session, held, done), begun)
        if State.RUNNING is held.session.state:
            held.job = begun.request
        return ticket

    def ran(self, ran: Ran) -> None:
        """
        The short way has sent a session's job, and answered it.
        """
        self._held[ran.session].session.ran(ran)

    def cancelled(self, request: int) -> None:
        """
        The job *request* was taken back: no report of it comes.
        """
        for held in self._held.values():
            if held.reset == request:
                held.reset = 0
            if held.job == request:
                held.job = 0
                held.session.lose("a job in it was taken back")

    # --- the end --------------------------------------------------------------

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._owner.count_sessions(-1)
            held.session.close()

    def look(self, now: float) -> None:
        """
        End what was idle for too long, or has lived for too long.
        """
        for number, held in list(self._held.items()):
            session = held.session
            if session.state not in (State.IDLE, State.LOST):
                continue
            if now - session.opened > self._owner.config.session_lifetime:
                self._drop(number)
            elif now - session.since > held.idle:
                if State.LOST is session.state:
                    self._drop(number)
                else:
                    session.lose(f"it had no job for {held.idle:g} s")

    def end(self) -> None:
        """
        The connection has ended.
        """
        for number in list(self._held):
            self._drop(number)
