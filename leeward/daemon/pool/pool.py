"""
The pool: jobs in a bounded queue, workers that take them, replacements for workers that end.

Always: every submitted job gets exactly one report. A job whose code no runner had in full goes back to the head of the
queue. So does one that the machine has ended, for the host's memory or with its worker, if nobody outside has seen
anything of it: no egress, no folder that its profile shows, no function of its client, no output before its end. No other
job that had started is run again.

At the end of its service waiting jobs are refused at once. Running jobs have time until a deadline, are then stopped,
and are answered when their processes have ended, or after _CUT_S.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, field, replace
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import NO_TIMER, JobStart, Ran, Reactor, Timer
from leeward.daemon.pool.admission import Admission, Backlog
from leeward.daemon.pool.begin import NO_BOUNDS, NOT_BEYOND, SURPLUS, Beyond, SeatBounds
from leeward.daemon.pool.capacity import Capacity
from leeward.daemon.pool.line import FairQueue
from leeward.daemon.pool.quotas import Book, Ledger, Quotas
from leeward.daemon.pool.sessions import PoolSession, Seat, sessions_of
from leeward.daemon.pool.workforce import Workforce
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.report import Report, internal
from leeward.daemon.run.verdict import Stop, bug, lost, why_ended
from leeward.daemon.worker.worker import Worker
from leeward.errors import BadRequest, Busy, LeewardError, Refused, ShuttingDown
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

if TYPE_CHECKING:
    from leeward.daemon.pool.branches import Branch


Done = Callable[[Report], None]

_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Ticket:
    """
    A submitted job, until its one report. An execution reports to it: the pool removes it, its session learns that the
    job is over, `done` answers the client, and the pool starts what can start now. *number* is unique in this daemon's
    life, also in the security log; *take* takes the worker for a session in place of running the job, and returns False
    if its runner was lost.
    """

    job: Job
    done: Done | None
    pool: Pool
    waited_from: float  # the time of its submission, by the reactor's clock
    deadline: Timer = NO_TIMER
    execution: Execution | None = None
    patience: float = 0.0
    losses: int = 0
    user: int = 0  # the sender's uid
    number: int = field(default_factory=lambda: next(_numbers))
    runner: int = 0  # the number of the runner that has the job, or had it; 0 before
    waited: float = 0.0  # seconds for which the job has waited for a worker
    cancelled: bool = False  # `cancel` was called
    careful: bool = False  # the machine has ended it once: it starts if its whole limit of memory is there
    client: ReplyAddress | None = None
    session: PoolSession | None = None  # the session in which it runs, if any
    take: Callable[[Worker], bool] | None = None

    @property
    def unseen(self) -> bool:
        """Whether nobody outside has seen anything of the job, which may then be run again."""
        execution = self.execution
        return (self.session is None and self.take is None and self.job.functions is None
                and execution is not None and not execution.output.seen and not self.pool.reaches_out)

    @property
    def connection(self) -> int:
        """The number of the connection that sent the job; 0 for the opening of a session, and in `leeward run`."""
        return 0 if self.client is None else self.client.fd

    @property
    def connection_number(self) -> int:
        """The number of that connection, which no other one gets; 0 as well for what takes a worker."""
        return 0 if self.client is None or self.take is not None else self.client.connection

    def cancel(self) -> None:
        """End the job, or remove it from the queue; `done` is not called any more."""
        self.done, self.cancelled = None, True
        if self.execution is not None:
            self.execution.stop(Stop.CANCELLED)
        else:
            self.pool.admission.forget(self)

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the job. Returns whether the job runs."""
        if self.execution is None:
            return False
        self.execution.interrupt()
        return True

    def kill(self) -> bool:
        """End the job, and report it with its output. Returns whether the job runs."""
        if self.execution is None:
            return False
        self.execution.stop(Stop.KILLED)
        return True

    def finished(self, report: Report) -> None:
        self.pool.finished(self, report)

    def lost(self) -> None:
        """For its execution: nothing of the job has run."""
        self.pool.lost(self)

    def broken(self, error: Exception) -> None:
        self.pool.broken(error)

    def answer(self, report: Report) -> None:
        """Call `done`, once. If there is none, close the report."""
        done, self.done = self.done, None
        if self.job.label and report.result is not None:
            report.result = replace(report.result, label=self.job.label, job=self.number)
        if done is not None:
            if self.session is not None:
                self.session.job_over()  # first, so that the session accepts a job that follows the answer
            done(report)
        else:
            report.close()


#: How many times a job is given to another runner because its runner was lost before it had the code.
_LOSSES = 3
#: The least seconds for which such a job waits for another worker.
_AGAIN_S = 5.0
#: Seconds between the failure of one of our callbacks and the repair of what it may have left undone.
_MEND_S = 0.5
#: Seconds that the processes of jobs have to end after a drain has ended the jobs.
_CUT_S = 1.0


class Pool:
    """
    *size* workers, those of *beyond* as far as the machine carries their jobs, and a queue in front of them.
    *max_sessions*: the most sessions and sandboxes together; if it is negative, as many as the workers allow; *bound*
    is the key that sets it. *name* is in refusals; "" for the daemon's first pool.
    """

    def __init__(self, reactor: Reactor, maker: Branch, *, size: int, queue_size: int,
                 queue_delay: float = 0.0, quotas: Quotas | None = None, max_sessions: int = -1,
                 surplus: int = SURPLUS, room: int = 0, first: int = 0, book: Book | None = None,
                 bounds: SeatBounds = NO_BOUNDS, beyond: Beyond = NOT_BEYOND, name: str = "",
                 bound: str = "max_sessions") -> None:
        # Without other ledgers in `book` this is the first pool, which has the fast path; the others grow.
        self._reactor = reactor
        self.now = reactor.now
        self._maker = maker
        self.workforce = Workforce(reactor, maker, self, size, surplus=surplus, room=room, first=first,
                                   grows=book is not None and bool(book.ledgers), bounds=bounds, beyond=beyond)
        self.ledger = Ledger(quotas, lambda more: self.workforce.with_held(more) + beyond.jobs, book)
        self.capacity = Capacity(reactor, self)
        self.queue: FairQueue[Ticket] = FairQueue(queue_size + beyond.jobs, self.ledger.running)
        self._backlog = Backlog(queue_delay, size)
        self.admission = Admission(reactor, self, self.workforce, self.queue, self._backlog, self.ledger)
        self._running = set[Ticket]()
        self._sessions, self._seats = set[PoolSession](), set[Seat]()
        self.most_sessions = sessions_of(max_sessions, size, room)
        self._name, self._bound = name, bound
        self._mending = NO_TIMER
        self._draining = self._cutting = False  # no more jobs are taken; the running ones are being ended
        self._drained: Callable[[], None] | None = None
        self._why: Refused = ShuttingDown("the daemon is shutting down")
        self._cut_at = 0.0
        self.done = self.failed = 0

    def open(self) -> None:
        self.workforce.make_missing()

    def govern(self, quotas: Quotas, queue_size: int, queue_delay: float = 0.0, max_sessions: int = -1) -> None:
        """Apply *quotas* from now on; running and waiting jobs, and open sessions and sandboxes, aren't affected."""
        self.most_sessions = sessions_of(max_sessions, self.workforce.size, self.workforce.room)
        self.ledger.quotas = quotas
        self.queue.size = queue_size + self.workforce.beyond.jobs
        self._backlog.delay = queue_delay
        self.admission.serve()

    # --- jobs -----------------------------------------------------------------

    def submit(self, job: Job, done: Done, queue_deadline: float, user: int = 0,
               client: ReplyAddress | None = None) -> Ticket:
        """
        Run *job* as soon as a worker is free, within *queue_deadline* seconds; *done* is called once with the report,
        from the reactor. *user* is the sender's uid; *client* is where the fast path may send the answer.

        Raises ShuttingDown while the daemon drains; Busy if the job would wait too long, the queue is full, or *user*
        exceeds the quota's rate; BadRequest if the job exceeds the quota by itself.
        """
        ticket = Ticket(job, done, self, self.now(), patience=queue_deadline, user=user, client=client)
        self.admission.enter(ticket)
        return ticket

    def job_started(self, job: Job, done: Done, user: int, start: JobStart) -> Ticket:
        """Record a job that the fast path has started for *user*, who has no quota."""
        ticket = Ticket(job, done, self, self.now(), user=user, runner=start.runner)
        self._running.add(ticket)
        self.ledger.start(user, job.limits.memory)
        self.capacity.started(ticket)
        worker = self.workforce.offers[start.runner]
        self._backlog.started(worker.slot, start.started)
        try:
            execution = worker.leasing.job_started(ticket, start)
        except BaseException:
            ticket.done = None  # its connection ends
            self._forget(ticket)
            raise
        if not execution.over:
            ticket.execution = execution
        return ticket

    def _forget(self, ticket: Ticket) -> bool:
        """Remove a job that has its own worker from the records. Returns whether it was there."""
        if ticket not in self._running:
            return False
        self._running.discard(ticket)
        self.ledger.end(ticket.user, ticket.job.limits.memory)
        self.capacity.ended(ticket)
        return True

    def start(self, ticket: Ticket, worker: Worker) -> None:
        """For the admission: give *worker*, which is free, to *ticket*."""
        self.ledger.start(ticket.user, ticket.job.limits.memory)
        if ticket.deadline.is_set:
            ticket.deadline.cancel()
            ticket.waited = self.now() - ticket.waited_from
        if ticket.take is not None:
            self._lend(ticket, ticket.take, worker)
            return
        self._running.add(ticket)
        self.capacity.started(ticket)
        self._backlog.started(worker.slot, self.now())
        try:
            execution = worker.leasing.run(ticket)
        except Exception as error:
            self._forget(ticket)
            self._fail(ticket, error)
            self._reactor.barrier.caught(worker.leasing.run, error)  # it retires
            return
        if not execution.over:  # otherwise its runner was lost at once, and it may already run elsewhere
            ticket.execution = execution
            ticket.runner = worker.running
            worker.leasing.lent(ticket)
        self.workforce.balance()

    def _lend(self, ticket: Ticket, take: Callable[[Worker], bool], worker: Worker) -> None:
        try:
            taken = take(worker)
        except Exception as error:
            if not worker.busy:  # otherwise `lease_over` follows
                self.ledger.end(ticket.user, ticket.job.limits.memory)
            self._fail(ticket, error)
            self._reactor.barrier.caught(worker.leasing.lease, error)
            return
        if taken:
            worker.leasing.lent(ticket)
            self._hold(1)
        else:
            self.ledger.end(ticket.user, ticket.job.limits.memory)
            self.lost(ticket)

    def finished(self, ticket: Ticket, report: Report) -> None:
        result = report.result
        if (result is not None and lost(result.outcome, result.error) and ticket.done is not None and ticket.unseen
                and ticket.losses < _LOSSES and not self._draining):
            report.close()
            self._maker.job_again(ticket, result)
            ticket.careful = True
            self.lost(ticket)
            return
        if ticket.session is not None:
            self._running.discard(ticket)  # the session's worker counts for its user until the lease is over
        elif not self._forget(ticket):
            ticket.answer(report)  # it was answered when its worker failed
            return
        if result is not None and result.outcome is not Outcome.INTERNAL:
            self.done += 1
        else:
            self.failed += 1
        self._answer(ticket, report)
        if self.queue:
            self.admission.serve()  # jobs that waited for their user's quota
        self.check_drained()

    def give_up(self, ticket: Ticket, why: Refused) -> None:
        """For the admission: answer a job that the machine has ended, and that can't be run again for the reason *why*."""
        self.failed += 1
        self._answer(ticket, internal("WorkerLost", f"the machine has ended it, and it wasn't run again: {why.message}"))

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        """Answer a job that a bug of leeward has ended."""
        self.failed += 1
        self._answer(ticket, internal("Bug", bug(error)))

    def _answer(self, ticket: Ticket, report: Report) -> None:
        to_end = ticket.done or ticket.answer if ticket.session is None else ticket.session.job_over
        try:
            ticket.answer(report)
        except Exception as error:
            self._reactor.barrier.caught(to_end, error)
        try:
            self._maker.job_ended(ticket, report)
        except Exception as error:
            self._reactor.barrier.caught(self._maker.job_ended, error)
        ticket.execution = None  # it refers to the ticket: the job's contents would stay until the collector comes

    def lost(self, ticket: Ticket) -> None:
        """For a ticket: its runner died before it had the code, or may have it again. Put it at the head of the queue."""
        self._forget(ticket)
        ticket.execution = None
        ticket.losses += 1
        worker = self.workforce.free() if self.capacity.carries(ticket) else None
        if ticket.done is None:
            self.check_drained()
        elif ticket.losses > _LOSSES:
            self.failed += 1
            self._answer(ticket, internal("WorkerLost", f"{ticket.losses} workers ended before they had the job"))
            self.check_drained()
        elif self._cutting:
            self.admission.refuse(ticket, ShuttingDown("the daemon is shutting down"))
            self.check_drained()
        elif worker is not None:
            self.start(ticket, worker)
        else:
            self.admission.wait_again(ticket, max(_AGAIN_S, ticket.job.limits.time if ticket.careful else 0.0))

    # --- sessions and live sandboxes ------------------------------------------

    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int = 0, egress: Mapping[str, Any] | None = None) -> PoolSession:
        """
        Keep a worker for jobs of one client. *opened* is called once, with None, or with the reason why there is no
        worker. Raises as `submit`; also Busy when there are as many as there may be.
        """
        self._check_room(1)
        session = PoolSession(self, limits, user, egress)
        self._sessions.add(session)
        try:
            session.acquire(opened, queue_deadline)
        except LeewardError:
            session.close()
            raise
        return session

    def open_seat(self, limits: Limits, user: int, opened: Callable[[Any], None], lost: Callable[[str], None],
                  drained: Callable[[], None], seconds: float) -> Seat:
        """Keep a worker for a live sandbox; the arguments are those of `Seat`; raises as `open_session`."""
        self._check_room(0)
        seat = Seat(self, limits, user, opened, lost, drained)
        self._seats.add(seat)
        try:
            seat.acquire(seconds)
        except LeewardError:
            seat.close()
            raise
        return seat

    def _check_room(self, sessions: int) -> None:
        """Check that there is room for *sessions* sessions, or, if 0, a sandbox; Busy if not, BadRequest if never."""
        count, most, workforce = self.sessions + self.seats, self.most_sessions, self.workforce
        bounds, own = workforce.bounds, workforce.size // 2  # so many have the pool's own workers
        dear = max(0, self.sessions + sessions - own)
        short = max(0, count - own) + (bounds.price - 1) * dear >= bounds.seats
        if count >= most or short:
            self.admission.refused += 1
            where = f" in the pool {self._name!r}" if self._name else ""
            if not most:
                raise BadRequest(f"this daemon has no sessions{where}: of {workforce.size} workers it keeps none"
                                 f" for them ({self._bound})")
            have = f"{self.sessions} sessions and {self.seats} sandboxes are open already{where}, all that"
            raise Busy(f"{have} there may be ({self._bound})" if count >= most else
                       f"{have} this daemon has descriptors for (RLIMIT_NOFILE)")

    def forget_session(self, session: PoolSession) -> None:
        self._sessions.discard(session)

    def forget_seat(self, seat: Seat) -> None:
        self._seats.discard(seat)

    def await_worker(self, limits: Limits, user: int, take: Callable[[Worker], bool], refused: Done,
                     seconds: float) -> Ticket | None:
        """For a session: call *take* with a worker, within *seconds*. Returns the ticket, if it waits; as `submit`."""
        ticket = Ticket(Job(limits=limits), refused, self, self.now(), patience=seconds, user=user, take=take)
        self.admission.enter(ticket)
        if ticket not in self.queue:
            return None
        self.workforce.await_holders()
        return ticket

    def run_in(self, session: PoolSession, lease: Lease, job: Job, done: Done, start: JobStart | None = None) -> Ticket:
        """For a session: run *job* in its process, or take over what the fast path has sent; raises as `submit`."""
        if start is None:
            self.admission.admit(session.user, session.limits.memory, self.now())
        ticket = Ticket(job, done, self, self.now(), user=session.user, runner=lease.runner, session=session)
        self._running.add(ticket)
        try:
            execution = lease.run(ticket) if start is None else lease.job_started(ticket, start)
        except BaseException:
            ticket.done = None
            self._running.discard(ticket)
            raise
        if not execution.over:
            ticket.execution = execution
        return ticket

    def ran_in(self, lease: Lease, ran: Ran, user: int) -> None:
        """For a session whose user has no quota: the fast path has run a job that the pool didn't know of."""
        lease.ran(ran)
        self.done += 1
        result = Result(b"", b"", 0, Outcome.FINISHED, duration=ran.ended - ran.started, cpu_time=ran.cpu_time,
                        memory_peak=ran.memory_peak)
        ticket = Ticket(Job(), None, self, ran.ended, user=user, runner=ran.runner)
        self._maker.job_ended(ticket, Report(result, answered=True))

    def lease_over(self, user: int, limits: Limits) -> None:
        """For a session: its worker is given back."""
        self.ledger.end(user, limits.memory)
        self._hold(-1)
        if self.queue:
            self.admission.serve()
        self.check_drained()

    def _hold(self, more: int) -> None:
        self.workforce.hold(more)
        self.resized()

    def resized(self) -> None:
        """For the workforce: more or fewer workers are to be there."""
        self._backlog.workers = self.workforce.with_held(0) - self.workforce.held

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def seats(self) -> int:
        return len(self._seats)

    def unoccupied(self, worker: Worker) -> None:
        """For the workforce: *worker* can take something, or has ended. May be called repeatedly."""
        self._backlog.free(worker.slot, self.now())

    def worker_free(self, worker: Worker) -> None:
        """For the workforce: *worker* can take a job."""
        self.admission.serve_with(worker)

    @property
    def crowded(self) -> bool:
        """Whether jobs wait for a worker, or are likely to wait."""
        return bool(self.queue) or self.admission.shedding.on

    def broken(self, _error: Exception) -> None:
        """For the barrier, when a callback has failed: do what it may have left undone. Nothing is ended."""
        if not self._mending.is_set and not self.workforce.closed:
            self._mending = self._reactor.after(_MEND_S, self._mend)

    def _mend(self) -> None:
        now = self.now()
        in_any_case(self.workforce.make_missing, partial(self.admission.expire_overdue, now), self.admission.serve,
                    *([self.capacity.wake] if self.queue else []),
                    partial(self._cut_overdue, now), self.check_drained)

    # --- the end --------------------------------------------------------------

    def drain(self, seconds: float, done: Callable[[], None], why: Refused | None = None) -> None:
        """
        Take no more jobs, let running jobs end within *seconds*, then call *done*. Every job is answered before that: a
        waiting one is refused with *why*, a job that was ended has a result that says so.
        """
        self._why = why or self._why
        self.admission.shedding.stop()
        self.capacity.stop()
        self.workforce.stop_offering()
        self._draining = self.admission.closed = True
        self._drained = done
        self._cut_at = self.now() + seconds
        # The workers of sandboxes, and of sessions that have no job, are taken.
        self._reactor.barrier.steps(*self._refusals(), *[session.drain for session in self._sessions],
                                    *[seat.drain for seat in self._seats])
        self._reactor.at(self._cut_at, self.cut)
        self._reactor.soon(self.check_drained)

    def _refusals(self) -> Iterable[Callable[[], object]]:
        return [partial(self.admission.refuse, ticket, self._why) for ticket in self.queue.clear()]

    def cut(self) -> None:
        """End the jobs that a drain still waits for. May be called repeatedly."""
        if self._cutting or not self._draining:
            return
        self._cutting = True
        self._cut_at = self.now()
        self._reactor.after(_CUT_S, self._answer_cut)
        self._reactor.barrier.steps(
            *self._refusals(),  # of jobs that waited for another runner, because theirs was lost
            *(partial(ticket.execution.stop, Stop.SHUTDOWN) for ticket in self.tickets if ticket.execution is not None),
            self.check_drained)

    def _answer_cut(self) -> None:
        """Answer the jobs whose processes take too long to end; what they wrote is lost."""
        report = internal("Ended", why_ended(Stop.SHUTDOWN))
        self._reactor.barrier.steps(*(partial(ticket.answer, report) for ticket in self.tickets), self._end_drain)

    def _cut_overdue(self, now: float) -> None:
        """Do what is due of a drain, because a callback has failed."""
        if self._draining and now >= self._cut_at:
            self.cut()
        if self._cutting and now >= self._cut_at + _CUT_S:
            self._answer_cut()

    def check_drained(self) -> None:
        """A job has ended or left the queue: report that the drain is over, if it is."""
        if self.over:
            self._end_drain()

    def _end_drain(self) -> None:
        done, self._drained = self._drained, None
        if done is not None:
            done()

    @property
    def over(self) -> bool:
        """Whether the pool is draining, and no job runs or waits."""
        return self._draining and not (self._running or self.queue)

    @property
    def tickets(self) -> list[Ticket]:
        return list(self._running)

    @property
    def running(self) -> dict[int, Ticket]:
        """The running tickets, by the number of their runner."""
        return {ticket.runner: ticket for ticket in self._running}

    @property
    def reaches_out(self) -> bool:
        """Whether its jobs may reach something outside of their sandboxes."""
        return self._maker.reaches_out

    @property
    def most_jobs(self) -> int:
        """How many jobs may run at once."""
        return self.workforce.size + self.workforce.beyond.jobs

    @property
    def any_free(self) -> bool:
        return self.workforce.free() is not None

    def counts(self) -> dict[str, dict[str, int] | int]:
        return {
            **self.workforce.counts(),
            "jobs": {"done": self.done, "failed": self.failed, "refused": self.admission.refused},
            "queued": len(self.queue),
            "sessions": self.sessions,
            "max_sessions": self.most_sessions,
            "sandboxes": self.seats,
        }
