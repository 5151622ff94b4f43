"""
Which object holds a runner while a job runs on it, and which objects get the job's report.

Runs in:   the daemon; this module defines only protocols.

Theory of operation. The report of a job passes three objects, each of which calls the next one by name:

    Execution     makes the report, and passes it to its holder
    holder        the object that has lent the runner: the worker's Leasing, or the Lease of a session. It lets the
                  caller answer before it ends the runner or prepares it for the session's next job
    Caller        the ticket of the pool: it removes itself from the pool, informs its session, and answers the client

A job that no runner has read is reported along the same objects, by `gone` and `lost`; its ticket waits for another
worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.loop.fast_path import ReplyAddress
from leeward.protocols import Protocol
from leeward.run.report import Report
from leeward.run.runner import Runner
from leeward.spec.job import Job

if TYPE_CHECKING:
    from leeward.run.execution import Execution
    from leeward.worker.terms import WorkerSettings


class Caller(Protocol):
    """
    The sender of a job.

    Attributes:
        client: where the answer goes, if it may go by the fast path.
    """

    @property
    def job(self) -> Job: ...
    @property
    def client(self) -> ReplyAddress | None: ...

    def finished(self, report: Report) -> None:
        """Answer the client with the report. Called once."""

    def lost(self) -> None:
        """
        Called instead of `finished` if the runner was gone before it had read the whole code: the job has not started,
        and may run on another runner.
        """


class Helper(Protocol):
    """Does a part of an execution's work until the job is over."""

    def close(self) -> None: ...


class Holder(Protocol):
    """The object that has the runner on which a job runs."""

    @property
    def terms(self) -> WorkerSettings: ...

    def killed(self, runner: Runner) -> None:
        """*runner* was killed: `emptied` has to follow."""

    def conclude(self, execution: Execution, report: Report) -> None:
        """Call `finished` of the execution's caller; then end the runner, or prepare it for the next job."""

    def gone(self, execution: Execution) -> None:
        """Called if the runner has ended before any part of the job has run."""


class RunnerOwner(Protocol):
    """The object that has lent a runner to a session."""

    @property
    def terms(self) -> WorkerSettings: ...
    @property
    def crowded(self) -> bool:
        """Whether other jobs wait for the daemon."""

    def killed(self, runner: Runner) -> None:
        """*runner* was killed: `emptied` has to follow."""

    def give_back(self, runner: Runner) -> None:
        """Take *runner* back from the session."""
