"""
Checks a job at intervals for limits that the kernel doesn't enforce.

Runs in:   the daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.loop.reactor import Reactor, Timer
from leeward.outcome import Limit
from leeward.run.runner import Runner
from leeward.run.verdict import Stop

if TYPE_CHECKING:
    from leeward.run.execution import Execution


class JobTicks:
    """Checks a job on *runner* that began at *started*, by the reactor's clock."""

    costs = "job"

    def __init__(self, reactor: Reactor, runner: Runner, execution: Execution, started: float) -> None:
        self._reactor, self._runner, self._execution = reactor, runner, execution
        self._next: Timer = reactor.at(started + runner.leaf.tick_interval, self._tick)

    def _tick(self) -> None:
        execution = self._execution
        if execution.over:
            return
        if self._runner.tick() == Limit.MEMORY:
            execution.stop(Stop.MEMORY)
        if not execution.over:
            self._next = self._reactor.after(self._runner.leaf.tick_interval, self._tick)

    def close(self) -> None:
        """Stop the checks, because the job is over."""
        self._next.cancel()

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the execution."""
        self._execution.broken(error)
