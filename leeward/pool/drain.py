"""
The end of a pool's service: no new jobs, an answer to each admitted job, and then a callback.

Runs in:   the daemon, and `leeward run`.

Theory of operation. Waiting jobs are refused at once: they have not run. Running jobs have time until a deadline. Then
they are stopped, and answered when their processes have ended, or after _CUT_S if these don't end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from leeward.errors import Refused, ShuttingDown
from leeward.loop.reactor import Reactor
from leeward.run.report import internal
from leeward.run.verdict import Stop, why_ended

if TYPE_CHECKING:
    from leeward.pool.pool import Pool

#: Seconds that the processes of jobs have to end after a drain has ended the jobs.
_CUT_S = 1.0


class Drain:
    """
    Attributes:
        started: the drain has begun, so no more jobs are taken.
        cutting: the running jobs are being ended.
    """

    def __init__(self, reactor: Reactor, pool: Pool) -> None:
        self._reactor, self._pool = reactor, pool
        self.started = self.cutting = False
        self._done: Callable[[], None] | None = None
        self._why: Refused = ShuttingDown("the daemon is shutting down")
        self._cut_at = 0.0

    def start(self, seconds: float, done: Callable[[], None], why: Refused | None = None) -> None:
        """See Pool.drain."""
        self._why = why or self._why
        self._pool.admission.shedding.stop()
        self._pool.workforce.stop_offering()
        self.started = self._pool.admission.closed = True
        self._done = done
        self._cut_at = self._reactor.now() + seconds
        self._reactor.barrier.steps(*self._refusals(), self._pool.drain_sessions)
        self._reactor.at(self._cut_at, self.cut)
        self._reactor.soon(self.check)

    def _refusals(self) -> Iterable[Callable[[], object]]:
        admission = self._pool.admission
        return [partial(admission.refuse, ticket, self._why) for ticket in admission.queue.clear()]

    def cut(self) -> None:
        """End the jobs that still run. May be called repeatedly."""
        if self.cutting or not self.started:
            return
        self.cutting = True
        self._cut_at = self._reactor.now()
        self._reactor.after(_CUT_S, self._answer_cut)
        self._reactor.barrier.steps(
            *self._refusals(),  # of jobs that waited for another runner, because theirs was lost
            *(partial(ticket.execution.stop, Stop.SHUTDOWN) for ticket in self._pool.tickets
              if ticket.execution is not None), self.check)

    def _answer_cut(self) -> None:
        """Answer the jobs whose processes take too long to end; what they wrote is lost."""
        report = internal("Ended", why_ended(Stop.SHUTDOWN))
        self._reactor.barrier.steps(*(partial(ticket.answer, report) for ticket in self._pool.tickets), self._report)

    def check(self) -> None:
        """Report that the drain is over, if it is."""
        if self.started and self.over:
            self._report()

    @property
    def over(self) -> bool:
        """Whether no job runs or waits."""
        return not (self._pool.tickets or self._pool.admission.queue)

    def _report(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()

    def look(self, now: float) -> None:
        """Do what is due, because a callback has failed."""
        if self.started and now >= self._cut_at:
            self.cut()
        if self.cutting and now >= self._cut_at + _CUT_S:
            self._answer_cut()

    def broken(self, error: Exception) -> None:
        """For the barrier: pass the error on to the pool."""
        self._pool.broken(error)
