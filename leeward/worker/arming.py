"""
A worker's runners: armed one after the other, one for the next job and `spares` more.

Runs in:   the daemon.

Theory of operation. A runner is ordered when the pool gives its worker a turn. Two messages come: the keeper sends the
runner's descriptors (Armed), and the runner reports which locks it has set (its birth, run/births.py). When both have
come the runner is put in store. If arming fails, another runner is ordered after a pause that grows. If the worker
itself is the cause, or the failures last, the worker is given up.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from functools import partial

from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import WorkerGroup
from leeward.isolation.channel import Channel
from leeward.loop.reactor import Reactor, Timer
from leeward.protocols import Protocol
from leeward.run.births import attend
from leeward.run.runner import Runner
from leeward.run.states import RunnerEvent, RunnerState
from leeward.wire import control
from leeward.worker.keeper import Keeper
from leeward.worker.removal import Removal
from leeward.worker.stumbles import Stumbles, pause_after, pause_of
from leeward.worker.terms import WorkerSettings

_numbers = itertools.count(1)

#: The init's pidfd, and the daemon's ends of the pipes for job, reply, stdout and stderr.
_RUNNERS_FDS = 5


class Armer(Protocol):
    """
    The worker whose runners they are.
    """

    keeper: Keeper
    group: WorkerGroup
    jobs: int

    @property
    def taking(self) -> bool:
        """
        Does it serve, and will it?
        """

    @property
    def busy(self) -> bool: ...
    def want_turn(self) -> None: ...
    def stocked(self) -> None:
        """
        There is a runner more in store.
        """

    def stumbled(self, layer: str, text: str, *, passing: bool) -> None:
        """
        A runner couldn't be armed; *passing* if by nothing of the worker's own.
        """

    def doom(self, reason: str) -> None: ...
    def go_on(self) -> None: ...
    def withdraw(self) -> None: ...
    def broken(self, error: Exception) -> None: ...


class Refiller(Protocol):
    """
    What is asked of the pool, and told to it.
    """

    def renews(self) -> bool: ...
    @property
    def crowded(self) -> bool: ...
    def arming_over(self, runner: int) -> None: ...


class Arming:
    """
    Attributes:
        runners: by number, all of which a process may be left.
        store: those that wait for a job; the first one is next.
        report: what the self-check of the first one saw.
    """

    costs = "worker"

    def __init__(self, reactor: Reactor, worker: Armer, terms: WorkerSettings, pool: Refiller,
                 removal: Removal) -> None:
        self._reactor, self._worker, self._terms, self._pool = reactor, worker, terms, pool
        self._removal = removal
        self.runners: dict[int, Runner] = {}
        self.store: deque[Runner] = deque()
        self.report: dict[str, str] = {}
        self._deadlines: dict[int, Timer] = {}  # of those being armed
        self._waits = False  # for a turn
        self._stumbles = Stumbles()
        self._rests = False  # until the next one is tried
        self._without = False  # nobody asks for a runner for long

    @property
    def count(self) -> int:
        """
        How many are on their way, or wait for a turn to be.
        """
        return self._waits + sum(runner.state is RunnerState.ARMING for runner in self.runners.values())

    # --- asking for one -------------------------------------------------------

    def refill(self) -> None:
        """
        Ask for a turn to arm a runner if one is wanted: for the next job and `spares` more, but no
        more than jobs are left here. One at a time: a keeper makes them one after the other.
        """
        if self.count or not self.wanted():
            return
        self._waits = True
        self._worker.want_turn()

    def wanted(self) -> bool:
        """
        Is there room for one more?
        """
        return self._worker.taking and not self._rests and len(self.store) < self.kept

    @property
    def kept(self) -> int:
        """
        How many are to be in store: one for the next job and `spares` more, but no more than jobs are left here.
        """
        if self._without:
            return 0
        wanted = 1 + self._terms.spares - self._worker.busy
        left = self._terms.recycle_after - self._worker.jobs
        return wanted if left >= wanted or not self._pool.renews() else max(0, left)

    def go_without(self) -> None:
        """
        Let those in store go, and arm none until `go_with`: a live sandbox has the worker, and may keep it for hours.
        """
        self._without = True
        while self.store:
            runner = self.store.popleft()
            self.move(runner, RunnerEvent.ENDED)
            runner.kill()

    def go_with(self) -> None:
        self._without = False

    def arm(self, *, patient: bool) -> int | None:
        """
        The worker's turn has come.

        Args:
            patient: nobody waits for the runner.

        Returns:
            The number of the runner that is on its way, or None if none is.
        """
        self._waits = False
        if not self.wanted():
            return None
        try:
            return self._arm(patient)
        except (LeewardError, OSError) as error:
            self._stumble("cgroup", str(error), pause_after(error))
            return None

    def hurry(self, number: int) -> None:
        """
        This runner has been armed for too long with what others left it.
        """
        runner = self.runners.get(number)
        if runner is not None and runner.state is RunnerState.ARMING:
            runner.restore_priority()

    def _arm(self, patient: bool) -> int:
        number = next(_numbers)
        here, there = Channel.pair()
        try:
            here.socket.setblocking(False)
            leaf = self._worker.group.leaf(number, self._terms.limits, patient=patient)
        except BaseException:
            here.close()
            there.close()
            raise
        keeper = self._worker.keeper
        runner = Runner(number, leaf, here, self._terms.denials, keeper.sockets, keeper.show,
                        more_tasks=2 * max(0, self._terms.spares - 1))
        runner.proves = keeper.prove
        self.runners[number] = runner
        try:
            entry = leaf.entry
            fds = [there.fileno(), *([entry.into] if entry.into >= 0 else []), *entry.attach]
            keeper.send(control.Arm(number, entry.into >= 0, len(entry.attach), leaf.cpu(),
                                    hurried=self._pool.crowded, proved=keeper.proved), fds)
        except BaseException:
            del self.runners[number]
            self._removal.dispose(runner)
            raise
        finally:
            there.close()
        attend(self._reactor, runner, self._born, self.failed)
        self._deadlines[number] = self._reactor.after(self._terms.patience.keeper, partial(self._check_armed, runner))
        return number

    # --- its birth ------------------------------------------------------------

    def armed(self, number: int, pid: int, fds: list[int]) -> None:
        """
        The keeper has made this runner; *fds* are ours.
        """
        runner = self.runners[number]
        if len(fds) != _RUNNERS_FDS:  # it reads end of file on its pipe, and goes
            for fd in fds:
                os.close(fd)
            runner.cut = True
            self.failed(number, "", "no descriptors were left for its pipes")
            return
        runner.take(pid, fds)
        if runner.state is RunnerState.ENDING:
            runner.kill()  # it failed before its pidfd was here
        self._check_ready(runner)

    def _born(self, runner: Runner) -> None:
        self.report = self.report or runner.report
        self._check_ready(runner)

    def _check_ready(self, runner: Runner) -> None:
        if runner.state is not RunnerState.ARMING or not runner.ready():
            return
        try:
            runner.record_baseline()
        except (LeewardError, OSError) as error:  # it is dead already, say
            self.failed(runner.number, "", str(error))
            return
        self.move(runner, RunnerEvent.READY)
        runner.proves()
        self.store.append(runner)
        self._stumbles.over()
        self._worker.stocked()
        self.refill()

    def _check_armed(self, runner: Runner) -> None:
        if runner.state is RunnerState.ARMING and runner.number in self.runners:
            self.failed(runner.number, "", f"a runner wasn't ready within {self._terms.patience.keeper:g} s")

    def move(self, runner: Runner, event: RunnerEvent) -> None:
        """
        Take *runner* to its next state; the pool hears when it arms no longer.
        """
        was_arming = runner.state is RunnerState.ARMING
        runner.happen(event)
        if was_arming:
            deadline = self._deadlines.pop(runner.number, None)
            if deadline is not None:  # it is set once the keeper was asked
                deadline.cancel()
            self._pool.arming_over(runner.number)

    # --- what fails -----------------------------------------------------------

    def failed(self, number: int, layer: str, text: str) -> None:
        """
        A lock of this runner couldn't be set, or it can't be had for another reason.
        """
        runner = self.runners.get(number)
        pause = None if runner is None else pause_of(runner)
        if runner is not None and runner.state in (RunnerState.ARMING, RunnerState.ARMED):
            self._worker.withdraw()
            self.move(runner, RunnerEvent.ENDED)
            runner.kill()
        self._stumble(layer, text, pause)

    def ended(self, pause: float | None) -> None:
        """
        A runner had no process any more before it was ready.
        """
        self._stumble("", "a runner ended before it was ready", pause)

    def _stumble(self, layer: str, text: str, pause: float | None) -> None:
        """
        A runner couldn't be armed. Where the cause is none of the worker's another is tried, after *pause* seconds at
        most; None where it is.
        """
        self._worker.stumbled(layer, text, passing=pause is not None)
        again = self._stumbles.next(self._reactor.now(), pause, store=bool(self.store))
        if again is None:
            self._worker.doom(f"{layer or 'runner'}: {text}")
        elif not self._rests:
            self._rests = True
            self._reactor.after(again, self._rested)

    def _rested(self) -> None:
        self._rests = False
        self._worker.go_on()

    def broken(self, error: Exception) -> None:
        """
        For the barrier: the worker retires.
        """
        self._worker.broken(error)
