"""
A submitted job, from its request to its one report.

Runs in:   the daemon, and `leeward run`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Protocol

from leeward.dataclass import dataclass, field
from leeward.spec.job import Job
from leeward.worker.execution import Execution, Stop
from leeward.worker.express import Client
from leeward.worker.reactor import Timer
from leeward.worker.report import Report
from leeward.worker.worker import Worker

Done = Callable[[Report], None]

_numbers = itertools.count(1)


class Line(Protocol):
    """
    Where it may wait: the pool.
    """

    def forget(self, ticket: Ticket) -> None: ...


@dataclass(slots=True, eq=False)
class Ticket:
    """
    A submitted job. `cancel` it when nobody waits for it any more.

    Attributes:
        user: the uid of who sent it.
        number: unique in this daemon's life; the security log knows the job by it.
        runner: the number of the runner that has it, or had it; 0 before.
        waited: seconds that it waited for a worker.
        cancelled: nobody waits for it any more.
        take: takes the worker for a session, in place of running the job; False if its runner was lost.
    """

    job: Job
    done: Done | None
    pool: Line
    deadline: Timer | None = None
    execution: Execution | None = None
    patience: float = 0.0
    losses: int = 0
    waited_from: float = field(default_factory=time.monotonic)
    user: int = 0
    number: int = field(default_factory=_numbers.__next__)
    runner: int = 0
    waited: float = 0.0
    cancelled: bool = False
    client: Client | None = None
    take: Callable[[Worker], bool] | None = None

    def cancel(self) -> None:
        """
        End the job, or take it out of the queue; its `done` is not called any more.
        """
        self.done, self.cancelled = None, True
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
