"""
The pool: jobs in a bounded queue, workers that take them, replacements for workers that end.

Runs in:   the daemon, and `leeward run`.
Always:    every submitted job gets exactly one report. A job whose code no runner had in
           full goes back to the head of the queue; a job that had started is never run again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from leeward.errors import BadRequest, Busy, LeewardError, QueueTimeout, Refused, ShuttingDown
from leeward.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.pool.line import Line
from leeward.pool.quotas import Ledger, Quotas
from leeward.pool.refill import Refill
from leeward.pool.sessions import Session, sessions_of
from leeward.pool.ticket import Done, Ticket
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.worker.execution import Stop
from leeward.worker.express import Client, Express
from leeward.worker.lease import Lease
from leeward.worker.reactor import Reactor
from leeward.worker.report import Report
from leeward.worker.stream import Begun, Ran
from leeward.worker.worker import Worker

#: A job whose runner is lost before it has the code is given to another; so many times.
_LOSSES = 3

#: A worker that fails is made again after this, doubled each time up to the second figure.
_BACKOFF_S, _BACKOFF_MOST_S = 0.05, 5.0

#: Of a job that was over before anybody here had heard of it, and that is only counted.
_ANY = Job()


class Maker(Protocol):
    """
    What makes workers: the engine, by its zygote.
    """

    def make_worker(self, slot: int, pool: Pool) -> Worker: ...
    def making_failed(self, slot: int, message: str) -> None: ...
    def worker_failed(self, worker: Worker, layer: str, message: str) -> None: ...
    def runner_made(self) -> None: ...
    def job_ended(self, ticket: Ticket, report: Report) -> None: ...


class Pool:
    """
    *size* workers and a queue in front of them.
    """

    def __init__(self, reactor: Reactor, maker: Maker, *, size: int, queue_size: int,
                 quotas: Quotas | None = None, max_sessions: int = -1) -> None:
        self._reactor = reactor
        self._maker = maker
        self._size = size
        self._queue: Line[Ticket] = Line(queue_size)
        self._ledger = Ledger(quotas)
        self._workers: dict[int, Worker] = {}
        self._failures: dict[int, int] = {}
        self._running: set[Ticket] = set()
        self._sessions: set[Session] = set()
        self.most_sessions = sessions_of(max_sessions, size)
        self._draining = self._closed = False
        self._drained: Callable[[], None] | None = None
        self._refill = Refill(reactor, len(os.sched_getaffinity(0)), self._stocked)
        self._offers: dict[int, Worker] = {}  # by the number of the runner that is on offer to the short way
        self.runners_made = 0
        self.done = self.failed = self.refused = 0
        self.recycled = 0

    def open(self) -> None:
        """
        Make all workers.
        """
        for slot in range(self._size):
            self._make(slot)

    # --- jobs -----------------------------------------------------------------

    def submit(self, job: Job, done: Done, queue_deadline: float, user: int = 0,
               client: Client | None = None) -> Ticket:
        """
        Run *job* as soon as a worker is free.

        Args:
            done: called once with the report, from the reactor.
            queue_deadline: seconds that it may wait for a worker.
            user: the uid of who sends it.
            client: where the answer may go the short way.

        Raises:
            ShuttingDown: the daemon is draining.
            Busy: the queue is full, or *user* sends more than he may.
            BadRequest: *user*'s quota never has room for it.
        """
        ticket = Ticket(job, done, self, patience=queue_deadline, user=user, client=client)
        self._enter(ticket)
        return ticket

    def _admit(self, user: int, memory: int, now: float) -> None:
        """
        Count a job that *user* sends.

        Raises:
            ShuttingDown, Busy, BadRequest: as `submit`.
        """
        try:
            if self._draining:
                raise ShuttingDown("the daemon is shutting down")
            self._ledger.admit(user, memory, now)
        except (Busy, BadRequest, ShuttingDown):
            self.refused += 1
            raise

    def _enter(self, ticket: Ticket) -> None:
        """
        Start *ticket*, or have it wait for a worker.

        Raises:
            ShuttingDown, Busy, BadRequest: as `submit`.
        """
        user = ticket.user
        self._admit(user, ticket.job.limits.memory, ticket.waited_from)
        if not (self._queue and self._queue.of(user)) and self._may_start(ticket):
            worker = self._free_worker()
            if worker is not None:
                self._start(ticket, worker)
                return
        loser = self._queue.add(ticket)
        if loser is ticket:
            self.refused += 1
            raise Busy(f"all {self._size} workers are busy and {len(self._queue)} requests wait already")
        if loser is not None:
            self._refuse(loser, Busy(f"{self._queue.of(loser.user) + 1} requests of user {loser.user} wait, and the"
                                     " queue is full: the newest made room for another user's"))
        ticket.deadline = self._reactor.after(ticket.patience, lambda: self._expire(ticket, ticket.patience))

    def begun(self, job: Job, done: Done, user: int, begun: Begun) -> Ticket:
        """
        Take into the books what the short way has started for *user*, whom no quota holds.
        """
        ticket = Ticket(job, done, self, user=user, runner=begun.runner)
        self._running.add(ticket)
        self._ledger.start(user, job.limits.memory)
        execution = self._offers[begun.runner].begun(
            job, lambda report: self._finished(ticket, report), lambda: self._lost(ticket), begun)
        if not execution.over:
            ticket.execution = execution
        return ticket

    @property
    def short(self) -> Express | None:
        """
        The short way, where this reactor has one and new jobs are taken.
        """
        return None if self._draining else self._reactor.express

    def offered(self, runner: int, worker: Worker | None) -> None:
        """
        For a worker: its *runner* is on offer, or with None no longer.
        """
        if worker is None:
            self._offers.pop(runner, None)
        else:
            self._offers[runner] = worker

    def _may_start(self, ticket: Ticket) -> bool:
        return self._ledger.may_start(ticket.user, ticket.job.limits.memory)

    def _refuse(self, ticket: Ticket, why: Refused) -> None:
        """
        Answer a ticket that is in the queue no longer.
        """
        if ticket.deadline is not None:
            ticket.deadline.cancel()
        self.refused += 1
        ticket.answer(Report(refusal=why))

    def _serve(self) -> None:
        """
        Start what waits and may start, as long as there are free workers.
        """
        while self._queue and (worker := self._free_worker()) is not None:
            ticket = self._queue.take(self._may_start)
            if ticket is None:
                return
            self._start(ticket, worker)

    def govern(self, quotas: Quotas, queue_size: int, max_sessions: int = -1) -> None:
        """
        Hold users to *quotas* from now on; what runs and waits stays.
        """
        self.most_sessions = sessions_of(max_sessions, self._size)
        self._ledger.quotas = quotas
        self._queue.size = queue_size
        self._serve()

    def _expire(self, ticket: Ticket, waited: float) -> None:
        if self._queue.remove(ticket):
            why = f"no worker came free within {waited:g} s"
            running = self._ledger.running(ticket.user)
            if running and not self._may_start(ticket):
                why = (f"user {ticket.user} has {running} jobs running, and no more fitted into his quota within"
                       f" {waited:g} s")
            self._refuse(ticket, QueueTimeout(why))
            self._check_drained()

    def forget(self, ticket: Ticket) -> None:
        """
        Take a ticket out of the queue, if it is there.
        """
        if self._queue.remove(ticket):
            if ticket.deadline is not None:
                ticket.deadline.cancel()
            self._check_drained()

    def _free_worker(self) -> Worker | None:
        return next((worker for worker in self._workers.values() if worker.free), None)

    def _start(self, ticket: Ticket, worker: Worker) -> None:
        self._ledger.start(ticket.user, ticket.job.limits.memory)
        if ticket.deadline is not None:
            ticket.deadline.cancel()
            ticket.deadline = None
            ticket.waited = time.monotonic() - ticket.waited_from
        if ticket.take is not None:
            if not ticket.take(worker):
                self._lost(ticket)
            return
        self._running.add(ticket)
        execution = worker.run(ticket.job, lambda report: self._finished(ticket, report),
                               lambda: self._lost(ticket), ticket.client)
        if not execution.over:  # else it was lost at once, and may run elsewhere by now
            ticket.execution = execution
            ticket.runner = worker.running

    def _finished(self, ticket: Ticket, report: Report) -> None:
        self._ledger.end(ticket.user, ticket.job.limits.memory)
        self._over(ticket, report)

    def _over(self, ticket: Ticket, report: Report) -> None:
        self._running.discard(ticket)
        result = report.result
        if result is not None and result.outcome is not Outcome.INTERNAL:
            self.done += 1
        else:
            self.failed += 1
        ticket.answer(report)
        self._maker.job_ended(ticket, report)
        if self._queue:
            self._serve()  # what waited for room in its user's quota
        self._check_drained()

    def _lost(self, ticket: Ticket) -> None:
        """
        Its runner died before it had the code: back to the head of the queue.
        """
        self._running.discard(ticket)
        self._ledger.end(ticket.user, ticket.job.limits.memory)
        ticket.execution = None
        ticket.losses += 1
        worker = self._free_worker()
        if ticket.done is None:
            self._check_drained()
        elif ticket.losses > _LOSSES:
            self.failed += 1
            report = Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL, error=JobError(
                "WorkerLost", f"{ticket.losses} workers ended before they had the job", "")))
            ticket.answer(report)
            self._maker.job_ended(ticket, report)
            self._check_drained()
        elif worker is not None:
            self._start(ticket, worker)
        else:
            waited = time.monotonic() - ticket.waited_from
            left = max(ticket.patience - waited, _BACKOFF_MOST_S)
            ticket.deadline = self._reactor.after(left, lambda: self._expire(ticket, waited + left))
            self._queue.put_back(ticket)

    # --- sessions -------------------------------------------------------------

    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int = 0) -> Session:
        """
        Keep a worker for jobs of one client, as soon as one is free.

        Args:
            opened: called once, with None when it is, or with why it can't be.

        Raises:
            ShuttingDown, Busy, BadRequest: as `submit`; also Busy when there are as many as there may be.
        """
        if len(self._sessions) >= self.most_sessions:
            self.refused += 1
            raise Busy(f"{len(self._sessions)} sessions are open already, all that this daemon has (max_sessions)"
                       if self.most_sessions else f"this daemon has no sessions: of {self._size} workers it keeps none"
                       " for them (max_sessions)")
        session = Session(self, limits, user)
        self._sessions.add(session)
        try:
            session.acquire(opened, queue_deadline)
        except LeewardError:
            session.close()
            raise
        return session

    def await_worker(self, limits: Limits, user: int, take: Callable[[Worker], bool], refused: Done,
                     seconds: float) -> Ticket | None:
        """
        For a session: have it *take* a worker, at once or within so many *seconds*.

        Returns:
            What waits, or None if it was at once.

        Raises:
            ShuttingDown, Busy, BadRequest: as `submit`.
        """
        ticket = Ticket(Job(limits=limits), refused, self, patience=seconds, user=user, take=take)
        self._enter(ticket)
        return ticket if ticket in self._queue else None

    def run_in(self, lease: Lease, job: Job, done: Done, user: int, admit: Limits) -> Ticket:
        """
        For a session with the limits *admit*: run *job* in its process.

        Raises:
            ShuttingDown, Busy, BadRequest: as `submit`.
        """
        self._admit(user, admit.memory, time.monotonic())
        ticket = Ticket(job, done, self, user=user, runner=lease.runner)
        self._running.add(ticket)
        execution = lease.run(job, lambda report: self._over(ticket, report))
        if not execution.over:
            ticket.execution = execution
        return ticket

    def begun_in(self, lease: Lease, job: Job, done: Done, user: int, begun: Begun) -> Ticket:
        """
        For a session, whose user no quota holds: the short way has sent *job* to its process.
        """
        ticket = Ticket(job, done, self, user=user, runner=lease.runner)
        self._running.add(ticket)
        execution = lease.begun(job, lambda report: self._over(ticket, report), begun)
        if not execution.over:
            ticket.execution = execution
        return ticket

    def ran_in(self, lease: Lease, ran: Ran, user: int) -> None:
        """
        For a session, whose user no quota holds: a job is over of which nobody here has heard before.
        """
        lease.ran(ran)
        self.done += 1
        result = Result(b"", b"", 0, Outcome.FINISHED, duration=ran.ended - ran.started, cpu_time=ran.cpu_time,
                        memory_peak=ran.memory_peak)
        self._maker.job_ended(Ticket(_ANY, None, self, user=user, runner=ran.runner), Report(result, told=True))

    def lease_over(self, user: int, limits: Limits) -> None:
        """
        For a session: its worker is given back.
        """
        self._ledger.end(user, limits.memory)
        if self._queue:
            self._serve()
        self._check_drained()

    def forget_session(self, session: Session) -> None:
        self._sessions.discard(session)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    # --- workers --------------------------------------------------------------

    def _make(self, slot: int) -> None:
        if self._closed or (self._draining and not self._queue and not self._running):
            return
        try:
            self._workers[slot] = self._maker.make_worker(slot, self)
        except (LeewardError, OSError) as error:  # no descriptors left, say: it may be better later
            self._failures[slot] = self._failures.get(slot, 0) + 1
            self._maker.making_failed(slot, str(error))
            self._reactor.after(self._backoff(slot), lambda: self._make(slot))

    def _backoff(self, slot: int) -> float:
        return min(_BACKOFF_MOST_S, _BACKOFF_S * 2.0 ** min(self._failures[slot], 10))

    def worker_free(self, worker: Worker) -> None:
        """
        A worker can take a job.
        """
        self._failures.pop(worker.slot, None)
        while self._queue and worker.free:
            ticket = self._queue.take(self._may_start)
            if ticket is None:
                break
            self._start(ticket, worker)
        worker.offer()

    def worker_failed(self, worker: Worker, layer: str, message: str) -> None:
        """
        A worker could not do what it has to; it retires.
        """
        self._failures[worker.slot] = self._failures.get(worker.slot, 0) + 1
        self._maker.worker_failed(worker, layer, message)

    def worker_gone(self, worker: Worker) -> None:
        """
        A worker has ended: make another.
        """
        if self._workers.get(worker.slot) is worker:
            del self._workers[worker.slot]
        self.recycled += 1
        failures = self._failures.get(worker.slot, 0)
        if self._draining and not self._queue and not self._running:
            self._check_drained()
        elif failures:
            self._reactor.after(self._backoff(worker.slot), lambda: self._make(worker.slot))
        else:
            self._make(worker.slot)

    def runner_made(self) -> None:
        self.runners_made += 1
        self._maker.runner_made()

    @property
    def crowded(self) -> bool:
        """
        Do jobs wait for a worker?
        """
        return bool(self._queue)

    def runner_wanted(self, worker: Worker) -> None:
        self._refill.want(worker)

    def arming_over(self, runner: int) -> None:
        self._refill.over(runner)

    def _stocked(self) -> bool:
        return sum(worker.armed for worker in self._workers.values()) >= self._size

    # --- the end --------------------------------------------------------------

    def drain(self, seconds: float, done: Callable[[], None]) -> None:
        """
        Take no more jobs, let those that run end within *seconds*, then call *done*.
        """
        for worker in list(self._offers.values()):
            worker.withdraw()
        self._draining = True
        self._drained = done
        for ticket in self._queue.clear():
            self._refuse(ticket, ShuttingDown("the daemon is shutting down"))
        for session in list(self._sessions):
            session.drain()
        self._reactor.after(seconds, self._cut)
        self._reactor.soon(self._check_drained)

    def _cut(self) -> None:
        for ticket in list(self._running):
            if ticket.execution is not None:
                ticket.execution.stop(Stop.SHUTDOWN)
        self._reactor.after(1.0, self._report_drained)

    def _check_drained(self) -> None:
        if self._draining and not self._running and not self._queue:
            self._report_drained()

    def _report_drained(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained()

    def retire_all(self) -> None:
        """
        Let every worker go, and make no other, whatever still runs.
        """
        self._closed = True
        for worker in list(self._workers.values()):
            worker.retire("the daemon is shutting down")

    @property
    def empty(self) -> bool:
        """
        Is every worker gone?
        """
        return not self._workers

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def running(self) -> dict[int, Ticket]:
        """
        What runs, by the number of its runner.
        """
        return {ticket.runner: ticket for ticket in self._running}

    @property
    def any_free(self) -> bool:
        return self._free_worker() is not None

    @property
    def queued(self) -> int:
        return len(self._queue)

    def states(self) -> dict[str, int]:
        """
        How many workers do what.
        """
        busy = sum(worker.busy for worker in self._workers.values())
        idle = sum(worker.free for worker in self._workers.values())
        return {"idle": idle, "busy": busy, "arming": self._size - idle - busy}

    def counts(self) -> dict[str, dict[str, int] | int]:
        """
        The part of `leeward status` that is the pool's.
        """
        return {
            "workers": {"total": self._size, **self.states()},
            "jobs": {"done": self.done, "failed": self.failed, "refused": self.refused},
            "runners_made": self.runners_made,
            "runners_armed": sum(worker.armed for worker in self._workers.values()),
            "runners_arming": sum(worker.arming for worker in self._workers.values()),
            "queued": len(self._queue),
            "sessions": len(self._sessions),
        }
