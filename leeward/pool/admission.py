"""
Decides which jobs are admitted, which wait for a worker, which are refused, and which one is next.

Runs in:   the daemon, and `leeward run`.

Theory of operation. A job is admitted by its user's quota, and starts if it may and a worker is free. Else it waits
in the line, which has a bound by number and one by time, with a deadline of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leeward.errors import BadRequest, Busy, QueueTimeout, Refused, ShuttingDown
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor
from leeward.pool.backlog import Backlog
from leeward.pool.line import FairQueue
from leeward.pool.quotas import Ledger
from leeward.pool.shedding import Shedding
from leeward.pool.ticket import Ticket
from leeward.pool.workforce import Workforce
from leeward.run.report import Report
from leeward.worker.worker import Worker

if TYPE_CHECKING:
    from leeward.pool.pool import Pool


class Admission:
    """
    Attributes:
        queue: the waiting tickets.
        closed: the daemon is draining: nobody is admitted any more.
        refused: the number of jobs that were refused.
    """

    def __init__(self, reactor: Reactor, pool: Pool, workforce: Workforce, queue: FairQueue[Ticket],
                 backlog: Backlog, ledger: Ledger) -> None:
        self._reactor, self._pool, self._workforce = reactor, pool, workforce
        self.queue, self.backlog, self.ledger = queue, backlog, ledger
        self.closed = False
        self.refused = 0
        self.shedding = Shedding(reactor, backlog, lambda: workforce.fast_path)
        ledger.wake, ledger.forget_connection = self.serve, self.shedding.forget

    # --- coming ---------------------------------------------------------------

    def admit(self, user: int, memory: int, now: float) -> None:
        """
        Count a job that *user* sends, with a limit of *memory* bytes.

        Raises:
            ShuttingDown, Busy, BadRequest: as Pool.submit.
        """
        try:
            if self.closed:
                raise ShuttingDown("the daemon is shutting down")
            self.ledger.admit(user, memory, now)
        except (Busy, BadRequest, ShuttingDown):
            self.refused += 1
            raise

    def enter(self, ticket: Ticket) -> None:
        """
        Start *ticket*, or queue it for a worker.

        Raises:
            ShuttingDown, Busy, BadRequest: as Pool.submit.
        """
        user, now = ticket.user, ticket.waited_from
        self.admit(user, ticket.job.limits.memory, now)
        if self.may_start(ticket):
            if not (self.queue and self.queue.of(user)):
                worker = self._workforce.free()
                if worker is not None:
                    self._pool.start(ticket, worker)
                    return
            self.backlog.waits(now)
            why = self.refusal(user, ticket.connection, now)
            if why is not None:
                raise why
        self._wait(ticket, now)

    def _wait(self, ticket: Ticket, now: float) -> None:
        """
        Put *ticket* into the queue.

        Raises:
            Busy: the queue has no place for it.
        """
        loser = self.queue.add(ticket)
        if loser is not None:
            self.backlog.full(now)
        if loser is ticket:
            self.refused += 1
            raise Busy(f"all {self._workforce.size} workers are busy and {len(self.queue)} requests wait already")
        if loser is not None:
            self.refuse(loser, Busy(f"{self.queue.of(loser.user) + 1} requests of user {loser.user} wait, and the"
                                    " queue is full: the newest made room for another user's"))
        ticket.deadline = self._reactor.after(ticket.patience, partial(self._expire, ticket, ticket.patience))
        self._workforce.await_jobs(len(self.queue))

    def refusal(self, user: int, connection: int, now: float) -> Busy | None:
        """
        Why a job that *user* sends by *connection* is refused at time *now*, if it would wait for too long; the refusal
        is counted. A job that waits for its user's quota isn't refused for that.
        """
        if not self.queue or self.closed or not self.backlog.refuses(now):
            return None
        before = self.queue.before(user, connection, self.may_start)
        wait = self.backlog.refusal(before, now, quiet=self.shedding.quiet(connection))
        if wait is None:
            return None
        self.refused += 1
        why = Busy(f"all {self._workforce.size} workers are busy, and one would come free in about {wait:.3f} s only;"
                   " try again then", retry_after=wait)
        self.shedding.refused(user, connection, why, now)
        return why

    def shed(self, connection: int, count: int, now: float) -> None:
        """The fast path has refused *count* requests of this connection."""
        self.refused += count
        self.backlog.refused(count, now)
        self.shedding.count(connection, count)

    def may_start(self, ticket: Ticket) -> bool:
        """Whether its user's quota, and the share of other users, have room for it."""
        return self.ledger.may_start(ticket.user, ticket.job.limits.memory, ticket.take is not None)

    # --- waiting --------------------------------------------------------------

    def wait_again(self, ticket: Ticket, seconds: float) -> None:
        """The runner of *ticket* was lost, and no worker is free: put it at the head of the queue, for at least *seconds*."""
        waited = self._reactor.now() - ticket.waited_from
        left = max(ticket.patience - waited, seconds)
        ticket.deadline = self._reactor.after(left, partial(self._expire, ticket, waited + left))
        self.queue.put_back(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Take a ticket out of the queue, if it is there."""
        if self.queue.remove(ticket):
            if ticket.deadline is not None:
                ticket.deadline.cancel()
            self._pool.check_drained()

    def refuse(self, ticket: Ticket, why: Refused) -> None:
        """Refuse a ticket that was removed from the queue."""
        if ticket.deadline is not None:
            ticket.deadline.cancel()
        self.refused += 1
        ticket.answer(Report(refusal=why))

    def _expire(self, ticket: Ticket, waited: float) -> None:
        if self.queue.remove(ticket):
            why = f"no worker came free within {waited:g} s"
            running = self.ledger.running_anywhere(ticket.user)
            if running and not self.may_start(ticket):
                why = (f"user {ticket.user} has {running} jobs running, and no more fitted into the quota within"
                       f" {waited:g} s")
            self.refuse(ticket, QueueTimeout(why))
            self._pool.check_drained()

    def expire_overdue(self, now: float) -> None:
        """After a callback has failed: refuse the tickets whose deadline has passed."""
        in_any_case(*(partial(self._expire, ticket, now - ticket.waited_from) for ticket in list(self.queue)
                      if ticket.deadline is not None and ticket.deadline.when <= now))

    # --- whose turn it is -----------------------------------------------------

    def serve(self) -> None:
        """Start waiting jobs that may start, as long as there are free workers."""
        worker = None
        while self.queue and (worker := self._workforce.free()) is not None:
            ticket = self.queue.take(self.may_start)
            if ticket is None:
                break
            self._pool.start(ticket, worker)
        if not self.queue or worker is not None:
            self.backlog.idle()

    def serve_with(self, worker: Worker) -> None:
        """*worker* can take a job: give it a waiting one, if there is one."""
        self.backlog.free(worker.slot, self._reactor.now())
        while self.queue and worker.free:
            ticket = self.queue.take(self.may_start)
            if ticket is None:
                break
            self._pool.start(ticket, worker)
        if not self.queue or worker.free:
            self.backlog.idle()

    def broken(self, error: Exception) -> None:
        """For the barrier: the pool hears of it."""
        self._pool.broken(error)
