"""
KeyboardInterrupt in a job that runs.

Runs in:   the daemon.

Theory of operation. An interrupt is a SIGINT to the job's process, sent only when the process has read all of its job:
an earlier one would hit code of leeward, or in a session the job before. The job decides what it does about it.
"""

from __future__ import annotations

import signal

from leeward.loop.reactor import Reactor, Timer
from leeward.protocols import Protocol

#: It waits so long for its job's frame to be read, and then looks again.
_UNREAD_S = 0.001

#: CPython sees a signal that came right before a call that sleeps only when that call ends: another signal, which
#: does nothing, ends it. SIGURG: a job that puts its default back ignores it.
_NUDGE_S = 0.02


class InterruptedJob(Protocol):
    """
    The execution.
    """

    @property
    def over(self) -> bool: ...
    @property
    def taken(self) -> bool:
        """
        Has its process read all of the job's frame?
        """

    def signal(self, number: int) -> None:
        """
        To its process, if that is there.
        """

    def broken(self, error: Exception) -> None: ...


class Interruption:
    """
    Of one job, once.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, job: InterruptedJob) -> None:
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
        """
        The job is over, or interrupted anew.
        """
        if self._next is not None:
            self._next.cancel()

    def broken(self, error: Exception) -> None:
        """
        For the barrier: the execution hears of it.
        """
        self._job.broken(error)
