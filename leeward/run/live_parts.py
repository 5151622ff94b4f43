"""
The protocols by which a live runner uses its worker and its keeper, and by which a job uses a live runner.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.errors import LeewardError
from leeward.loop.fast_path import FastPath
from leeward.run.lease import Lease
from leeward.run.report import Report, internal
from leeward.spec.job import Job
from leeward.spec.limits import Limits

#: Returns the fast path, if there is one and it takes new jobs.
FastPathNow = Callable[[], FastPath | None]


class LiveCaller:
    """The caller of a job that runs in an interpreter of its own."""

    client = None

    def __init__(self, job: Job, done: Callable[[Report], None]) -> None:
        self.job, self._done = job, done

    def finished(self, report: Report) -> None:
        self._done(report)

    def lost(self) -> None:
        self.failed("", "its process was lost before it had read the job")

    def failed(self, layer: str, text: str) -> None:
        self._done(internal("WorkerLost", f"{layer}: {text}" if layer else text))


class Full(LeewardError):
    """There is no room for one more process."""


def begin(lease: Lease, limits: Limits, opened: Callable[[Lease], None]) -> None:
    """Open *lease* and give it to *opened*. If it can't be opened, end it: its process may have been killed at once."""
    try:
        lease.open(limits)
    except LeewardError as error:
        lease.end(str(error))
    else:
        opened(lease)
