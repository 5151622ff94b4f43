"""
A zygote for each keeper, where `fresh_layout` asks for it: no two jobs share an address layout or a hash seed.

Runs in:   the daemon.

Theory of operation. A worker of such a pool serves one job, session or sandbox. A zygote is started for each worker
that is needed, as many at a time as there are processors. When the zygote is ready it takes one order and makes that
keeper; it is ended when the keeper serves. A worker waits here until a zygote has taken its order, and jobs wait for a
worker, so no job ever runs with a layout that another one has seen. A zygote that ends early, or is silent for too
long, is followed by another one: at once, or, if several end one after the other, after a pause.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.errors import LeewardError
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer
from leeward.pool.workforce import Workforce
from leeward.pool.zygotes import pause_after
from leeward.wire import control
from leeward.worker.hatch import Hatched
from leeward.worker.worker import Worker, WorkerState
from leeward.worker.zygote import PENDING, Zygote

if TYPE_CHECKING:
    from leeward.pool.branch import Branch


class _Single:
    """
    A zygote that makes one keeper.

    Attributes:
        ready: the zygote is ready.
        worker: the worker whose keeper it makes, or has made.
        due: the deadline for its next message.
        words: its error output, for the reason of its end.
    """

    __slots__ = ("due", "ready", "words", "worker", "zygote")

    def __init__(self) -> None:
        self.zygote: Zygote
        self.ready = False
        self.worker: Worker | None = None
        self.due: Timer | None = None
        self.words = ""

    @property
    def over(self) -> bool:
        """Whether its worker doesn't need it any more."""
        return self.worker is not None and self.worker.state is not WorkerState.MAKING

    def quiet(self) -> None:
        """Stop waiting for a message."""
        if self.due is not None:
            self.due.cancel()
            self.due = None


class FreshZygotes:
    """
    Args:
        plan: the plan of the zygotes.
        worker_plan: the plan of their keepers.
        most: zygotes that warm up at a time.

    Attributes:
        stands: always true: a worker ends after its job, whether or not there is a zygote for the next one.
        snapshot: the snapshot of the zygote that became ready last.
    """

    stands = True

    def __init__(self, reactor: Reactor, plan: ZygotePlan, worker_plan: WorkerPlan, workforce: Workforce,
                 engine: Branch, most: int) -> None:
        self._reactor, self._plan, self._worker_plan, self._most = reactor, plan, worker_plan, most
        self._workforce, self._engine, self._log = workforce, engine, engine.log
        self._waiting: list[Worker] = []
        self._there: set[_Single] = set()
        self._leaving: set[Zygote] = set()
        self._lost = 0  # in a row
        self._rests = self._stopped = False
        self.snapshot = PENDING

    def order(self, worker: Worker) -> None:
        """Order the keeper of *worker*, from a zygote of its own."""
        self._waiting.append(worker)
        self._reactor.soon(self._go_on)

    def runner_made(self) -> None:
        """Note that a runner is armed: its zygote may end, and further ones may start."""
        self._go_on()

    def job_ended(self) -> None:
        """Do nothing, because the worker ends."""

    def _go_on(self) -> None:
        """End the zygotes that are done, give orders to those that are ready, and start the missing ones."""
        if self._stopped:
            return
        for single in [each for each in self._there if each.over]:
            self._let_go(single)
        self._waiting = [worker for worker in self._waiting if worker.state is WorkerState.MAKING]
        for single in [each for each in self._there if each.ready and each.worker is None][:len(self._waiting)]:
            self._place_order(single)
        # At the start only the first zygote runs, until its worker can take a job.
        most = self._most if self._workforce.runners_made else 1
        free = most - sum(each.worker is None or each.worker.keeper.pid < 0 for each in self._there)
        warming = sum(each.worker is None for each in self._there)
        for _ in range(0 if self._rests else min(free, len(self._waiting) - warming)):
            self._start()

    def _start(self) -> None:
        try:
            self.adopt(Hatched(self._plan))
        except (LeewardError, OSError) as error:  # no descriptors left, say
            self._log.warning("zygote can't be started", error=str(error))
            self._fail(f"zygote: {error}")

    def adopt(self, hatched: Hatched) -> None:
        """Use this zygote for the next keeper."""
        single = _Single()
        self._there.add(single)
        single.zygote = Zygote(
            self._reactor, hatched, ready=partial(self._on_ready, single), made=partial(self._on_made, single),
            failed=partial(self._on_failed, single), said=partial(self._on_words, single),
            gone=partial(self._on_gone, single))
        self._expect(single, self._engine.patience.start)
        try:
            single.zygote.give(self._worker_plan)
        except OSError:
            return  # gone: its last words are on their way, or the end of its channel

    def _place_order(self, single: _Single) -> None:
        worker = self._waiting.pop(0)
        message, fds = worker.order()
        try:
            single.zygote.make_keeper(message, fds)
        except LeewardError as error:  # the end of its channel starts another one
            self._waiting.insert(0, worker)
            self._log.warning("zygote takes no orders", error=str(error))
            single.ready = False
            return
        single.worker = worker
        self._expect(single, self._engine.patience.zygote)
        worker.ordered()

    # --- messages of the zygotes ------------------------------------------------

    def _expect(self, single: _Single, seconds: float) -> None:
        single.quiet()
        single.due = self._reactor.after(seconds, partial(self._on_silence, single, seconds))

    def _on_silence(self, single: _Single, seconds: float) -> None:
        single.due = None
        if single in self._there:
            self._log.warning("zygote doesn't answer", pid=single.zygote.pid, seconds=seconds)
            single.zygote.process.kill()  # the end of its channel starts the next one

    def _on_ready(self, single: _Single) -> None:
        single.ready, single.words = True, ""
        self.snapshot = single.zygote.snapshot
        single.quiet()  # it waits for us
        self._go_on()

    def _on_made(self, single: _Single, message: control.Made, pidfd: int) -> None:
        self._lost = 0
        single.quiet()
        worker = single.worker
        if worker is not None and worker.keeper.pid < 0 and worker in self._workforce.workers:
            worker.made(message, pidfd)
        else:
            os.close(pidfd)  # its worker retired meanwhile; the keeper reads end of file and goes
        self._reactor.soon(self._go_on)

    def _on_failed(self, single: _Single, message: control.Failed) -> None:
        self._engine.blame(message.layer, message.message)
        self._log.warning("zygote failed", layer=message.layer, error=message.message)
        worker = single.worker
        if worker is not None and worker.keeper.pid < 0:
            self._workforce.worker_failed(worker, message.layer, message.message)
            worker.retire(message.message)
        self._reactor.soon(self._go_on)

    def _on_words(self, single: _Single, text: str) -> None:
        """Error output during the warm-up is that of imported modules, and an error only if the zygote ends."""
        if single.ready:
            self._engine.blame("", text)
        else:
            single.words = (single.words + "\n" + text)[-4096:]
        self._log.warning("zygote says", text=text)

    def _on_gone(self, single: _Single) -> None:
        """Handle a zygote's end. A keeper that it has made lives on; an ordered one isn't made."""
        single.quiet()
        self._there.discard(single)
        single.zygote.process.wait()
        worker = single.worker
        if self._stopped or (worker is not None and worker.keeper.pid >= 0):
            return
        if single.words:
            self._engine.blame("", single.words.strip())
        self._log.warning("zygote is gone", lost=self._lost + 1)
        if worker is not None:
            worker.retire("the zygote is gone")
        self._fail("the zygote ends as soon as it starts")

    def _fail(self, why: str) -> None:
        """Start another zygote in place of one that has failed, at once or after a pause."""
        self._lost += 1
        if self._lost > 1:
            self._engine.blame("", why)
            if not self._rests:
                self._rests = True
                self._reactor.after(pause_after(self._lost), self._rested)
        self._reactor.soon(self._go_on)

    def _rested(self) -> None:
        self._rests = False
        self._go_on()

    # --- the end ------------------------------------------------------------------

    def _let_go(self, single: _Single) -> None:
        single.quiet()
        self._there.discard(single)
        zygote = single.zygote
        self._leaving.add(zygote)
        zygote.retire(self._engine.patience.start, partial(self._leaving.discard, zygote))

    def broken(self, error: Exception) -> None:
        """For the barrier: pass the error on to the engine."""
        self._engine.broken(error)

    def mend(self) -> None:
        """Do what a callback that has failed may have left undone."""
        self._rests = False
        self._go_on()

    def stop(self) -> None:
        """Start no more zygotes."""
        self._stopped = True

    def retire(self, seconds: float, left: Callable[[], None]) -> None:
        """End the zygotes without waiting; *left* is called when all were reaped. Call `stop` before."""
        there, self._there = self._there, set()
        for single in there:
            single.quiet()
        missing = {single.zygote for single in there}

        def gone(zygote: Zygote) -> None:
            missing.discard(zygote)
            if not missing:
                left()

        in_any_case(self._end_leaving, *(partial(zygote.retire, seconds, partial(gone, zygote))
                                         for zygote in list(missing)), *([] if missing else [left]))

    def end(self) -> None:
        """End the zygotes and reap them; see Zygote.end."""
        there, self._there = self._there, set()
        for single in there:
            single.quiet()
        in_any_case(*(single.zygote.end for single in there), self._end_leaving)

    def _end_leaving(self) -> None:
        leaving, self._leaving = self._leaving, set()
        in_any_case(*(zygote.end for zygote in leaving))
