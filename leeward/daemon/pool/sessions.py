"""
Sessions, the state that one client has between its jobs, and seats of live sandboxes: how each gets a worker, and loses
it.

Theory of operation. A session waits for a worker in the pool's queue, like a job, and counts as one running job of its
user as long as it has one. The worker's runner is its *lease*, and its jobs run there one after the other. When the
lease is over, for whatever reason, the jobs' state is lost: the session is LOST, holds no worker, and refuses further
jobs with the reason, until it is reset or closed. A lease that is given back while a job runs takes some time to end;
only the user's account still counts it by then. A sandbox's seat is the same with a live runner, which takes processes
until it ends.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import after
from leeward.daemon.run.verdict import bug
from leeward.daemon.worker.worker import Worker
from leeward.errors import Bug, Busy, LeewardError, Refused, SessionOver
from leeward.spec.job import Job
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool
    from leeward.daemon.run.live_runner import LiveRunner


Done = Callable[[Report], None]
Opened = Callable[[Refused | None], None]


class Cancellable(Protocol):
    """A job, or a wait for a worker, that its client may give up."""

    def cancel(self) -> None: ...


class SessionState(enum.Enum):
    WAITING = "waiting"  # for a worker
    IDLE = "idle"
    RUNNING = "running"  # has a job
    LOST = "lost"        # its process has ended, and the state with it
    CLOSED = "closed"


class SessionEvent(enum.Enum):
    LEASED = "leased"
    REFUSED = "refused"  # no worker was to be had
    STARTED = "started"
    ENDED = "ended"      # the job, and the process lives
    LOST = "lost"
    RESET = "reset"
    CLOSED = "closed"


TABLE: Mapping[tuple[SessionState, SessionEvent], SessionState] = {
    (SessionState.WAITING, SessionEvent.LEASED): SessionState.IDLE,
    (SessionState.WAITING, SessionEvent.REFUSED): SessionState.LOST,
    (SessionState.IDLE, SessionEvent.STARTED): SessionState.RUNNING,
    (SessionState.RUNNING, SessionEvent.ENDED): SessionState.IDLE,
    (SessionState.IDLE, SessionEvent.LOST): SessionState.LOST,
    (SessionState.RUNNING, SessionEvent.LOST): SessionState.LOST,
    **{(state, SessionEvent.RESET): SessionState.WAITING
       for state in (SessionState.IDLE, SessionState.RUNNING, SessionState.LOST)},
    **{(state, SessionEvent.CLOSED): SessionState.CLOSED for state in SessionState if state is not SessionState.CLOSED},
}


def sessions_of(asked: int, workers: int, room: int) -> int:
    """How many sessions a pool may have: *asked*; if negative, half of its *workers*, and *room* more."""
    return workers // 2 + room if asked < 0 else min(asked, workers + room)


def _refusal_of(report: Report) -> Refused:
    error = None if report.result is None else report.result.error
    return report.refusal or Busy("no worker could be had" + ("" if error is None else f": {error.message}"))


class PoolSession:
    """Made by `Pool.open_session`. *egress*: the client's policy, if it narrows the pool's; *since*: its last use."""

    costs = "session"

    def __init__(self, pool: Pool, limits: Limits, user: int, egress: Mapping[str, Any] | None = None) -> None:
        self._pool, self.egress = pool, egress
        self.limits = limits
        self.state = SessionState.WAITING
        self.opened = self.since = self._pool.now()
        self.user = user  # the uid of its user
        self._lease: Lease | None = None
        self._wait: Cancellable | None = None
        self._on_opened: Opened | None = None
        self._why = ""

    def _happen(self, event: SessionEvent) -> None:
        self.state = after("session", TABLE, self.state, event)
        self.since = self._pool.now()

    def acquire(self, opened: Opened, seconds: float) -> None:
        """Wait for a worker, at most *seconds*; *opened* is called once. Refused, BadRequest if waiting is no use."""
        self._on_opened = opened
        try:
            self._wait = self._pool.await_worker(self.limits, self.user, self._take, self._refused, seconds)
        except LeewardError as error:
            self._on_opened = None
            self._why = str(error)
            self._happen(SessionEvent.REFUSED)
            raise

    def _take(self, worker: Worker) -> bool:
        lease: Lease | None = None

        def lost(why: str) -> None:
            self._pool.lease_over(self.user, self.limits)
            if self._lease is lease is not None:
                self._lease = None
                self._lose(why)
        try:
            lease = self._lease = worker.leasing.lease(self.limits, lost, self.egress)
        except LeewardError:
            return False
        self._wait = None
        self._happen(SessionEvent.LEASED)
        self._report_opened(None)
        return True

    def _refused(self, report: Report) -> None:
        self._wait = None
        why = _refusal_of(report)
        self._why = why.message
        self._happen(SessionEvent.REFUSED)
        self._report_opened(why)

    def _report_opened(self, why: Refused | None) -> None:
        opened, self._on_opened = self._on_opened, None
        if opened is not None:
            opened(why)

    def _lose(self, why: str) -> None:
        if self.state in (SessionState.IDLE, SessionState.RUNNING):
            self._why = why
            self._happen(SessionEvent.LOST)

    def _give_back(self, why: str) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end(why)

    def run(self, job: Job, done: Done) -> Cancellable:
        """Run *job* in this session; Busy if it has one, waits, or by its user's rate; SessionOver, ShuttingDown."""
        if self.state is SessionState.RUNNING:
            raise Busy("the session has a job already, and runs one at a time")
        if self.state is SessionState.WAITING:
            raise Busy("the session waits for its worker")
        if self._lease is None:
            raise SessionOver(f"the session's state is gone: {self._why}")
        self._happen(SessionEvent.STARTED)
        try:
            return self._pool.run_in(self, self._lease, job, done)
        except LeewardError:
            self._happen(SessionEvent.ENDED)
            raise
        except Exception as error:
            self.broken(error)
            raise

    def job_started(self, job: Job, done: Done, start: JobStart) -> Cancellable:
        """Record that the fast path has sent *job*."""
        if self._lease is None:
            raise Bug("a job was sent to a session that has no process")
        self._happen(SessionEvent.STARTED)
        return self._pool.run_in(self, self._lease, job, done, start)

    def ran(self, ran: Ran) -> None:
        """Record that the fast path has sent a job, and answered it."""
        if self._lease is None or self.state is not SessionState.IDLE:
            raise Bug(f"a job was run by a session that is {self.state.value}")
        self.since = ran.ended
        self._pool.ran_in(self._lease, ran, self.user)

    def offer(self, client: ReplyAddress) -> None:
        """Let the fast path have the next jobs; see Lease.offer."""
        if self.state is SessionState.IDLE and self._lease is not None and self._pool.workforce.fast_path is not None:
            self._lease.offer(self.limits, client)

    def job_over(self) -> None:
        if self.state is SessionState.RUNNING:
            self._happen(SessionEvent.ENDED)

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running job. Returns whether there is one."""
        return self.state is SessionState.RUNNING and self._lease is not None and self._lease.interrupt()

    def reset(self, opened: Opened, seconds: float) -> None:
        """
        Replace the process by a fresh one, after any job was cancelled; *opened* is called when it is there, or can't
        be had. Busy if the session waits already; else raises as `acquire`, and the session is lost.
        """
        if self.state is SessionState.WAITING:
            raise Busy("the session waits for its worker")
        self._happen(SessionEvent.RESET)
        self._give_back("it was reset")
        self.acquire(opened, seconds)

    def give_up(self) -> None:
        """Give up the opening, which the client has cancelled."""
        if self.state is SessionState.WAITING:
            self._on_opened = None
            wait, self._wait = self._wait, None
            self._why = "nobody waited for its worker"
            self._happen(SessionEvent.REFUSED)
            if wait is not None:
                wait.cancel()

    def lose(self, why: str) -> None:
        """Give back the worker of a session that has no job."""
        self._lose(why)
        self._give_back(why)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has raised *error*, so the state of the process isn't known any more."""
        self.lose(bug(error))

    def drain(self) -> None:
        """Give back the worker if no job runs, because the daemon ends; otherwise accept no further job."""
        if self.state is SessionState.IDLE:
            self.lose("the daemon is shutting down")
        elif self._lease is not None:
            self._lease.keep()

    def close(self) -> None:
        """End the session. A running job must have been cancelled before."""
        if self.state is SessionState.CLOSED:
            return
        self._on_opened = None
        wait, self._wait = self._wait, None
        self._why = "it was closed"
        self._happen(SessionEvent.CLOSED)
        in_any_case(*([wait.cancel] if wait is not None else []), partial(self._give_back, "it was closed"),
                    partial(self._pool.forget_session, self))


class Seat:
    """
    Made by `Pool.open_seat`. *opened* is called once, with the runner or the reason why there is none, perhaps before
    `acquire` returns; *lost* once, with the reason, if the runner ends before the seat is given back; *drained* when
    the daemon ends.
    """

    costs = "session"

    def __init__(self, pool: Pool, limits: Limits, user: int, opened: Callable[[Any | Refused], None],
                 lost: Callable[[str], None], drained: Callable[[], None]) -> None:
        self._pool, self._limits, self._user = pool, limits, user
        self._opened: Callable[[Any | Refused], None] | None = opened
        self._lost: Callable[[str], None] | None = lost
        self._drained = drained
        self._gone: Callable[[], None] | None = None
        self._wait: Cancellable | None = None
        self._runner: LiveRunner | None = None

    def acquire(self, seconds: float) -> None:
        """Wait for a worker, at most so many *seconds*; Refused, BadRequest if none can be had."""
        self._wait = self._pool.await_worker(self._limits, self._user, self._take, self._refused, seconds)

    def _take(self, worker: Any) -> bool:
        try:
            self._runner = worker.leasing.open(self._limits, self._ended)
        except LeewardError:
            return False
        self._wait = None
        self._finish(self._runner)
        return True

    def _ended(self, why: str) -> None:
        lost, self._lost, self._runner = self._lost, None, None
        gone, self._gone = self._gone, None
        in_any_case(partial(self._pool.lease_over, self._user, self._limits), *([partial(lost, why)] if lost else []),
                    *([gone] if gone else []))

    def _refused(self, report: Report) -> None:
        self._wait = None
        self._finish(_refusal_of(report))

    def _finish(self, what: Any) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened(what)

    def drain(self) -> None:
        self._drained()

    def broken(self, error: Exception) -> None:
        lost = self._lost
        in_any_case(self.close, *([partial(lost, f"a bug of the daemon's: {error}")] if lost else []))

    def close(self, gone: Callable[[], None] | None = None) -> None:
        """Give the worker back; only *gone* is called now, once no process of its runner is left, perhaps at once."""
        self._opened = self._lost = None
        wait, self._wait = self._wait, None
        runner, self._runner = self._runner, None
        if runner is not None:
            self._gone = gone
        in_any_case(*([wait.cancel] if wait is not None else []),
                    *([partial(runner.end, "its sandbox is over")] if runner is not None else []),
                    partial(self._pool.forget_seat, self), *([gone] if runner is None and gone is not None else []))
