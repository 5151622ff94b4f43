"""
The pool: jobs in a bounded queue, workers that take them, replacements for workers that end.

Runs in:   the daemon, and `leeward run`.
Always:    every submitted job gets exactly one report. A job whose code no runner had in
           full goes back to the head of the queue; a job that had started is never run again.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from leeward.errors import Busy, LeewardError, QueueTimeout, ShuttingDown
from leeward.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.pool.refill import Refill
from leeward.spec.job import Job
from leeward.worker.execution import Execution, Stop
from leeward.worker.reactor import Reactor, Timer
from leeward.worker.report import Report
from leeward.worker.worker import Worker

Done = Callable[[Report], None]

#: A job whose runner is lost before it has the code is given to another; so many times.
_LOSSES = 3

#: A worker that fails is made again after this, doubled each time up to the second figure.
_BACKOFF_S, _BACKOFF_MOST_S = 0.05, 5.0


@dataclass(slots=True, eq=False)
class Ticket:
    """
    A submitted job. `cancel` it when nobody waits for it any more.
    """

    job: Job
    done: Done | None
    pool: Pool
    deadline: Timer | None = None
    execution: Execution | None = None
    patience: float = 0.0
    losses: int = 0
    waited_from: float = field(default_factory=time.monotonic)

    def cancel(self) -> None:
        """
        End the job, or take it out of the queue; its `done` is not called any more.
        """
        self.done = None
        if self.execution is not None:
            self.execution.stop(Stop.CANCELLED)
        else:
            self.pool.forget(self)

    def answer(self, report: Report) -> None:
        """
        Call `done`, once; what nobody takes is closed.
        """
        done, self.done = self.done, None
        if done is not None:
            done(report)
        elif report.arena is not None:
            report.arena.close()


class Maker(Protocol):
    """
    What makes workers: the engine, by its zygote.
    """

    def make_worker(self, slot: int, pool: Pool) -> Worker: ...
    def making_failed(self, slot: int, message: str) -> None: ...
    def worker_failed(self, worker: Worker, layer: str, message: str) -> None: ...
    def runner_made(self) -> None: ...
    def job_ended(self, job: Job, report: Report) -> None: ...


class Pool:
    """
    *size* workers and a queue in front of them.
    """

    def __init__(self, reactor: Reactor, maker: Maker, *, size: int, queue_size: int) -> None:
        self._reactor = reactor
        self._maker = maker
        self._size = size
        self._queue_size = queue_size
        self._queue: deque[Ticket] = deque()
        self._workers: dict[int, Worker] = {}
        self._failures: dict[int, int] = {}
        self._running: set[Ticket] = set()
        self._draining = self._closed = False
        self._drained: Callable[[], None] | None = None
        self._refill = Refill(reactor, len(os.sched_getaffinity(0)), self._stocked)
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

    def submit(self, job: Job, done: Done, queue_deadline: float) -> Ticket:
        """
        Run *job* as soon as a worker is free.

        Args:
            done: called once with the report, from the reactor.
            queue_deadline: seconds that it may wait for a worker.

        Raises:
            ShuttingDown: the daemon is draining.
            Busy: the queue is full.
        """
        if self._draining:
            self.refused += 1
            raise ShuttingDown("the daemon is shutting down")
        ticket = Ticket(job, done, self, patience=queue_deadline)
        worker = None if self._queue else self._free_worker()
        if worker is not None:
            self._start(ticket, worker)
            return ticket
        if len(self._queue) >= self._queue_size:
            self.refused += 1
            raise Busy(f"all {self._size} workers are busy and {len(self._queue)} requests wait already")
        ticket.deadline = self._reactor.after(queue_deadline, lambda: self._expire(ticket, queue_deadline))
        self._queue.append(ticket)
        return ticket

    def _expire(self, ticket: Ticket, waited: float) -> None:
        if ticket in self._queue:
            self._queue.remove(ticket)
            self.refused += 1
            ticket.answer(Report(refusal=QueueTimeout(f"no worker came free within {waited:g} s")))
            self._check_drained()

    def forget(self, ticket: Ticket) -> None:
        """
        Take a ticket out of the queue, if it is there.
        """
        if ticket in self._queue:
            self._queue.remove(ticket)
            if ticket.deadline is not None:
                ticket.deadline.cancel()
            self._check_drained()

    def _free_worker(self) -> Worker | None:
        return next((worker for worker in self._workers.values() if worker.free), None)

    def _start(self, ticket: Ticket, worker: Worker) -> None:
        self._running.add(ticket)
        if ticket.deadline is not None:
            ticket.deadline.cancel()
            ticket.deadline = None
        execution = worker.run(ticket.job, lambda report: self._finished(ticket, report),
                               lambda: self._lost(ticket))
        if not execution.over:  # else it was lost at once, and may run elsewhere by now
            ticket.execution = execution

    def _finished(self, ticket: Ticket, report: Report) -> None:
        self._running.discard(ticket)
        result = report.result
        if result is not None and result.outcome is not Outcome.INTERNAL:
            self.done += 1
        else:
            self.failed += 1
        ticket.answer(report)
        self._maker.job_ended(ticket.job, report)
        self._check_drained()

    def _lost(self, ticket: Ticket) -> None:
        """
        Its runner died before it had the code: back to the head of the queue.
        """
        self._running.discard(ticket)
        ticket.execution = None
        ticket.losses += 1
        worker = self._free_worker()
        if ticket.done is None:
            self._check_drained()
        elif ticket.losses > _LOSSES:
            self.failed += 1
            ticket.answer(Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL, error=JobError(
                "WorkerLost", f"{ticket.losses} workers ended before they had the job", ""))))
            self._check_drained()
        elif worker is not None:
            self._start(ticket, worker)
        else:
            waited = time.monotonic() - ticket.waited_from
            left = max(ticket.patience - waited, _BACKOFF_MOST_S)
            ticket.deadline = self._reactor.after(left, lambda: self._expire(ticket, waited + left))
            self._queue.appendleft(ticket)

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
            self._start(self._queue.popleft(), worker)

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
        self._draining = True
        self._drained = done
        while self._queue:
            ticket = self._queue.popleft()
            if ticket.deadline is not None:
                ticket.deadline.cancel()
            self.refused += 1
            ticket.answer(Report(refusal=ShuttingDown("the daemon is shutting down")))
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
    def any_free(self) -> bool:
        return self._free_worker() is not None

    def counts(self) -> dict[str, dict[str, int] | int]:
        """
        The part of `leeward status` that is the pool's.
        """
        busy = sum(worker.busy for worker in self._workers.values())
        idle = sum(worker.free for worker in self._workers.values())
        return {
            "workers": {"total": self._size, "idle": idle, "busy": busy, "arming": self._size - idle - busy},
            "jobs": {"done": self.done, "failed": self.failed, "refused": self.refused},
            "runners_made": self.runners_made,
            "runners_armed": sum(worker.armed for worker in self._workers.values()),
            "runners_arming": sum(worker.arming for worker in self._workers.values()),
            "queued": len(self._queue),
        }
