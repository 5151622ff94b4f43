"""
Raises KeyboardInterrupt in a job that runs.

Runs in:   the daemon.

Theory of operation. An interrupt is a SIGINT to the job's process, sent only when the process has read its whole frame:
an earlier one would hit code of leeward, or in a session the previous job. The job may handle or ignore the interrupt.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from leeward.loop.reactor import Reactor, Timer

if TYPE_CHECKING:
    from leeward.run.execution import Execution

#: Seconds between two checks whether the job's frame was read.
_UNREAD_S = 0.001

#: CPython handles a signal that came right before a sleeping call only when that call ends; another signal ends the
#: call. SIGURG, because its default action is to be ignored.
_NUDGE_S = 0.02


class Interruption:
    """One interrupt of one job."""

    costs = "job"

    def __init__(self, reactor: Reactor, job: Execution) -> None:
        self._reactor, self._job = reactor, job
        self._next: Timer | None = None
        self._try()

    def _try(self) -> None:
        if self._job.over:
            return
        if self._job.taken:
            self._job.signal(signal.SIGINT)
            self._next = self._reactor.after(_NUDGE_S, self._nudge)
        else:
            self._next = self._reactor.after(_UNREAD_S, self._try)

    def _nudge(self) -> None:
        if not self._job.over:
            self._job.signal(signal.SIGURG)

    def close(self) -> None:
        """Stop, because the job is over or is interrupted again."""
        if self._next is not None:
            self._next.cancel()

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the execution."""
        self._job.broken(error)
