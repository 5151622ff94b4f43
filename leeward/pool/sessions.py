"""
A session: what one client has between its jobs, and how it comes by a worker and loses it.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. A session waits for a worker in the pool's queue, like a job, and counts as one running job of its
user as long as it has one. The worker's runner is its *lease*, and its jobs run there one after the other. When the
lease is over, for whatever reason, the state that the jobs had is gone: the session is LOST, holds no worker
any more, and says why to whoever sends the next job, until it is reset or closed. A lease that is given back
while a job runs takes its time; the session has forgotten it then, and only the user's account still knows.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from leeward.errors import Busy, LeewardError, Refused, SessionOver
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.worker.express import Client
from leeward.worker.lease import Lease
from leeward.worker.report import Report
from leeward.worker.states import after
from leeward.worker.stream import Begun, Ran
from leeward.worker.worker import Worker

Done = Callable[[Report], None]
Told = Callable[[Refused | None], None]


class Taken(Protocol):
    """
    A ticket of the pool's.
    """

    def cancel(self) -> None: ...


class Home(Protocol):
    """
    The pool, as far as a session needs it.
    """

    def await_worker(self, limits: Limits, user: int, take: Callable[[Worker], bool], refused: Done,
                     seconds: float) -> Taken | None: ...
    def run_in(self, lease: Lease, job: Job, done: Done, user: int, admit: Limits) -> Taken: ...
    def begun_in(self, lease: Lease, job: Job, done: Done, user: int, begun: Begun) -> Taken: ...
    def ran_in(self, lease: Lease, ran: Ran, user: int) -> None: ...
    @property
    def short(self) -> object | None: ...
    def lease_over(self, user: int, limits: Limits) -> None: ...
    def forget_session(self, session: Session) -> None: ...


class State(enum.Enum):
    WAITING = "waiting"  # for a worker
    IDLE = "idle"
    RUNNING = "running"  # has a job
    LOST = "lost"        # its process has ended, and the state with it
    CLOSED = "closed"


class Event(enum.Enum):
    LEASED = "leased"
    REFUSED = "refused"  # no worker was to be had
    STARTED = "started"
    ENDED = "ended"      # the job, and the process lives
    LOST = "lost"
    RESET = "reset"
    CLOSED = "closed"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.WAITING, Event.LEASED): State.IDLE,
    (State.WAITING, Event.REFUSED): State.LOST,
    (State.IDLE, Event.STARTED): State.RUNNING,
    (State.RUNNING, Event.ENDED): State.IDLE,
    (State.IDLE, Event.LOST): State.LOST,
    (State.RUNNING, Event.LOST): State.LOST,
    (State.IDLE, Event.RESET): State.WAITING,
    (State.RUNNING, Event.RESET): State.WAITING,
    (State.LOST, Event.RESET): State.WAITING,
    (State.WAITING, Event.CLOSED): State.CLOSED,
    (State.IDLE, Event.CLOSED): State.CLOSED,
    (State.RUNNING, Event.CLOSED): State.CLOSED,
    (State.LOST, Event.CLOSED): State.CLOSED,
}


def sessions_of(asked: int, workers: int) -> int:
    """
    How many sessions a pool may have: *asked*, or below 0 as many as leave half of its *workers* to others.
    """
    return workers // 2 if asked < 0 else min(asked, workers)


class Session:
    """
    Made by `Pool.open_session`.

    Attributes:
        since: when it was last used, CLOCK_MONOTONIC seconds.
        opened: when it was opened.
    """

    def __init__(self, pool: Home, limits: Limits, user: int) -> None:
        self.limits = limits
        self.state = State.WAITING
        self.opened = self.since = time.monotonic()
        self._pool = pool
        self._user = user
        self._lease: Lease | None = None
        self._wait: Taken | None = None
        self._told: Told | None = None
        self._why = ""

    def _happen(self, event: Event) -> None:
        self.state = after("session", TABLE, self.state, event)
        self.since = time.monotonic()

    # --- a worker -------------------------------------------------------------

    def acquire(self, told: Told, seconds: float) -> None:
        """
        Wait for a worker, at most so many *seconds*; *told* is called once.

        Raises:
            Refused, BadRequest: there is no use in waiting.
        """
        self._told = told
        try:
            self._wait = self._pool.await_worker(self.limits, self._user, self._take, self._refused, seconds)
        except LeewardError as error:
            self._told = None
            self._why = str(error)
            self._happen(Event.REFUSED)
            raise

    def _take(self, worker: Worker) -> bool:
        lease: Lease | None = None

        def lost(why: str) -> None:
            self._pool.lease_over(self._user, self.limits)
            if self._lease is lease is not None:
                self._lease = None
                self._lose(why)
        try:
            lease = self._lease = worker.lease(self.limits, lost)
        except LeewardError:
            return False
        self._wait = None
        self._happen(Event.LEASED)
        self._tell(None)
        return True

    def _refused(self, report: Report) -> None:
        self._wait = None
        why = report.refusal
        if why is None:
            error = None if report.result is None else report.result.error
            why = Busy("no worker could be had" if error is None else f"no worker could be had: {error.message}")
        self._why = why.message
        self._happen(Event.REFUSED)
        self._tell(why)

    def _tell(self, why: Refused | None) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(why)

    def _lose(self, why: str) -> None:
        if self.state in (State.IDLE, State.RUNNING):
            self._why = why
            self._happen(Event.LOST)

    def _give_back(self, why: str) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end(why)

    # --- jobs -----------------------------------------------------------------

    def run(self, job: Job, done: Done) -> Taken:
        """
        Run *job* in this session.

        Raises:
            Busy: it has a job, or waits for a worker; or its user sends more than he may.
            SessionOver: its process has ended.
            ShuttingDown: the daemon is draining.
        """
        if State.RUNNING is self.state:
            raise Busy("the session has a job already, and runs one at a time")
        if State.WAITING is self.state:
            raise Busy("the session waits for its worker")
        if self._lease is None:
            raise SessionOver(f"the session's state is gone: {self._why}")
        self._happen(Event.STARTED)
        try:
            return self._pool.run_in(self._lease, job, partial(self._done, done), self._user, self.limits)
        except LeewardError:
            self._happen(Event.ENDED)
            raise

    def begun(self, job: Job, done: Done, begun: Begun) -> Taken:
        """
        The short way has sent *job*.
        """
        assert self._lease is not None
        self._happen(Event.STARTED)
        return self._pool.begun_in(self._lease, job, partial(self._done, done), self._user, begun)

    def ran(self, ran: Ran) -> None:
        """
        The short way has sent a job, and answered it.
        """
        assert self._lease is not None
        assert State.IDLE is self.state
        self.since = ran.ended
        self._pool.ran_in(self._lease, ran, self._user)

    def offer(self, client: Client) -> None:
        """
        Let the short way have the next jobs; see Lease.offer.
        """
        if State.IDLE is self.state and self._lease is not None and self._pool.short is not None:
            self._lease.offer(self.limits, client)

    def _done(self, done: Done, report: Report) -> None:
        if State.RUNNING is self.state:
            self._happen(Event.ENDED)
        done(report)

    def interrupt(self) -> bool:
        """
        KeyboardInterrupt in the job that runs; is there one?
        """
        return State.RUNNING is self.state and self._lease is not None and self._lease.interrupt()

    # --- the end --------------------------------------------------------------

    def reset(self, told: Told, seconds: float) -> None:
        """
        Give up the process for a fresh one; *told* is called once it is here, or can't be had. Its job, if there is
        one, must have been taken back.

        Raises:
            Busy: it waits for a worker already.
            Refused, BadRequest: as `acquire`; the session is lost.
        """
        if State.WAITING is self.state:
            raise Busy("the session waits for its worker")
        self._happen(Event.RESET)
        self._give_back("it was reset")
        self.acquire(told, seconds)

    def give_up(self) -> None:
        """
        Nobody waits for its worker any more.
        """
        if State.WAITING is self.state:
            self._told = None
            wait, self._wait = self._wait, None
            self._why = "nobody waited for its worker"
            self._happen(Event.REFUSED)
            if wait is not None:
                wait.cancel()

    def lose(self, why: str) -> None:
        """
        Give back the worker of a session that has no job.
        """
        self._lose(why)
        self._give_back(why)

    def drain(self) -> None:
        """
        The daemon ends: what has no job has no worker any more, and what has one gets no other.
        """
        if State.IDLE is self.state:
            self.lose("the daemon is shutting down")
        elif self._lease is not None:
            self._lease.keep()

    def close(self) -> None:
        """
        The end. A job that runs must have been taken back.
        """
        if State.CLOSED is self.state:
            return
        self._told = None
        wait, self._wait = self._wait, None
        self._why = "it was closed"
        self._happen(Event.CLOSED)
        if wait is not None:
            wait.cancel()
        self._give_back("it was closed")
        self._pool.forget_session(self)
