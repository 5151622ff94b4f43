"""
A submitted job, from its request to its one report.

Runs in:   the daemon, and `leeward run`.

Theory of operation. An execution reports to a ticket (run/holder.py). The steps are, in order: the pool removes the
ticket from its records; the session of the job, if there is one, learns that the job is over; `done` answers the
client; and the pool starts the jobs that can start now.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from leeward.dataclass import dataclass, field, replace
from leeward.loop.fast_path import ReplyAddress
from leeward.loop.reactor import Timer
from leeward.run.execution import Execution
from leeward.run.report import Report
from leeward.run.verdict import Stop
from leeward.spec.job import Job
from leeward.worker.worker import Worker

if TYPE_CHECKING:
    from leeward.pool.pool import Pool
    from leeward.pool.sessions import PoolSession

Done = Callable[[Report], None]

_numbers = itertools.count(1)


#: Jobs of one life of a process, as far as their numbers stay unique.
_LIFE = 1 << 24


def interleave(number: int, shards: int, lives: int = 0) -> None:
    """
    Let jobs of this process have numbers that no other process of the daemon uses.

    Args:
        number: of this process, from 0 on.
        shards: the number of processes.
        lives: processes that have had this number before.
    """
    global _numbers
    _numbers = itertools.count(1 + number + lives * _LIFE * shards, shards)


def _next_number() -> int:
    return next(_numbers)


@dataclass(slots=True, eq=False)
class Ticket:
    """
    A submitted job. Call `cancel` if its result isn't needed any more.

    Attributes:
        user: the sender's uid.
        number: unique in this daemon's life; the security log knows the job by it.
        runner: the number of the runner that has the job, or had it; 0 before.
        waited_from: the time of its submission, by the reactor's clock.
        waited: seconds for which the job has waited for a worker.
        cancelled: `cancel` was called.
        session: the session in which it runs, if any.
        take: takes the worker for a session, in place of running the job; False if its runner was lost.
    """

    job: Job
    done: Done | None
    pool: Pool
    waited_from: float
    deadline: Timer | None = None
    execution: Execution | None = None
    patience: float = 0.0
    losses: int = 0
    user: int = 0
    number: int = field(default_factory=_next_number)
    runner: int = 0
    waited: float = 0.0
    cancelled: bool = False
    client: ReplyAddress | None = None
    session: PoolSession | None = None
    take: Callable[[Worker], bool] | None = None

    @property
    def connection(self) -> int:
        """The number of the connection that sent the job; 0 for the opening of a session, and in `leeward run`."""
        return 0 if self.client is None else self.client.fd

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
        """For its execution: the job is over."""
        self.pool.finished(self, report)

    def lost(self) -> None:
        """For its execution: nothing of the job has run."""
        self.pool.lost(self)

    def broken(self, error: Exception) -> None:
        """For the barrier: pass the error on to the pool."""
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
