"""
The zygotes that make a pool's keepers: one for all of them, or where `fresh_layout` asks for it one for each, so that
no two jobs share an address layout or a hash seed.

Theory of operation. Workers wait here until a zygote serves and takes their order. While it has a keeper to make, it
has to send something within some seconds; a zygote that is stopped or stuck is killed. When it ends, its keepers live
on, and workers whose keeper was on order are retired. Another zygote is started, at once or, if zygotes end one after
the other, after a pause. Now and then a new one takes over from one that serves (worker/zygote.py).

With `FreshZygotes` a worker serves one job, session or sandbox. A zygote is started for each worker that is needed, as
many at a time as there are processors; it makes that keeper, and is ended when the keeper serves. Jobs wait for a
worker, so no job ever runs with a layout that another one has seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.pool.workforce import Workforce
from leeward.daemon.worker.worker import Worker, WorkerState
from leeward.daemon.worker.zygote import PENDING, Succession, Term, Zygote
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.daemon.worker.zygote_start import StartedZygote
from leeward.errors import LeewardError
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.daemon.pool.branches import Branch


_BACKOFF_S = 0.2
#: Characters of a zygote's last output that are given as the reason of its end.
_MOST_WORDS = 4096


def pause_after(lost: int) -> float:
    """Seconds until another zygote is started, after so many have ended one after the other."""
    return min(5.0, _BACKOFF_S * 2.0 ** min(lost, 8))


class EventLog(Protocol):
    """The engine's log. *details*: whether lines of level debug are written."""

    @property
    def details(self) -> bool: ...
    def debug(self, event: str, /, **fields: object) -> object: ...
    def info(self, event: str, /, **fields: object) -> object: ...
    def warning(self, event: str, /, **fields: object) -> object: ...


class _ZygoteOwner:
    """What the owners of a pool's zygotes, whose keepers have *worker_plan*, do alike."""

    def __init__(self, reactor: Reactor, plan: ZygotePlan, worker_plan: WorkerPlan, workforce: Workforce,
                 engine: Branch) -> None:
        self._reactor, self._plan, self._worker_plan = reactor, plan, worker_plan
        self._workforce, self._engine, self._log = workforce, engine, engine.log
        self._waiting: list[Worker] = []
        self._lost = 0  # in a row
        self._stopped = False
        self.broken = engine.broken

    def _give_plan(self, zygote: Zygote) -> None:
        with contextlib.suppress(OSError):  # gone: its last words are on their way, or the end of its channel
            zygote.give(self._worker_plan)

    def _tell_failure(self, message: control.Failed) -> None:
        self._engine.blame(message.layer, message.message)
        self._log.warning("zygote failed", layer=message.layer, error=message.message)

    def _tell_words(self, text: str, words: str, *, ready: bool) -> str:
        """Log *text*, and return *words* with it: before a zygote is ready it is no error, unless the zygote ends."""
        if ready:
            self._engine.blame("", text)
        self._log.warning("zygote says", text=text)
        return words if ready else (words + "\n" + text)[-_MOST_WORDS:]

    def _tell_silence(self, zygote: Zygote, seconds: float) -> None:
        self._log.warning("zygote doesn't answer", pid=zygote.pid, seconds=seconds, importing=zygote.importing)
        if zygote.importing:
            self._engine.blame("", f"preload: module {zygote.importing}: its import takes more than {seconds:g} s")

    def _tell_end(self, zygote: Zygote | None, words: str) -> str:
        """Reap and log a zygote. Returns the reason of its end, which is blamed at once if there are last *words*."""
        died = "" if zygote is None else zygote.death()
        if words:
            self._engine.blame("", f"{died}: {words.strip()}" if died else words.strip())
        self._log.warning("zygote is gone", lost=self._lost, **({"error": died} if died else {}))
        return died or "the zygote ends as soon as it starts"

    def stop(self) -> None:
        """Start no other zygote when one ends."""
        self._stopped = True


class Zygotes(_ZygoteOwner):
    def __init__(self, reactor: Reactor, plan: ZygotePlan, worker_plan: WorkerPlan, workforce: Workforce,
                 engine: Branch, term: Term) -> None:
        super().__init__(reactor, plan, worker_plan, workforce, engine)
        self.current: Zygote | None = None  # the zygote that serves, or is being started; None while there is none
        self._ready = False
        self._due = NO_TIMER  # the deadline for its next message
        self._words = ""  # the last output of a zygote before it was ready
        self._ordered: list[Worker] = []  # workers whose keepers were ordered; some are made meanwhile
        self.succession = Succession(reactor, term, (plan, worker_plan), self, self._log, engine.patience.start)
        self.succession.begin()

    def adopt(self, hatched: StartedZygote) -> None:
        self._ready, self._words = False, ""
        self.current = Zygote(self._reactor, hatched, ready=self._on_ready, made=self.on_made,
                              failed=self.on_failed, said=self.on_words, gone=self.on_gone)
        self._give_plan(self.current)
        self._expect_word(self._engine.patience.start)

    @property
    def stands(self) -> bool:
        return self.current is not None and self._ready

    @property
    def snapshot(self) -> str:
        return PENDING if self.current is None else self.current.snapshot

    # --- orders ---------------------------------------------------------------

    def order(self, worker: Worker) -> None:
        self._waiting.append(worker)
        if self._ready:
            self._reactor.soon(self._place_orders)

    def runner_made(self) -> None:
        """A runner is armed: the first worker can take a job, so the others may be made."""
        if self._waiting:
            self._place_orders()

    def _place_orders(self) -> None:
        """Order as many keepers as the zygote accepts; at the start only one, until its worker can take a job."""
        while self._waiting and self.current is not None and self._ready:
            if not self._workforce.runners_made and len(self._waiting) < len(self._workforce.by_slot):
                return
            worker = self._waiting[0]
            message, fds = worker.order()
            if not self._due.is_set:
                self._expect_word(self._engine.patience.zygote)
            try:
                self.current.make_keeper(message, fds)
            except LeewardError as error:
                self._log.warning("zygote takes no orders", error=str(error))
                return
            self._ordered.append(self._waiting.pop(0))
            worker.ordered()

    def on_order(self) -> list[Worker]:
        """The workers whose keepers were ordered and aren't made yet."""
        self._ordered = [worker for worker in self._ordered if worker.state is WorkerState.MAKING and worker.keeper.pid < 0]
        return self._ordered

    # --- signs of life --------------------------------------------------------

    def _expect_word(self, seconds: float) -> None:
        self._due.cancel()
        self._due = self._reactor.after(seconds, partial(self._on_silence, seconds))

    def _heard(self) -> None:
        """Begin the time for the remaining orders again: the zygote has sent a message."""
        self._due.cancel()
        if self.on_order():
            self._expect_word(self._engine.patience.zygote)
        else:
            self.succession.go_on()

    def _on_silence(self, seconds: float) -> None:
        """Kill a zygote that is stopped or stuck, because its workers would never be made."""
        self._due.cancel()
        if self.current is not None and (self.on_order() or self._waiting or not self._ready):
            self._tell_silence(self.current, seconds)
            self.current.process.kill()  # the end of its channel starts the next one
            self._expect_word(seconds)

    def _on_ready(self) -> None:
        self._ready, self._words = True, ""
        self._heard()
        self._place_orders()
        self._workforce.renew()

    def on_made(self, message: control.Made, pidfd: int, memory: ZygoteMemory | None) -> None:
        self._lost = 0
        worker = self._workforce.by_slot.get(message.slot)
        if worker is not None and worker.keeper.pid < 0:
            worker.made(message, pidfd, memory)
        else:
            os.close(pidfd)  # its worker retired meanwhile; the keeper reads end of file and goes
        self._heard()
        self._place_orders()  # its queue may have room now

    def on_failed(self, message: control.Failed) -> None:
        self._tell_failure(message)
        for worker in self.on_order():
            if worker.slot == message.number:
                self._workforce.worker_failed(worker, message.layer, message.message)
                worker.retire(message.message)
                break
        self._heard()

    def on_words(self, text: str) -> None:
        self._words = self._tell_words(text, self._words, ready=self._ready)

    def job_ended(self) -> None:
        """Count a job that one of the zygote's workers has run."""
        self.succession.job_ended()

    def take_over(self, successor: Zygote) -> Zygote | None:
        """Replace the zygote that serves by *successor*, which is ready. The old zygote's workers are replaced one by one."""
        old, self.current, self._ready = self.current, successor, True
        self._log.debug("zygote takes over", pid=successor.pid, old=old and old.pid)
        self._due.cancel()
        self._workforce.outdate()
        self._engine.took_over()
        self._reactor.soon(self._place_orders)
        return old

    def on_gone(self) -> None:
        """Handle the zygote's end. Its keepers live on; ordered ones aren't made."""
        on_order = self.on_order()
        zygote, self.current, self._ready = self.current, None, False
        self._due.cancel()
        if self._stopped:
            if zygote is not None:
                zygote.process.wait()
            return
        self._lost += 1
        why = self._tell_end(zygote, self._words)
        for worker in on_order:
            worker.retire("the zygote is gone")
        if self._lost == 1:
            self._restart()
        else:
            self._engine.blame("", why)
            self._restart_later()

    def _restart_later(self) -> None:
        self._reactor.after(pause_after(self._lost), self._restart)

    def _restart(self) -> None:
        if self._stopped or self.current is not None:
            return
        try:
            self.adopt(StartedZygote(self._plan))
        except (LeewardError, OSError) as error:  # no descriptors left, say
            self._lost += 1
            self._engine.blame("", f"zygote: {error}")
            self._log.warning("zygote can't be started", error=str(error))
            self._restart_later()

    def mend(self) -> None:
        """Do what a callback that has failed may have left undone."""
        in_any_case(self._restart, self._place_orders, self._expect_again)

    def _expect_again(self) -> None:
        if self._ready:
            self._heard()
        elif self.current is not None:
            self._expect_word(self._engine.patience.start)

    def retire(self, seconds: float, left: Callable[[], None]) -> None:
        """End the zygote without waiting; *left* is called when it was reaped. Call `stop` before."""
        zygote, self.current, self._ready = self.current, None, False
        self._due.cancel()
        in_any_case(self.succession.close, left if zygote is None else partial(zygote.retire, seconds, left))

    def end(self) -> None:
        zygote, self.current = self.current, None
        in_any_case(*([zygote.end] if zygote is not None else []), self.succession.close)


class _Single:
    __slots__ = ("due", "ready", "words", "worker", "zygote")

    def __init__(self) -> None:
        self.zygote: Zygote
        self.ready = False  # the zygote is ready
        self.worker: Worker | None = None  # the worker whose keeper it makes, or has made
        self.due = NO_TIMER  # the deadline for its next message
        self.words = ""  # its error output, for the reason of its end

    @property
    def over(self) -> bool:
        """Whether its worker doesn't need it any more."""
        return self.worker is not None and self.worker.state is not WorkerState.MAKING


class FreshZygotes(_ZygoteOwner):
    """*most*: zygotes that warm up at a time."""

    stands = True  # always true: a worker ends after its job, whether or not there is a zygote for the next one

    def __init__(self, reactor: Reactor, plan: ZygotePlan, worker_plan: WorkerPlan, workforce: Workforce,
                 engine: Branch, most: int) -> None:
        super().__init__(reactor, plan, worker_plan, workforce, engine)
        self._most = most
        self._there: set[_Single] = set()
        self._leaving: set[Zygote] = set()
        self._rests = False
        self.snapshot = PENDING  # the snapshot of the zygote that became ready last

    def order(self, worker: Worker) -> None:
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
            self.adopt(StartedZygote(self._plan))
        except (LeewardError, OSError) as error:  # no descriptors left, say
            self._log.warning("zygote can't be started", error=str(error))
            self._lost += 1
            self._fail(f"zygote: {error}")

    def adopt(self, hatched: StartedZygote) -> None:
        single = _Single()
        self._there.add(single)
        single.zygote = Zygote(
            self._reactor, hatched, ready=partial(self._on_ready, single), made=partial(self._on_made, single),
            failed=partial(self._on_failed, single), said=partial(self._on_words, single),
            gone=partial(self._on_gone, single))
        self._expect(single, self._engine.patience.start)
        self._give_plan(single.zygote)

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
        single.due.cancel()
        single.due = self._reactor.after(seconds, partial(self._on_silence, single, seconds))

    def _on_silence(self, single: _Single, seconds: float) -> None:
        if single in self._there:
            self._tell_silence(single.zygote, seconds)
            single.zygote.process.kill()  # the end of its channel starts the next one

    def _on_ready(self, single: _Single) -> None:
        single.ready, single.words = True, ""
        self.snapshot = single.zygote.snapshot
        single.due.cancel()  # it waits for us
        self._go_on()

    def _on_made(self, single: _Single, message: control.Made, pidfd: int, memory: ZygoteMemory | None) -> None:
        self._lost = 0
        single.due.cancel()
        worker = single.worker
        if worker is not None and worker.keeper.pid < 0 and worker in self._workforce.workers:
            worker.made(message, pidfd, memory)
        else:
            os.close(pidfd)  # its worker retired meanwhile; the keeper reads end of file and goes
        self._reactor.soon(self._go_on)

    def _on_failed(self, single: _Single, message: control.Failed) -> None:
        self._tell_failure(message)
        worker = single.worker
        if worker is not None and worker.keeper.pid < 0:
            self._workforce.worker_failed(worker, message.layer, message.message)
            worker.retire(message.message)
        self._reactor.soon(self._go_on)

    def _on_words(self, single: _Single, text: str) -> None:
        single.words = self._tell_words(text, single.words, ready=single.ready)

    def _on_gone(self, single: _Single) -> None:
        """Handle a zygote's end. A keeper that it has made lives on; an ordered one isn't made."""
        single.due.cancel()
        self._there.discard(single)
        worker = single.worker
        if self._stopped or (worker is not None and worker.keeper.pid >= 0):
            single.zygote.process.wait()
            return
        self._lost += 1
        why = self._tell_end(single.zygote, single.words)
        if worker is not None:
            worker.retire("the zygote is gone")
        self._fail(why)

    def _fail(self, why: str) -> None:
        """Start another zygote in place of one that has failed, at once or after a pause; `_lost` has counted it."""
        if self._lost > 1:
            self._engine.blame("", why)
            if not self._rests:
                self._rests = True
                self._reactor.after(pause_after(self._lost), self._rested)
        self._reactor.soon(self._go_on)

    def _rested(self) -> None:
        self._rests = False
        self._go_on()

    def _let_go(self, single: _Single) -> None:
        single.due.cancel()
        self._there.discard(single)
        zygote = single.zygote
        self._leaving.add(zygote)
        zygote.retire(self._engine.patience.start, partial(self._leaving.discard, zygote))

    def mend(self) -> None:
        """Do what a callback that has failed may have left undone."""
        self._rests = False
        self._go_on()

    def retire(self, seconds: float, left: Callable[[], None]) -> None:
        """End the zygotes without waiting; *left* is called when all were reaped. Call `stop` before."""
        there, self._there = self._there, set()
        for single in there:
            single.due.cancel()
        missing = {single.zygote for single in there}

        def gone(zygote: Zygote) -> None:
            missing.discard(zygote)
            if not missing:
                left()

        in_any_case(self._end_leaving, *(partial(zygote.retire, seconds, partial(gone, zygote))
                                         for zygote in list(missing)), *([] if missing else [left]))

    def end(self) -> None:
        there, self._there = self._there, set()
        for single in there:
            single.due.cancel()
        in_any_case(*(single.zygote.end for single in there), self._end_leaving)

    def _end_leaving(self) -> None:
        leaving, self._leaving = self._leaving, set()
        in_any_case(*(zygote.end for zygote in leaving))
