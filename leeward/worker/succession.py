"""
Replaces the zygote now and then: when a new one is started, and how it takes over.

Runs in:   the daemon.

All keepers and jobs of one zygote are clones of it, and share its address layout and hash seed. A job can learn both,
and use them in later jobs. So after a number of jobs, or some time, another zygote is started beside the old one. It
warms up while the old one serves, and takes over when it is ready and the old one has no keeper left to make. Then the
old one is ended. Its keepers and their runners live on; the pool replaces them when they are idle (pool/relief.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.dataclass import dataclass
from leeward.errors import Bug, LeewardError
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer
from leeward.wire import control
from leeward.worker.hatch import Hatched
from leeward.worker.zygote import Zygote

if TYPE_CHECKING:
    from leeward.pool.zygotes import EventLog

#: Seconds until another try, after a successor that couldn't be started or ended before it was ready; doubled each time
#: up to the second figure.
_AGAIN_S, _AGAIN_MOST_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class Term:
    """
    For how long a zygote serves.

    Attributes:
        jobs: 0 is without end.
        seconds: after which the term ends, or with the next job if there was none until then; 0 is without end.
    """

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ZygoteDuties:
    """
    Functions of the owner of the zygotes, for a new zygote.

    Attributes:
        owes: returns whether the zygote that serves still has to make a keeper.
        take_over: takes over the new zygote; returns the old one, or None if there was none.
        made, failed, said, gone: the new zygote's callbacks, as in Zygote.
    """

    owes: Callable[[], bool]
    take_over: Callable[[Zygote], Zygote | None]
    made: Callable[[control.Made, int], None]
    failed: Callable[[control.Failed], None]
    said: Callable[[str], None]
    gone: Callable[[], None]


class Succession:
    """
    The zygotes of one pool: the one that serves, and the one that is about to take over.

    Args:
        patience: seconds that a new zygote has until it is ready.
    """

    costs = "zygote"

    def __init__(self, reactor: Reactor, term: Term, plans: tuple[ZygotePlan, WorkerPlan], duties: ZygoteDuties,
                 log: EventLog, patience: float) -> None:
        self._reactor, self._term, self._plans, self._duties, self._log = reactor, term, plans, duties, log
        self._patience = patience
        self._jobs = 0
        self._late = False
        self._clock: Timer | None = None
        self._successor: Zygote | None = None
        self._ready = self._closed = False
        self._due: Timer | None = None
        self._failures = 0
        self._again: Timer | None = None
        self._leaving: set[Zygote] = set()

    def begin(self) -> None:
        """Begin the term of a zygote, which serves from now on."""
        self._jobs, self._late = 0, False
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self._reactor.after(self._term.seconds, self._time_is_up) if self._term.seconds else None

    def job_ended(self) -> None:
        self._jobs += 1
        if self._late or self._jobs == self._term.jobs:
            self._late = False
            self._reactor.soon(self.start)

    def _time_is_up(self) -> None:
        if self._jobs:
            self.start()
        else:
            self._late = True  # no job has seen this layout yet, so its term begins with the first one

    # --- the new one ------------------------------------------------------------

    def start(self) -> None:
        """Start a new zygote, unless one is being started or a start is to be tried again."""
        if self._successor is not None or self._again is not None or self._closed:
            return
        try:
            hatched = Hatched(self._plans[0])
        except (LeewardError, OSError) as error:  # for example, no descriptors are left
            self._fail(str(error))
            return
        duties = self._duties
        self._successor = Zygote(self._reactor, hatched, ready=self._on_ready, made=duties.made, failed=self._on_failed,
                            said=duties.said, gone=self._on_gone)
        self._due = self._reactor.after(self._patience, self._on_silence)
        try:
            self._successor.give(self._plans[1])
        except OSError:
            return  # the new zygote has ended; `_on_gone` is called for the end of its channel
        self._log.debug("zygote starts, to take over", pid=self._successor.pid, jobs=self._jobs)

    def _on_ready(self) -> None:
        self._ready = True
        self.go_on()

    def go_on(self) -> None:
        """Let the new zygote take over, if it is ready and the old one has made all its keepers."""
        successor = self._successor
        if successor is None or not self._ready or self._duties.owes():
            return
        self._forget_successor()
        self._failures = 0
        successor.take_office(failed=self._duties.failed, gone=self._duties.gone)
        old = self._duties.take_over(successor)
        self.begin()
        if old is not None:
            self._leaving.add(old)
            old.retire(self._patience, partial(self._leaving.discard, old))

    def _forget_successor(self) -> None:
        self._successor, self._ready = None, False
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _on_failed(self, message: control.Failed) -> None:
        self._log.warning("zygote failed", layer=message.layer, error=message.message)
        if self._successor is not None:
            self._successor.process.kill()  # the end of its channel does the rest

    def _on_silence(self) -> None:
        self._due = None
        if self._successor is not None and not self._ready:
            self._log.warning("zygote doesn't answer", pid=self._successor.pid, seconds=self._patience)
            self._successor.process.kill()

    def _on_gone(self) -> None:
        successor = self._successor
        if successor is None:
            raise Bug("a zygote has gone that wasn't to take over")
        self._forget_successor()
        successor.process.wait()
        self._fail("it ended before it took over")

    def _fail(self, why: str) -> None:
        if self._closed:
            return
        seconds = min(_AGAIN_MOST_S, _AGAIN_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._log.warning("no new zygote: the old one goes on", error=why, again_after=seconds)
        self._again = self._reactor.after(seconds, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        self.start()

    # --- the end ------------------------------------------------------------------

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback has failed. End the new zygote, if there is one."""
        successor = self._successor
        if successor is not None:
            self._forget_successor()
            in_any_case(successor.end, partial(self._fail, "a callback failed"))

    def close(self) -> None:
        """End a new zygote that hasn't taken over."""
        self._closed = True
        successor, leaving = self._successor, list(self._leaving)
        self._forget_successor()
        self._leaving.clear()
        for timer in (self._clock, self._again):
            if timer is not None:
                timer.cancel()
        in_any_case(*([successor.end] if successor is not None else []), *(zygote.end for zygote in leaving))
