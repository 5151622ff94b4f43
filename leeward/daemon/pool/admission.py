"""
Decides which jobs are admitted, which wait for a worker, which are refused, and which one is next.

Theory of operation. A job is admitted by its user's quota, and starts if it may and a worker is free. Else it waits in
the line, which has a bound by number and one by time (`Backlog`), with a deadline of its own. Under a dense overload
the fast path refuses jobs by itself (`Shedding`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import FastPath
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.pool.line import FairQueue
from leeward.daemon.pool.quotas import Ledger
from leeward.daemon.pool.workforce import Workforce
from leeward.daemon.run.report import Report
from leeward.daemon.worker.worker import Worker
from leeward.errors import BadRequest, Busy, QueueTimeout, Refused, ShuttingDown

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool, Ticket


#: A connection is shed after MOST refusals within LAPSE_S seconds, and while its refusals continue at that rate.
MOST, LAPSE_S = 8, 0.5


class Shedding:
    """
    Connections whose jobs the fast path refuses by itself, because they send far more jobs than there are workers for.

    To refuse a job in Python costs as much as to read its request, and a job that has waited in the queue is started by
    Python, too. While an overload is dense, the next request arrives soon after a worker comes free, so a queue gains
    nothing. A connection that was refused MOST times within LAPSE_S seconds is then *shed*: the fast path gives its
    next request of code alone to a runner on offer, or refuses it. A connection that is refused less often stays in the
    queue, whose jobs come before those of the fast path.

    The fast path doesn't know whose turn it is, so no connection is shed while jobs of two users are refused. It has
    runners only where they are offered to it, so none is shed before a runner was offered, nor after a look that found
    no further offer.
    """

    def __init__(self, reactor: Reactor, backlog: Backlog, fast_path: Callable[[], FastPath | None]) -> None:
        self._reactor, self._backlog, self._fast_path = reactor, backlog, fast_path
        self._refusals: dict[int, int] = {}  # since the last look, by the connection's descriptor
        self._connections: set[int] = set()  # that are shed
        self._user: int | None = None  # whose job was the last one refused
        self._timer = NO_TIMER
        self._offered = self._stale = 0  # runners, at the last look, and at the last one that found no further offer

    @property
    def on(self) -> bool:
        return bool(self._connections)

    def quiet(self, connection: int) -> bool:
        """Whether no job of this connection was refused recently."""
        return connection not in self._refusals

    def refused(self, user: int, connection: int, why: Busy, now: float) -> None:
        """Record that the backlog has refused a job that *user* has sent by *connection*."""
        self.count(connection, 1)
        if not self._timer.is_set:
            self._timer = self._reactor.after(LAPSE_S, self._look)
        if user != self._user:
            self._unshed(set(self._connections))
            self._user = user
            return
        fast_path = self._fast_path()
        if (fast_path is None or not connection or connection in self._connections
                or self._refusals[connection] < MOST or fast_path.offered == self._stale
                or not self._backlog.dense(now)):
            return
        if not self._connections:
            self._offered = fast_path.offered
            fast_path.refuse_with(why)
        self._connections.add(connection)
        fast_path.shed(connection, True)

    def count(self, connection: int, more: int) -> None:
        """Record that *more* further jobs of this connection were refused."""
        self._refusals[connection] = self._refusals.get(connection, 0) + more

    def forget(self, connection: int) -> None:
        """Forget a connection that was closed, because the next one may have its number."""
        self._refusals.pop(connection, None)
        self._connections.discard(connection)

    def _look(self) -> None:
        fast_path = self._reactor.fast_path
        offered = 0 if fast_path is None else fast_path.offered
        if self._connections and offered == self._offered:
            self._stale = offered
        self._offered = offered
        lasts = self._stale != offered and self._backlog.dense(self._reactor.now())
        self._unshed({fd for fd in self._connections if not lasts or self._refusals.get(fd, 0) < MOST})
        self._refusals.clear()
        if self._connections:
            self._timer = self._reactor.after(LAPSE_S, self._look)

    def stop(self) -> None:
        """Shed no connection any more. May be called repeatedly."""
        self._refusals.clear()
        self._timer.cancel()
        self._unshed(set(self._connections))

    def _unshed(self, connections: set[int]) -> None:
        self._connections -= connections
        loop = self._reactor.fast_path
        if loop is not None:
            in_any_case(*(partial(loop.shed, fd, False) for fd in connections))

    def broken(self, _error: Exception) -> None:
        """For the barrier: shed no connection any more."""
        self.stop()


#: Job times for which a job may wait, if that is more than the configured delay, so that long jobs can queue.
JOBS = 10
#: How long a job may wait under overload: a part of a job time, or of the configured delay if jobs are much shorter.
STRICT_JOB, STRICT_DELAY = 0.5, 0.01
#: Delays after the last refusal before an overload is over.
REMEMBERED = 10
#: Fewer refusals than this may be chance: they make no overload dense.
_LEAST = 8
#: The weight of the latest job in the average.
_WEIGHT = 1 / 16


class Backlog:
    """
    How long a job would wait for a worker, and when that is too long. Pure: times are arguments.

    A worker is occupied from a job's start until it can take the next one, teardown and arming included. The *job time*
    is the moving average of that, and never less than the mean age of the jobs that run now; workers that sessions hold
    are left out. A job behind n others waits about (n + 1) * job time / workers.

    A burst and an overload look the same when they begin, but a burst is worked off, and then nobody waits. So there
    are three states:

        calm         every job may wait, as far as the queue has places
        standing     at every moment some job has waited for a worker, for longer than *bound*, the greater of the
                     configured delay and 10 job times: a job that would wait longer than *bound* is refused
        overloaded   a job was refused for that reason, or found a standing queue full, within the last second or so: a
                     job that would wait longer than half a job time is refused, so that admitted jobs hardly wait. A
                     connection that had no job refused of late may wait for a whole job time, or behind one other job

    The third state keeps latency low under an overload that lasts: a queue that is always refilled up to its bound
    makes every job wait for all of the bound, and no more jobs are done. Clients that wait for answers before they send
    more don't reach it unless they wait for longer than *bound* already. An overload is *dense* while more jobs are
    refused than start.

    No job is refused before any job has ended, nor because of another user's jobs: n counts only the jobs that come
    before it in the line's order, and that may start. *delay*, in seconds, may be replaced at any time (0: no bound);
    *workers* are those that take jobs now.
    """

    def __init__(self, delay: float, workers: int) -> None:
        self.delay, self.workers = delay, workers
        self._average: float | None = None
        self._since: dict[int, float] = {}  # by the slot of a worker that is occupied: the start of its job
        self._starts = 0.0                  # the sum of those
        self._standing_since: float | None = None
        self._refused: float | None = None
        self._counted_from = 0.0
        self._counts = self._counts_before = (0, 0)  # jobs that were started, and refused; in the time before

    def started(self, slot: int, now: float) -> None:
        """The worker *slot* has a job from now on."""
        self._forget(slot)
        self._since[slot] = now
        self._starts += now
        self._count(1, 0, now)

    def free(self, slot: int, now: float) -> None:
        """The worker *slot* can take a job, or is gone. May be called repeatedly."""
        since = self._forget(slot)
        if since is not None:
            average = self._average
            self._average = now - since if average is None else average + (now - since - average) * _WEIGHT

    def waits(self, now: float) -> None:
        """A job that may start has to wait for a worker."""
        if self._standing_since is None:
            self._standing_since = now

    def idle(self) -> None:
        self._standing_since = None

    def full(self, now: float) -> None:
        if self.delay and self._average is not None and self._stands(now):
            self._refused = now

    def refused(self, count: int, now: float) -> None:
        """*count* jobs were refused because no worker was free, or would have been free in time."""
        self._refused = now
        self._count(0, count, now)

    def _count(self, started: int, refused: int, now: float) -> None:
        seconds = self._bound(now)
        if now - self._counted_from > seconds:
            self._counts_before = self._counts if now - self._counted_from < 2 * seconds else (0, 0)
            self._counts, self._counted_from = (0, 0), now
        self._counts = self._counts[0] + started, self._counts[1] + refused

    def job_time(self, now: float) -> float:
        """Seconds that a job occupies a worker; 0 as long as none has ended."""
        if self._average is None:
            return 0.0
        count = len(self._since)
        return max(self._average, now - self._starts / count) if count else self._average

    def refusal(self, before: int, now: float, *, quiet: bool = False) -> float | None:
        """None if a job behind *before* others may wait, else the seconds; *quiet*: its connection wasn't refused."""
        if not self.refuses(now):
            return None
        overloaded = self._overloaded(now)
        job = self.job_time(now)
        wait = (before + 1) * job / self.workers
        bound = self._bound(now)
        if overloaded and before > quiet:  # the next job in line may always wait, so that no worker stays idle
            bound = min(bound, max(STRICT_DELAY * self.delay, job if quiet else STRICT_JOB * job))
        if wait <= bound:
            return None
        self.refused(1, now)
        return wait

    def refuses(self, now: float) -> bool:
        """Whether `refusal` may return anything but None for the next job, whoever sends it."""
        return (self._standing_since is not None and bool(self.delay) and self._average is not None
                and self.workers > 0 and (self._overloaded(now) or self._stands(now)))

    def _overloaded(self, now: float) -> bool:
        return self._refused is not None and now - self._refused < REMEMBERED * self.delay

    def dense(self, now: float) -> bool:
        """Whether more jobs were refused than started recently."""
        self._count(0, 0, now)
        started, refused = self._counts_before
        return bool(self.delay) and refused >= max(_LEAST, started)

    def _bound(self, now: float) -> float:
        return max(self.delay, JOBS * self.job_time(now))

    def _stands(self, now: float) -> bool:
        return self._standing_since is not None and now - self._standing_since > self._bound(now)

    def _forget(self, slot: int) -> float | None:
        since = self._since.pop(slot, None)
        if since is not None:
            self._starts -= since
        if not self._since:
            self._starts = 0.0  # removes rounding errors
        return since


class Admission:
    def __init__(self, reactor: Reactor, pool: Pool, workforce: Workforce, queue: FairQueue[Ticket],
                 backlog: Backlog, ledger: Ledger) -> None:
        self._reactor, self._pool, self._workforce = reactor, pool, workforce
        self.queue, self.backlog, self.ledger = queue, backlog, ledger
        self.closed = False  # the daemon is draining: nobody is admitted any more
        self.refused = 0  # the number of jobs that were refused
        self.broken = pool.broken
        self.shedding = Shedding(reactor, backlog, lambda: workforce.open_path)
        ledger.wake, ledger.forget_connection = self.serve, self.shedding.forget

    def admit(self, user: int, memory: int, now: float) -> None:
        """Count a job that *user* sends, with a limit of *memory* bytes; raises as Pool.submit."""
        try:
            if self.closed:
                raise ShuttingDown("the daemon is shutting down")
            self.ledger.admit(user, memory, now)
        except (Busy, BadRequest, ShuttingDown):
            self.refused += 1
            raise

    def enter(self, ticket: Ticket) -> None:
        """Start *ticket*, or queue it for a worker; raises as Pool.submit."""
        user, now = ticket.user, ticket.waited_from
        self.admit(user, ticket.job.limits.memory, now)
        if self.may_start(ticket):
            if not (self.queue and self.queue.of(user)):
                worker = self._workforce.free() if self._pool.capacity.carries(ticket) else None
                if worker is not None:
                    self._pool.start(ticket, worker)
                    return
            self.backlog.waits(now)
            why = self.refusal(user, ticket.connection, now)
            if why is not None:
                raise why
        self._wait(ticket, now)

    def _wait(self, ticket: Ticket, now: float) -> None:
        """Put *ticket* into the queue; Busy if the queue has no place for it."""
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
        self._pool.capacity.wake()

    def refusal(self, user: int, connection: int, now: float) -> Busy | None:
        """Why a job is refused at time *now*, and counted so, if it would wait too long; not for its user's quota."""
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

    @property
    def next_connection(self) -> int:
        """The number of the connection whose job is next in the queue; 0 if no connection's job is."""
        ticket = self.queue.next(self.may_start, self._pool.capacity.carries) if self.queue else None
        return 0 if ticket is None else ticket.connection_number

    def may_start(self, ticket: Ticket) -> bool:
        """Whether its user's quota, and the share of other users, have room for it."""
        return self.ledger.may_start(ticket.user, ticket.job.limits.memory, ticket.take is not None)

    def wait_again(self, ticket: Ticket, seconds: float) -> None:
        """The runner of *ticket* was lost, and no worker is free: put it at the head of the queue, for at least *seconds*."""
        waited = self._reactor.now() - ticket.waited_from
        left = max(ticket.patience - waited, seconds)
        ticket.deadline = self._reactor.after(left, partial(self._expire, ticket, waited + left))
        self.queue.put_back(ticket)
        self._pool.capacity.wake()

    def forget(self, ticket: Ticket) -> None:
        """Take a ticket out of the queue, if it is there."""
        if self.queue.remove(ticket):
            ticket.deadline.cancel()
            self._pool.check_drained()

    def refuse(self, ticket: Ticket, why: Refused) -> None:
        """Refuse a ticket that was removed from the queue; one that the machine has ended has an internal result."""
        ticket.deadline.cancel()
        if ticket.careful:  # a refusal says that nothing of it has run
            self._pool.give_up(ticket, why)
            return
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
                      if ticket.deadline.when <= now))

    def serve(self) -> None:
        """Start waiting jobs that may start, as long as there are free workers."""
        worker = None
        while self.queue and (worker := self._workforce.free()) is not None:
            ticket = self.queue.take(self.may_start, self._pool.capacity.carries)
            if ticket is None:
                break
            self._pool.start(ticket, worker)
        if not self.queue or worker is not None:
            self.backlog.idle()

    def serve_with(self, worker: Worker) -> None:
        """*worker* can take a job: give it a waiting one, if there is one."""
        def fits(ticket: Ticket) -> bool:
            return worker.arming.next_holder in (0, ticket.connection_number) and self._pool.capacity.carries(ticket)

        while self.queue and worker.free:
            ticket = self.queue.take(self.may_start, fits)
            if ticket is None:
                break
            self._pool.start(ticket, worker)
        if not self.queue or worker.free:
            self.backlog.idle()
