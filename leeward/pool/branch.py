"""
A branch of an engine: one plan, with the zygote that was made for it and the pool of its workers.

Runs in:   the daemon, and `leeward run`.

All branches share the engine's loop, cgroup driver, supervisor and quota accounts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from leeward.isolation.plan import ZygotePlan
from leeward.loop.reactor import Reactor, Timer
from leeward.pool.begin import Settings
from leeward.pool.confinement import Confinement
from leeward.pool.fresh import FreshZygotes
from leeward.pool.pool import Pool
from leeward.pool.quotas import Book
from leeward.pool.relief import NO_BOUNDS, SeatBounds
from leeward.pool.ticket import Ticket
from leeward.pool.workforce import Workforce
from leeward.pool.zygotes import Zygotes
from leeward.run.awake import Awake
from leeward.run.report import Report
from leeward.spec.sandbox import SandboxSpec
from leeward.worker.hatch import Hatched
from leeward.worker.succession import Term
from leeward.worker.terms import WorkerSettings
from leeward.worker.worker import Worker

if TYPE_CHECKING:
    from leeward.pool.engine import Engine

#: Seconds between the failure of one of our callbacks and the repair of what it may have left undone.
_MEND_S = 0.5


class Branch:
    """
    Args:
        first: the first slot of its workers.
        surplus: workers that may be made in advance, when others are renewed.
        bounds: how many sessions and sandboxes the limit on descriptors allows.
        name: of its pool; "" for the daemon's first one.
        book: has the ledgers of all branches.
        troubled: called when `problem` is set before any runner was made.

    Attributes:
        problem: the first reason why no runner can be made, a layer and a message; None again when a runner was made.
        stood: a runner was made.
    """

    def __init__(self, reactor: Reactor, engine: Engine, settings: Settings, spec: SandboxSpec,
                 confinement: Confinement, *, surplus: int, book: Book, first: int = 0,
                 troubled: Callable[[], None] | None = None, bounds: SeatBounds = NO_BOUNDS,
                 name: str = "") -> None:
        self._reactor, self._engine, self.settings = reactor, engine, settings
        self.spec, self.confinement = spec, confinement
        self.log, self.patience = engine.log, engine.patience
        self._troubled = troubled
        self._mending: Timer | None = None
        self._closing = False
        self._ways_out = engine.exits.ways(settings, confinement)
        self.problem: tuple[str, str] | None = None
        self.stood = False
        self.zygotes: Zygotes | FreshZygotes
        self.pool = Pool(reactor, self, size=settings.pool_size, queue_size=settings.queue_size,
                         queue_delay=settings.queue_delay, quotas=settings.quotas, max_sessions=settings.max_sessions,
                         surplus=surplus, room=confinement.room, first=first, book=book, bounds=bounds,
                         name=name)
        self._awake = Awake(bounds.awake)

    def begin(self, plan: ZygotePlan, hatched: Hatched) -> None:
        """Let the zygote *hatched* make the workers. The branch owns it from now on."""
        settings = self.settings
        workers, workforce = self.confinement.plan, self.pool.workforce
        self.zygotes = (
            FreshZygotes(self._reactor, plan, workers, workforce, self, len(os.sched_getaffinity(0)))
            if settings.fresh_layout else
            Zygotes(self._reactor, plan, workers, workforce, self, Term(settings.layout_jobs, settings.layout_time)))
        self.zygotes.adopt(hatched)
        self.pool.open()

    # --- for the workforce ----------------------------------------------------

    def make_worker(self, slot: int, workforce: Workforce) -> Worker:
        """Make a worker, and order its keeper."""
        settings, driver = self.settings, self._engine.driver
        root = os.geteuid() == 0
        uid = self.confinement.first_id + slot if root else os.geteuid()
        gid = self.confinement.first_id + slot if root else os.getegid()
        group = driver.worker(slot, uid, settings.limits)
        spares, jobs = (0, 1) if settings.fresh_layout else (settings.spares, settings.recycle_after)
        terms = WorkerSettings(settings.limits, self.spec.uid, spares, jobs,
                               self.confinement.degraded, self.patience, self._engine.supervisor, settings.results,
                               settings.session_grace, self._ways_out, self._awake)
        try:
            worker = Worker(self._reactor, slot, (uid, gid), group, terms, workforce)
        except OSError:
            group.remove()
            raise
        self.zygotes.order(worker)
        return worker

    def overrun(self) -> None:
        """Log that workers go on past their number of jobs."""
        self.log.warning("no zygote: workers go on past their number of jobs",
                         recycle_after=self.settings.recycle_after)

    def making_failed(self, slot: int, message: str) -> None:
        """Record that a worker's keeper couldn't be ordered."""
        self.blame("", message)
        self.log.warning("no worker can be made", worker=slot, error=message)

    def worker_failed(self, worker: Worker, layer: str, message: str) -> None:
        """Record that a worker has failed, and why."""
        self.blame(layer, message)
        self._engine.worker_failed(worker, layer, message)

    def runner_made(self) -> None:
        """Record that a runner is armed."""
        self.problem, self.stood = None, True
        self.zygotes.runner_made()

    def blame(self, layer: str, message: str) -> None:
        """
        Record why no worker could be made; also called by the zygotes. When the engine starts, the first reason is its
        error.
        """
        self.problem = self.problem or (layer, message)
        if self._troubled is not None and not self.stood:
            self._reactor.soon(self._troubled)

    def job_ended(self, ticket: Ticket, report: Report) -> None:
        """For the pool: a job was reported."""
        self.zygotes.job_ended()
        self._engine.job_ended(ticket, report)

    @property
    def busy(self) -> bool:
        """Whether jobs, sessions or sandboxes use this branch."""
        pool = self.pool
        return bool(pool.tickets or len(pool.queue) or pool.sessions or pool.seats or pool.workforce.held)

    # --- when a callback has failed -------------------------------------------

    def broken(self, _error: Exception) -> None:
        """For the barrier, when a callback has failed: do what it may have left undone. Nothing is ended."""
        if self._mending is None and not self._closing:
            self._mending = self._reactor.after(_MEND_S, self._mend)

    def _mend(self) -> None:
        self._mending = None
        self.zygotes.mend()

    # --- the end --------------------------------------------------------------

    def stop(self) -> None:
        """Make no other zygote when this one ends."""
        self._closing = True
        self.zygotes.stop()
