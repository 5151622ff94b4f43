"""
A worker: one keeper, its runners, and at most one job at a time.

Theory of operation. The zygote clones the keeper; the daemon writes its id maps; the keeper builds its template and
serves. From then on the daemon keeps runners armed, one for the next job and `spares` more, and leases one per job, or
to a session. A runner that has had a job is killed after the answer, and the next job's code is sent only when that
runner's init is gone: two jobs of one worker share its user and network namespaces, so they must not overlap.

Any failure of a keeper retires the whole worker, and the workforce makes another. So does an exception in one of our own
callbacks. The keeper is killed and its channel closed. Its runners die with it; their inits' pidfds show that, since
the keeper can't report it any more. The worker is gone when no process and no group is left. Each step can be repeated,
and all are as long as something is left, because an exception in a callback may have come between two of them.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.points import point
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor
from leeward.daemon.run.runner import Runner, stop_listening
from leeward.daemon.run.runner_states import RunnerEvent, RunnerState, after
from leeward.daemon.run.verdict import bug
from leeward.daemon.worker.arming import Arming, pause_of
from leeward.daemon.worker.keeper import make_keeper
from leeward.daemon.worker.leasing import Leasing
from leeward.daemon.worker.orphans import AGAIN_S, reap
from leeward.daemon.worker.terms import WorkerSettings
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import LeewardError, PeerError
from leeward.isolation.cgroup.entry import Leaf, WorkerGroup
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.daemon.pool.workforce import Workforce

#: Failed removals of groups, by errors other than EBUSY, after which a group is given up; and seconds between tries.
_REMOVES, _REMOVE_S = 100, 0.05
#: Seconds after which the steps of retiring are taken again when a callback has failed.
_MEND_S = 0.5

class WorkerState(enum.Enum):
    MAKING = "making"      # the zygote was asked for a keeper
    SERVING = "serving"    # the keeper is ready for orders
    RETIRING = "retiring"  # its channel is closed; its processes are ending
    GONE = "gone"


class WorkerEvent(enum.Enum):
    READY = "ready"
    RETIRED = "retired"  # by us, or by the keeper's death
    EMPTY = "empty"      # keeper and all runners are gone


WORKER: Mapping[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (WorkerState.MAKING, WorkerEvent.READY): WorkerState.SERVING,
    (WorkerState.MAKING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.SERVING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.RETIRING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.RETIRING, WorkerEvent.EMPTY): WorkerState.GONE,
}


class Worker:
    """*slot*, its number in the pool, gives cgroup and host uid; *leasing* has the job, session or live sandbox."""

    costs = "worker"
    outdated = False  # another zygote has followed the one that made this worker's keeper
    lean = False  # it was made for a while, and has no spares

    def __init__(self, reactor: Reactor, slot: int, ids: tuple[int, int], group: WorkerGroup, terms: WorkerSettings,
                 workforce: Workforce) -> None:
        self.slot, self.group = slot, group
        self.jobs = 0  # how many jobs the worker has run
        self.state = WorkerState.MAKING
        self.keeper = make_keeper(reactor, terms.limits)  # makes its runners
        self._reactor = reactor
        self.ids = ids  # the host's uid and gid of its processes
        self._terms = terms
        self._workforce = workforce
        self.removal = Removal(reactor, self._check, partial(workforce.worker_failed, self, "cgroup"), self.broken)
        self.arming = Arming(reactor, self, terms, workforce)  # the runners until they are in store
        self.leasing = Leasing(reactor, self, terms, workforce, self.arming)
        self._doomed: str | None = None  # the reason to retire as soon as no job runs
        self._reason = ""  # to retire
        self._mending = NO_TIMER
        self._stop_handing: Callable[[], None] | None = None  # while mounts of an image are made for it
        uppers = None if terms.mounts is None else terms.mounts.uppers
        self.upper = None if uppers is None else uppers.new(ids)  # what its runners write to their roots, on a disk

    # --- making ---------------------------------------------------------------

    def order(self) -> tuple[control.MakeKeeper, list[int]]:
        """Return the message that orders the keeper, and its descriptors. Call `ordered` when it was sent."""
        return self.keeper.order(self.slot, self.group.keeper)

    def ordered(self) -> None:
        """Wait for the keeper's messages: its order was sent."""
        self._reactor.watch(self.keeper.ordered(), READ, self._on_message)

    def made(self, message: control.Made, pidfd: int, memory: ZygoteMemory | None = None) -> None:
        """Write the id maps of the keeper, which exists now and maps *memory*, and let it continue."""
        self.keeper.made(message.pid, pidfd, memory)
        self._reactor.watch(pidfd, READ, self._on_keeper_end)
        if self.state is not WorkerState.MAKING:
            return
        try:
            if self.group.processors:
                os.sched_setaffinity(message.pid, self.group.processors)
            self.keeper.map(self._terms.inside, self.ids)
            if self._terms.mounts is None:
                self.keeper.go_on()
            else:
                self._stop_handing = self._terms.mounts.make(self.ids, self.upper, self._hand_over)
        except (LeewardError, OSError) as error:
            self._not_mapped(error)

    def _hand_over(self, mounts: list[int] | LeewardError) -> None:
        """Let the keeper continue, with the *mounts* of an image; they stay the caller's."""
        self._stop_handing = None
        if self.state is not WorkerState.MAKING:
            return
        try:
            if isinstance(mounts, LeewardError):
                raise mounts
            self.keeper.go_on(mounts)
        except (LeewardError, OSError) as error:
            self._not_mapped(error)

    def _not_mapped(self, error: Exception) -> None:
        # Reported as a failure, so that the next try, which will fail as well, waits.
        self._workforce.worker_failed(self, "namespaces", f"id maps: {error}")
        self.retire(f"id maps: {error}")

    # --- messages -------------------------------------------------------------

    def _on_message(self, _events: int) -> None:
        try:
            received = self.keeper.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError) as error:
            self.retire(f"keeper: {error}")
            return
        if received is None:
            self.retire("its keeper is gone")
            return
        message, fds = received
        match message:
            case control.Ready():
                if self.leasing.stands(fds):
                    self._happen(WorkerEvent.READY)
                    self.arming.refill()
            case control.Armed(number, pid):
                self.arming.armed(number, pid, fds)
            case control.Ended(number, status, spent, largest):
                self.runner_ended(number, status, "its init was killed", spent, largest)
            case control.Failed(number, layer, text):
                self.arming.failed(number, layer, text)
                self.runner_ended(number, None, text)  # the runner was never made, so no end is reported
            case control.Started() | control.Unstarted() | control.Exited():
                self.leasing.heard(message, fds)
            case _:
                self.retire(f"keeper says {type(message).__name__}")

    @property
    def armed(self) -> int:
        return len(self.arming.store)

    # --- jobs -----------------------------------------------------------------

    @property
    @point("worker.free")
    def free(self) -> bool:
        """Whether a job may start here now."""
        return (self.state is WorkerState.SERVING and self._doomed is None and self.leasing.running is None
                and not self.leasing.clearing and bool(self.arming.store) and not self._spent)

    @property
    def _spent(self) -> bool:  # has run `recycle_after` jobs, and the pool can replace it
        return self.overdue and self._workforce.renews()

    @property
    def overdue(self) -> bool:
        return self.jobs >= self._terms.recycle_after

    @property
    def taking(self) -> bool:
        """Whether the worker serves, and isn't about to retire."""
        return self.state is WorkerState.SERVING and self._doomed is None

    @property
    def busy(self) -> bool:
        return self.leasing.execution is not None

    @property
    def running(self) -> int:
        """The number of the runner that has a job, or that had the last job and still has processes; 0 for none."""
        return 0 if self.leasing.running is None else self.leasing.running.number

    def reconsider(self) -> None:
        """For the pool: call `go_on` soon, because a zygote serves again, or another worker was replaced."""
        self._reactor.soon(self.go_on)

    def go_on(self) -> None:
        """Take the next step: retire, report to the pool that a job may start, or arm another runner."""
        if self.state is not WorkerState.SERVING:
            return
        if self._doomed is not None and self.leasing.execution is None:
            self.retire(self._doomed)
            return
        if self.leasing.running is None and self._spent:
            self.retire("")
            return
        if self.free:
            self._workforce.worker_free(self)  # a waiting job comes before the arming of another runner
        self.arming.refill()

    def runner_ended(self, number: int, status: int | None, reason: str, spent: float = 0.0, largest: int = 0) -> None:
        """
        Release this runner: no process of it is left. By its init they took *spent* seconds of processor time, and one of
        them had *largest* bytes.
        """
        runner = self.arming.runners.pop(number, None)
        if runner is None:
            return
        was_arming = runner.state is RunnerState.ARMING
        pause = pause_of(runner) if was_arming else None
        runner.largest = largest
        try:
            self._take_off(runner, spent)
        finally:
            try:
                if runner is self.leasing.running and self.leasing.execution is not None:
                    self.leasing.execution.emptied(status, reason)
            finally:
                if runner is self.leasing.running:
                    self.leasing.emptied()
                self.removal.dispose(runner)
                if self.upper is not None:
                    self.upper.over(number)
        if was_arming and self.state is WorkerState.SERVING:
            self.arming.ended(pause)
            self._check()
            return
        self.go_on()
        self._check()

    def _take_off(self, runner: Runner, spent: float) -> None:
        """Remove *runner*, which can have no further job; its processes took *spent* seconds of processor time."""
        if runner is self.leasing.offered:
            self.leasing.withdraw()
        if runner in self.arming.store:
            self.arming.store.remove(runner)
        if runner is self.leasing.running and self.keeper.sockets():
            # A socket whose descriptor is in flight in its own queue is freed only by the kernel's garbage collector,
            # milliseconds later; until then the next job would see its abstract name.
            self._doomed = "a job left sockets in its network namespace"
        if runner is self.leasing.running:
            self._show_default()
        stop_listening(self._reactor, runner)
        self.arming.move(runner, RunnerEvent.EMPTY)
        runner.leaf.ended(spent)

    def _show_default(self) -> None:
        """Show the next job the pool's limits, since the fast path doesn't write a job's own."""
        try:
            self.keeper.show(self._terms.limits)
        except OSError as error:
            self._doomed = f"its jobs can't be told their limits: {error}"

    # --- the end --------------------------------------------------------------

    def doom(self, reason: str) -> None:
        """Retire once the running job has ended: only another runner has failed, so the job isn't disturbed."""
        self.leasing.withdraw()
        if self._doomed is None:
            self._doomed = reason
        if self.leasing.execution is None:
            self.retire(reason)

    def retire(self, reason: str) -> None:
        """End the keeper and all its runners; a running job ends with *reason*."""
        if self.state in (WorkerState.RETIRING, WorkerState.GONE):
            return
        if self.state is WorkerState.MAKING:
            self.keeper.abandon()
        self._happen(WorkerEvent.RETIRED)
        self._reason = reason
        self._end_all()

    def _hand_nothing(self) -> None:
        stop, self._stop_handing = self._stop_handing, None
        if stop is not None:
            stop()

    def _end_all(self) -> None:
        """Take all steps of retiring that are left."""
        in_any_case(self._hand_nothing, self.leasing.withdraw, self.keeper.close, self.keeper.kill,
                    *(partial(self._let_go, runner) for runner in list(self.arming.runners.values())),
                    partial(self._reactor.soon, self._check))

    def _let_go(self, runner: Runner) -> None:
        stop_listening(self._reactor, runner)
        if runner.pidfd >= 0:
            # The keeper can't report any more, so the end of the init is noticed by its pidfd.
            runner.kill()
            self._reactor.forget(runner.pidfd)
            self._reactor.watch(runner.pidfd, READ, partial(self._on_orphan_end, runner))
        else:
            # The keeper hasn't reported this runner: it reads end of file on its pipes, or dies with the keeper.
            self.runner_ended(runner.number, None, self._reason)

    def _on_orphan_end(self, runner: Runner, _events: int) -> None:
        self._reactor.forget(runner.pidfd)
        reap(runner.pidfd)
        self.runner_ended(runner.number, None, self._reason)

    def _on_keeper_end(self, _events: int) -> None:
        """Collect the keeper, which has ended, and retire the worker if it doesn't retire already."""
        in_any_case(self.keeper.collect, self.leasing.orphaned, self._look_for_orphans,
                    partial(self.retire, "its keeper is gone"), self._check)

    def _look_for_orphans(self) -> None:
        self._terms.orphans.look_later(self._reactor)
        self._reactor.after(AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        if self.arming.runners:  # a frozen process may die later, and its init waits for its end
            self._look_for_orphans()

    def _check(self) -> None:
        """If nothing is left, the worker is gone."""
        if self.state is WorkerState.RETIRING and self.keeper.gone and not self.arming.runners and not self.removal:
            if not self.removal.removed(self.group):
                self._reactor.after(_REMOVE_S, self._check)
                return
            self._happen(WorkerEvent.EMPTY)
            if self.upper is not None:
                self.upper.close()
            self._terms.ways_out.gone(self)
            self._workforce.worker_gone(self)

    def _happen(self, event: WorkerEvent) -> None:
        self.state = after("worker", WORKER, self.state, event)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. The worker retires, and its job is answered."""
        if self.state in (WorkerState.MAKING, WorkerState.SERVING):
            in_any_case(partial(self._workforce.worker_failed, self, "", bug(error)), partial(self.retire, bug(error)))
        elif self.state is WorkerState.RETIRING and not self._mending.is_set:
            self._mending = self._reactor.after(_MEND_S, self._mend)

    def _mend(self) -> None:
        """Take the steps again: a callback has failed while the worker retires."""
        if self.state is WorkerState.RETIRING:
            in_any_case(self.removal.again, self._end_all)


class Removal:
    """The groups of a worker's runners. *emptied*: one was removed that couldn't be; *failed*: why one can't be."""

    costs = "worker"

    def __init__(self, reactor: Reactor, emptied: Callable[[], None], failed: Callable[[str], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._emptied, self._failed = reactor, emptied, failed
        self.broken = broken
        self._left: list[Runner] = []
        self._refusals = 0

    def __bool__(self) -> bool:
        return bool(self._left)

    def dispose(self, runner: Runner) -> None:
        """Release everything of *runner*, which has no processes left."""
        removed = False
        try:
            if runner.pidfd >= 0:
                self._reactor.forget(runner.pidfd)
            runner.dispose()
            removed = self.removed(runner.leaf)
        finally:
            if not removed:
                self._left.append(runner)
                self._reactor.after(_REMOVE_S, self.again)

    def again(self) -> None:
        """Try to remove the groups that are left."""
        self._left = [runner for runner in self._left if not self.removed(runner.leaf)]
        if self._left:
            self._reactor.after(_REMOVE_S, self.again)
        self._emptied()

    def removed(self, group: Leaf | WorkerGroup) -> bool:
        """Try to remove a group. Returns True when it was removed, or was given up after some tries."""
        try:
            return group.remove()
        except (LeewardError, OSError) as error:
            self._refusals += 1
            if self._refusals < _REMOVES:
                return False
            self._failed(f"a group stays: {error}")
            return True
