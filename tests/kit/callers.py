"""
The caller of a job and the holder of a runner, for a test that runs an Execution without a pool.

Runs in:   a test.
"""

from __future__ import annotations

from types import SimpleNamespace

from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import Runner
from leeward.spec.job import Job


class JobCaller:
    """
    Attributes:
        reports: the reports of the job, one at most.
        losses: how many times the job was lost.
    """

    client: ReplyAddress | None = None

    def __init__(self, job: Job) -> None:
        self.job = job
        self.reports: list[Report] = []
        self.losses = 0

    def finished(self, report: Report) -> None:
        self.reports.append(report)

    def lost(self) -> None:
        self.losses += 1


class RunnerHolder:
    """A holder that does nothing with its runner."""

    terms = SimpleNamespace(degraded=(), results="auto")

    def killed(self, runner: Runner) -> None:
        return

    def conclude(self, execution: Execution, report: Report) -> None:
        execution.caller.finished(report)

    def gone(self, execution: Execution) -> None:
        execution.caller.lost()
