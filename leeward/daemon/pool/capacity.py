"""
Which jobs run beyond a pool's own workers: as many as the memory carries, and the processors where jobs compute.

Theory of operation. The pool's own workers take jobs as they come. Further workers are made while jobs wait, and each
is admitted by what there is at the moment:

    memory       what the host and the groups above have left, less a reserve, less the limits of the jobs that have
                 started beyond the own workers just now and may be about to take it
    processors   jobs that compute: PER_PROCESSOR for each processor. A job that has just started counts as one. A user
                 of whom nothing runs, or else a connection of which nothing computes, is admitted beyond that, so that a
                 hundred loops of one don't hold up the others

While jobs wait, a look every LOOK_S seconds finds which jobs compute: those whose first task runs or waits for a
processor at that moment, or which have used a part of the time since the last look. A job that sleeps or waits costs
memory alone, and is looked at less often.

While jobs run beyond the own workers and hardly any memory is left, the one that started last is ended, and goes back
to the head of the queue if nobody outside has seen anything of it: before the kernel chooses a process.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from leeward.base.dataclass import dataclass
from leeward.daemon.loop.reactor import Reactor, Repeating
from leeward.daemon.run.verdict import Stop
from leeward.errors import LeewardError
from leeward.isolation.cgroup import hierarchy

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool, Ticket

#: Jobs that compute, for each processor: of those who run none, and of a connection or a user who run none so far.
PER_PROCESSOR, OF_NEW_CONNECTION, OF_NEW_USER = 2, 2, 3
#: Seconds between two looks, and the part of them in which a job that computes has used processor time.
LOOK_S, COMPUTES = 0.01, 0.3
#: Jobs that wait by themselves of which a look tells whether they compute now.
_AGAIN = 4
#: Workers that are made in advance of the jobs that wait, as each takes some milliseconds; and if processors are short.
AHEAD, STANDBY = 16, 1
#: Seconds for which a job may still be about to take the memory of its limit.
_YOUNG_S = 0.25
#: The part of the memory that is left to others than jobs beyond the own workers, and the part with less of which one of
#: these jobs has to go; it is looked at every _GUARD_S seconds.
_RESERVE, _LEAST, _GUARD_S = 8, 32, 0.1


@dataclass(slots=True)
class _Sample:
    """What was seen of a running job: the processor time that it had used at the time *at*."""

    at: float
    used: float


class Capacity:
    """The jobs of *pool* that run, and whether one more may; *memory* returns what is there, and what of it is left."""

    def __init__(self, reactor: Reactor, pool: Pool,
                 memory: Callable[[], tuple[int, int]] = hierarchy.memory_left) -> None:
        self._reactor, self._pool, self._memory = reactor, pool, memory
        self._processors = hierarchy.processors()
        self._samples: dict[Ticket, _Sample] = {}
        self._waiting: dict[Ticket, None] = {}  # jobs that wait by themselves; the one that was seen last is last
        self._connections: Counter[int] = Counter()  # jobs that compute, or have just started
        self._young: deque[tuple[float, int]] = deque()  # when jobs beyond the own workers started, and their limits
        self._left = 0  # bytes of memory for further jobs
        self._looked = float("-inf")
        self._looks = Repeating(reactor, LOOK_S, self._look)
        self._beyond: dict[Ticket, None] = {}  # jobs that started beyond the own workers, the last one last
        self._guard = Repeating(reactor, _GUARD_S, self._guard_memory)
        self.jobs = 0  # that run, without those of sessions

    # --- for the pool ---------------------------------------------------------

    def started(self, ticket: Ticket) -> None:
        self.jobs += 1
        self._connections[ticket.connection] += 1
        workforce = self._pool.workforce
        if workforce.beyond.jobs and self.jobs > workforce.own:
            memory = ticket.job.limits.memory
            self._young.append((self._reactor.now(), memory))
            self._left -= memory
            self._beyond[ticket] = None
            self._guard.start()

    def ended(self, ticket: Ticket) -> None:
        self.jobs -= 1
        self._compute(ticket, False)
        self._waiting.pop(ticket, None)
        self._samples.pop(ticket, None)
        self._beyond.pop(ticket, None)

    def carries(self, ticket: Ticket) -> bool:
        """Whether *ticket* may run now, if a worker is free."""
        workforce, ledger = self._pool.workforce, self._pool.ledger
        if ticket.careful and self.jobs and self._memory_left()[1] < ticket.job.limits.memory:
            return False
        if not workforce.beyond.jobs or ticket.take is not None:
            return True
        if self.jobs < workforce.own and ledger.leaves_others(ticket.user, workforce.own + workforce.held):
            return True
        self._refresh()
        most = (OF_NEW_USER if not ledger.running_anywhere(ticket.user) else
                OF_NEW_CONNECTION if not self._connections[ticket.connection] else 1)
        return self._left >= ticket.job.limits.memory and self.computing < self._bound * most

    @property
    def offers(self) -> bool:
        """Whether one more runner may be on offer to the fast path, which asks nobody."""
        workforce = self._pool.workforce
        return not workforce.beyond.jobs or self.jobs + len(workforce.offers) < workforce.own

    @property
    def overdrawn(self) -> bool:
        """Whether more runners are on offer to it than may be."""
        workforce = self._pool.workforce
        return workforce.beyond.jobs > 0 and self.jobs + len(workforce.offers) > workforce.own

    @property
    def computing(self) -> int:
        """Jobs that compute, or have just started."""
        return self.jobs - len(self._waiting)

    @property
    def _bound(self) -> float:
        return PER_PROCESSOR * self._processors

    # --- looking --------------------------------------------------------------

    def wake(self) -> None:
        """Look soon, and make workers: jobs wait."""
        if self._pool.workforce.beyond.jobs and not self._pool.workforce.closed:
            self._looks.start()

    def _look(self) -> bool:
        """Let jobs start, and workers be made for those that wait; whether to look again."""
        waiting = len(self._pool.queue)
        jobs = waiting > self._pool.queue.takers  # sessions and sandboxes don't ask what is left
        if jobs:
            self._refresh()
        if waiting:
            self._pool.admission.serve()
            if jobs and self._left > 0 and self.jobs >= self._pool.workforce.own:
                ahead = AHEAD if self.computing < self._bound else STANDBY
                self._pool.workforce.grow(self.jobs + min(waiting, ahead))
        return waiting > 0

    def _refresh(self) -> None:
        """See what is left of memory, and which jobs compute, if that was seen a while ago."""
        now = self._reactor.now()
        if now - self._looked < LOOK_S / 2:
            return
        self._looked = now
        while self._young and now - self._young[0][0] > _YOUNG_S:
            self._young.popleft()
        total, left = self._memory_left()
        self._left = left - total // _RESERVE - sum(memory for _, memory in self._young)
        again = list(islice(self._waiting, _AGAIN))
        for ticket in again:
            self._judge(ticket, now)
        for ticket in self._pool.tickets:
            if ticket.session is None and ticket not in self._waiting:
                self._judge(ticket, now)

    def _memory_left(self) -> tuple[int, int]:
        """What there is of memory, and what is left; neither if the daemon can't read that, for want of a descriptor say."""
        try:
            return self._memory()
        except (OSError, ValueError, StopIteration):
            return 0, 0

    def _guard_memory(self) -> bool:
        """End the job that started last beyond the own workers if hardly any memory is left; whether to look again."""
        total, left = self._memory_left() if self._beyond else (0, 0)
        if left < total // _LEAST:
            last = next((ticket for ticket in reversed(self._beyond) if ticket.unseen), None)
            if last is not None and last.execution is not None and not last.execution.stopped:
                last.execution.stop(Stop.HOST)
        return bool(self._beyond)

    def _judge(self, ticket: Ticket, now: float) -> None:
        """See whether *ticket*'s job has computed since it was seen last."""
        execution = ticket.execution
        if execution is None:
            return
        before = self._samples.get(ticket)
        if before is None:
            if now - execution.started < LOOK_S / 2:
                return
            before = self._samples[ticket] = _Sample(execution.started, execution.before.cpu_time)
        try:
            used = execution.runner.leaf.cpu_time()
            computes = used - before.used >= COMPUTES * (now - before.at) or execution.runner.runnable()
        except (LeewardError, OSError):  # it is ending
            return
        self._compute(ticket, computes)
        before.at, before.used = now, used

    def _compute(self, ticket: Ticket, computes: bool) -> None:
        """Note whether *ticket*'s job computes: one that waits leaves its connection as if it didn't run."""
        waited = ticket in self._waiting
        self._waiting.pop(ticket, None)
        if not computes:
            self._waiting[ticket] = None
        if computes is waited:
            self._connections[ticket.connection] += 1 if computes else -1
        if not self._connections[ticket.connection]:
            del self._connections[ticket.connection]

    def broken(self, error: Exception) -> None:
        """For the barrier: the pool looks again."""
        self._pool.broken(error)

    def stop(self) -> None:
        """Look no more: no job starts any more."""
        self._looks.stop()
        self._guard.stop()
