"""
Arms a worker's runners one after the other: one for the next job and `spares` more.

Theory of operation. A runner is ordered when the pool gives its worker a turn. The keeper sends the runner's
descriptors (Armed), and the runner reports which locks it has set (its birth, run/runner.py). When both have come it is
put in store. If arming fails, another one is ordered after a pause that grows. If the worker itself is the cause, or
the failures last, the worker is given up.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.reactor import NO_TIMER, Reactor, Timer
from leeward.daemon.run.runner import Runner, attend
from leeward.daemon.run.runner_states import RunnerEvent, RunnerState
from leeward.daemon.worker.terms import WorkerSettings
from leeward.errors import SHORT, KernelRefusal, LeewardError
from leeward.isolation.cgroup.group import REMOVED
from leeward.isolation.channel import Channel
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.daemon.pool.workforce import Workforce
    from leeward.daemon.worker.worker import Worker

_numbers = itertools.count(1)

#: The init's pidfd, and the daemon's ends of the pipes for job, reply, stdout and stderr.
_RUNNERS_FDS = 5
#: Seconds until another runner is tried after one that couldn't be armed, because descriptors were short or its group
#: was removed from outside; doubled with each failure up to the second figure. After a removed group up to the third:
#: a program that removes groups again and again misses one now and then, so many tries are needed.
_AGAIN_S, AGAIN_MOST_S, _REMOVED_MOST_S = 0.02, 1.0, 0.1
#: Seconds after which a worker that couldn't arm a runner, and has none in store, is replaced. Not sooner, because a
#: new worker has more groups that somebody could remove than a runner has.
_STUMBLES_S = 12.0
#: The longest pause before another runner is tried, by errno; errors that aren't listed are the worker's own fault.
_PAUSES: dict[int | None, float] = {
    **dict.fromkeys(SHORT, AGAIN_MOST_S), **dict.fromkeys(REMOVED, _REMOVED_MOST_S)}


class Arming:
    """The runners of one worker, from their order until they are in store."""

    costs = "worker"

    def __init__(self, reactor: Reactor, worker: Worker, terms: WorkerSettings, pool: Workforce) -> None:
        self._reactor, self._worker, self._terms, self._pool = reactor, worker, terms, pool
        self.broken = worker.broken
        self.runners: dict[int, Runner] = {}  # by number, all runners that may have processes
        self.store: deque[Runner] = deque()  # the runners that wait for a job; the first one is next
        self.report: dict[str, str] = {}  # the results of the first runner's self-check
        self._deadlines: dict[int, Timer] = {}  # of runners that are being armed or were killed
        self._waits = False  # for a turn
        self._failures, self._failing_since = 0, 0.0  # to arm a runner, one after the other
        self._rests = False  # after a failure, until another runner is tried
        self._kept_for = 0  # the connection whose runners were ready in the namespaces that the keeper keeps
        self._without = False  # a live sandbox has the worker, so no runner is needed

    @property
    def count(self) -> int:
        """The number of runners that are being armed, or wait for their turn."""
        return self._waits + len([1 for runner in self.runners.values() if runner.state is RunnerState.ARMING])

    def refill(self) -> None:
        """Ask for a turn to arm a runner, if one is wanted: only one, as a keeper makes them one after the other."""
        if self._waits or not self.wanted() or self.count:
            return
        self._waits = True
        self._pool.refill.want(self)

    def wanted(self) -> bool:
        warmth = self._terms.warmth
        return (self._worker.taking and not self._rests and len(self.store) < self.kept
                and not (warmth is not None and warmth.waits)
                and not (self._occupied and self._pool.next_connection == self._kept_for))

    @property
    def _occupied(self) -> bool:
        """Whether a runner is in kept namespaces."""
        return self._terms.reuse and any(runner.holder for runner in self.runners.values())

    @property
    def kept(self) -> int:
        """How many runners should be in store: one, and `spares` more, but no more than the worker has jobs left."""
        if self._without or self._worker.leasing.lives:
            return 0
        wanted = 1 + self._terms.spares - self._worker.busy
        left = self._terms.recycle_after - self._worker.jobs
        return wanted if left >= wanted or not self._pool.renews() else max(0, left)

    def go_without(self) -> None:
        """End the runners in store, and arm none until `go_with`: a live sandbox may have the worker for hours."""
        self._without = True
        while self.store:
            runner = self.store.popleft()
            self.move(runner, RunnerEvent.ENDED)
            runner.kill()

    @property
    def next_holder(self) -> int:
        """The connection whose jobs alone may have the next runner in store; 0: any."""
        return self.store[0].holder if self.store else 0

    def dismiss(self) -> None:
        """End the next runner in store: no job of those that may have it waits."""
        runner = self.store.popleft()
        self.move(runner, RunnerEvent.ENDED)
        runner.kill()
        self._reactor.soon(self._worker.go_on)

    def go_with(self) -> None:
        self._without = False

    def arm(self, *, patient: bool) -> int | None:
        """Arm a runner if one is still wanted, and return its number. *patient*: no request waits for it."""
        self._waits = False
        if not self.wanted():
            return None
        try:
            return self._arm(patient)
        except (LeewardError, OSError) as error:
            self._stumble("cgroup", str(error), pause_after(error))
            return None

    def hurry(self, number: int) -> None:
        """Give this runner a full share of processor time: its arming takes too long with idle time alone."""
        runner = self.runners.get(number)
        if runner is not None and runner.state is RunnerState.ARMING:
            runner.restore_priority()

    def _arm(self, patient: bool) -> int:
        number = next(_numbers)
        if self._worker.upper is not None:
            self._worker.upper.clear()
        here, there = Channel.pair()
        try:
            here.socket.setblocking(False)
            if self._terms.warmth is not None:
                self._terms.warmth.tell(here)
            leaf = self._worker.group.leaf(number, self._terms.limits, patient=patient)
        except BaseException:
            here.close()
            there.close()
            raise
        keeper = self._worker.keeper
        runner = Runner(number, leaf, here, self._terms.denials, keeper.sockets,
                        self._terms.limits.descriptors, keeper.show, more_tasks=2 * max(0, self._terms.spares - 1))
        runner.proves, runner.sockstat = keeper.prove, keeper.sockstat
        runner.holder = self._pool.next_connection if self._terms.reuse and not self._occupied else 0
        again = bool(runner.holder) and runner.holder == self._kept_for
        if runner.holder:
            self._kept_for = 0  # until it is ready
        self.runners[number] = runner
        try:
            entry = leaf.entry
            fds = [there.fileno(), *([entry.into] if entry.into >= 0 else []), *entry.attach]
            keeper.send(control.Arm(number, entry.into >= 0, len(entry.attach), leaf.cpu(),
                                    hurried=self._pool.crowded, proved=keeper.proved, unpinned=self._pool.only_holders,
                                    holder=runner.holder, again=again), fds)
        except BaseException:
            del self.runners[number]
            self._worker.removal.dispose(runner)
            raise
        finally:
            there.close()
        attend(self._reactor, runner, self._born, self.failed)
        self.set_deadline(runner, self._terms.patience.keeper, self._check_armed)
        return number

    def armed(self, number: int, pid: int, fds: list[int]) -> None:
        """Take the descriptors of this runner, which the keeper has made; this object owns *fds*."""
        runner = self.runners[number]
        if len(fds) != _RUNNERS_FDS:  # the runner reads end of file on its pipe, and ends
            for fd in fds:
                os.close(fd)
            runner.cut = True
            self.failed(number, "", "no descriptors were left for its pipes")
            return
        runner.take(pid, fds)
        if runner.state is RunnerState.ENDING:
            runner.kill()  # the runner failed before its pidfd came
        self._check_ready(runner)

    def _born(self, runner: Runner) -> None:
        self.report = self.report or runner.report
        self._check_ready(runner)

    def _check_ready(self, runner: Runner) -> None:
        if runner.state is not RunnerState.ARMING or not runner.ready():
            return
        try:
            runner.record_baseline(self._terms.limits.memory)
            if self._worker.upper is not None:
                self._worker.upper.ready(runner.number)
        except (LeewardError, OSError) as error:  # for example, the runner is dead already
            self.failed(runner.number, "", str(error))
            return
        self.move(runner, RunnerEvent.READY)
        runner.proves()
        self._kept_for = runner.holder or self._kept_for
        self.store.append(runner)
        self._failures = 0
        self._pool.runner_made()
        if self._worker.free:
            self._pool.worker_free(self._worker)
        self.refill()

    def _check_armed(self, runner: Runner) -> None:
        if runner.state is RunnerState.ARMING and runner.number in self.runners:
            self.failed(runner.number, "", f"a runner wasn't ready within {self._terms.patience.keeper:g} s")

    def move(self, runner: Runner, event: RunnerEvent) -> None:
        """Move *runner* to its next state, and tell the pool when its arming is over."""
        was_arming, was_armed = runner.state is RunnerState.ARMING, runner.state is RunnerState.ARMED
        runner.happen(event)
        self._pool.armed += (runner.state is RunnerState.ARMED) - was_armed
        if was_arming or event is RunnerEvent.EMPTY:
            self._clear_deadline(runner)
        if was_arming:
            self._pool.refill.over(runner.number)

    def set_deadline(self, runner: Runner, seconds: float, missed: Callable[[Runner], None]) -> None:
        """Call *missed* in *seconds*, unless *runner* is ready (if it is being armed) or gone (if it was killed) by then."""
        self._clear_deadline(runner)
        if runner.number in self.runners:
            self._deadlines[runner.number] = self._reactor.after(seconds, partial(missed, runner))

    def _clear_deadline(self, runner: Runner) -> None:
        self._deadlines.pop(runner.number, NO_TIMER).cancel()  # the timer refers to the runner

    def failed(self, number: int, layer: str, text: str) -> None:
        """End this runner: one of its locks couldn't be set, or its arming has failed otherwise."""
        runner = self.runners.get(number)
        pause = None if runner is None else pause_of(runner)
        if runner is not None and runner.state in (RunnerState.ARMING, RunnerState.ARMED):
            self._worker.leasing.withdraw()
            self.move(runner, RunnerEvent.ENDED)
            runner.kill()
        self._stumble(layer, text, pause)

    def ended(self, pause: float | None) -> None:
        """Note that a runner has ended before it was ready."""
        self._stumble("", "a runner ended before it was ready", pause)

    def _stumble(self, layer: str, text: str, pause: float | None) -> None:
        """Handle a failure to arm: try again after *pause* seconds at most; None if the worker has to be given up."""
        self._pool.worker_failed(self._worker, layer, text, passing=pause is not None)
        now = self._reactor.now()
        self._failing_since = self._failing_since if self._failures else now
        self._failures += 1
        if pause is None or (now - self._failing_since > _STUMBLES_S and not self.store):
            self._worker.doom(f"{layer or 'runner'}: {text}")
        elif not self._rests:
            self._rests = True
            self._reactor.after(min(pause, _AGAIN_S * 2.0 ** min(self._failures, 10)), self._rested)

    def _rested(self) -> None:
        self._rests = False
        self._worker.go_on()


def pause_after(error: Exception) -> float | None:
    """Return the longest pause before another runner is tried after *error*; None if the worker is its cause."""
    return _PAUSES.get(getattr(error, "errno", None))


def pause_of(runner: Runner) -> float | None:
    """The same after *runner* has failed, perhaps because descriptors were lost, or its group was removed."""
    try:
        if runner.cut:
            return AGAIN_MOST_S
        return None if runner.leaf.is_there() else _REMOVED_MOST_S
    except KernelRefusal:
        return None
