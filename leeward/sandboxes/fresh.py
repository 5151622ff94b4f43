"""
A job in a fresh interpreter of a live sandbox.

Runs in:   the daemon, on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.run.report import Report
from leeward.sandboxes.kernel import KernelProcess


class Fresh:
    """
    A job in a fresh interpreter. Whoever sent it can end it by `cancel`.

    Args:
        done: called once with the report, unless the job is cancelled.
        among: the sandbox's jobs of this kind; this one is among them until it is answered.
    """

    def __init__(self, done: Callable[[Report], None], among: set[Fresh]) -> None:
        self._done: Callable[[Report], None] | None = done
        self._among = among
        self.process: KernelProcess | None = None
        among.add(self)

    def answer(self, report: Report) -> None:
        """The job is over: pass on its report."""
        self._among.discard(self)
        done, self._done = self._done, None
        if done is not None:
            done(report)
        else:
            report.close()

    def lost(self, why: str) -> None:
        """The sandbox is over: report that the job failed."""
        self.answer(Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL,
                                         error=JobError("SandboxOver", why, ""))))

    def cancel(self) -> None:
        self._done = None
        if self.process is not None:
            self.process.kill()
