"""
A worker: one keeper, its runners, and at most one job at a time.

Runs in:   the daemon.

Theory of operation. The zygote clones the keeper; the daemon writes its id maps; the keeper
builds its template and serves. From then on the daemon keeps runners armed, one for the next
job and `spares` more, and leases one per job, or to a session. A runner that has had a job is killed after the
answer, and the next job's code is sent only when that runner's init is gone: two jobs of one worker share its
user and network namespaces, so they must not overlap.

Any failure of a keeper retires the whole worker, and its owner makes another. So does an exception in one of our own
callbacks. Each step of retiring can be repeated, and is repeated while anything is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.errors import KernelRefusal, PeerError
from leeward.isolation.cgroup.entry import WorkerGroup
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, Reactor
from leeward.loop.stream import JobStart
from leeward.points import point
from leeward.run.births import stop_listening
from leeward.run.execution import Execution
from leeward.run.holder import Caller
from leeward.run.lease import Lease
from leeward.run.live import LiveRunner
from leeward.run.runner import Runner
from leeward.run.states import RunnerEvent, RunnerState, after
from leeward.run.verdict import bug
from leeward.spec.limits import Limits
from leeward.wire import control
from leeward.worker.arming import Arming
from leeward.worker.keeper import make_keeper
from leeward.worker.leasing import Leasing
from leeward.worker.retirement import Retirement
from leeward.worker.states import WORKER, WorkerEvent, WorkerState
from leeward.worker.stumbles import pause_of
from leeward.worker.terms import WorkerSettings

if TYPE_CHECKING:
    from leeward.pool.ticket import Ticket
    from leeward.pool.workforce import Workforce


class Worker:
    """
    Attributes:
        slot: its number in the pool; the cgroup and the host uid follow from it.
        jobs: how many jobs the worker has run.
        runners: by number, all runners that may have processes.
        outdated: another zygote has followed the one that made this worker's keeper.
    """

    costs = "worker"
    outdated = False

    def __init__(self, reactor: Reactor, slot: int, ids: tuple[int, int], group: WorkerGroup, terms: WorkerSettings,
                 owner: Workforce) -> None:
        """
        Args:
            ids: the host's uid and gid of its processes.
        """
        self.slot, self.group = slot, group
        self.jobs = 0
        self.state = WorkerState.MAKING
        self.keeper = make_keeper(reactor, terms.limits)
        self._reactor = reactor
        self._ids = ids
        self._terms = terms
        self._owner = owner
        self._retirement = Retirement(reactor, self)
        self._arming = Arming(reactor, self, terms, owner, self._retirement.removal)
        self.runners, self._armed = self._arming.runners, self._arming.store
        self._leasing = Leasing(reactor, self, terms, owner, self._arming)
        self._doomed: str | None = None  # the reason to retire as soon as no job runs

    # --- making ---------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The keeper's pid; -1 until it was made."""
        return self.keeper.pid

    def order(self) -> tuple[control.MakeKeeper, list[int]]:
        """Return the message that orders the keeper, and its descriptors. Call `ordered` when it was sent."""
        return self.keeper.order(self.slot, self.group.keeper)

    def ordered(self) -> None:
        """Wait for the keeper's messages: its order was sent."""
        self._reactor.watch(self.keeper.ordered(), READ, self._on_message)

    def made(self, message: control.Made, pidfd: int) -> None:
        """Write the id maps of the keeper, which exists now, and let it continue."""
        self.keeper.made(message.pid, pidfd)
        self._reactor.watch(pidfd, READ, self._retirement.on_keeper_end)
        if self.state is not WorkerState.MAKING:
            return
        try:
            self.keeper.map(self._terms.uid, self._ids)
        except (KernelRefusal, OSError) as error:
            # Reported as a failure: maps that can't be written once can't be written the next time, so the next try has
            # to wait.
            self._owner.worker_failed(self, "namespaces", f"id maps: {error}")
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
                if self._leasing.stands(self.keeper, fds):
                    self._happen(WorkerEvent.READY)
                    self._arming.refill()
            case control.Armed(number, pid):
                self._arming.armed(number, pid, fds)
            case control.Ended(number, status, spent):
                self.runner_ended(number, status, "its init was killed", spent)
            case control.Failed(number, layer, text):
                self._arming.failed(number, layer, text)
                self.runner_ended(number, None, text)  # the runner was never made, so no end is reported
            case control.Started() | control.Unstarted() | control.Exited():
                self._leasing.heard(message, fds)
            case _:
                self.retire(f"keeper says {type(message).__name__}")

    # --- its runners ----------------------------------------------------------

    def want_turn(self) -> None:
        """For `Arming`: a runner is wanted, so ask the pool for a turn."""
        self._owner.runner_wanted(self)

    def stocked(self) -> None:
        """For `Arming`: one more runner is in store."""
        self._owner.runner_made()
        if self.free:
            self._owner.worker_free(self)

    def stumbled(self, layer: str, text: str, *, passing: bool) -> None:
        """For `Arming`: a runner couldn't be armed."""
        self._owner.worker_failed(self, layer, text, passing=passing)

    def arm(self, *, patient: bool) -> int | None:
        """For the pool: this worker's turn has come. See Arming.arm."""
        return self._arming.arm(patient=patient)

    def hurry(self, number: int) -> None:
        """For the pool: give this runner a full share of processor time. See Arming.hurry."""
        self._arming.hurry(number)

    @property
    def report(self) -> dict[str, str]:
        """The results of its first runner's self-check."""
        return self._arming.report

    @property
    def armed(self) -> int:
        """How many runners wait for a job."""
        return len(self._armed)

    @property
    def kept(self) -> int:
        """The number of runners that should wait for a job. See Arming.kept."""
        return self._arming.kept

    @property
    def arming(self) -> int:
        """The number of runners that are being armed, or wait for their turn."""
        return self._arming.count

    # --- jobs -----------------------------------------------------------------

    @property
    @point("worker.free")
    def free(self) -> bool:
        """Whether a job may start here now."""
        return (self.state is WorkerState.SERVING and self._doomed is None and self._leasing.running is None
                and not self._leasing.clearing and bool(self._armed) and not self._spent)

    @property
    def _spent(self) -> bool:  # has run `recycle_after` jobs, and the pool can replace it
        return self.overdue and self._owner.renews()

    @property
    def overdue(self) -> bool:
        """Whether the worker has run `recycle_after` jobs."""
        return self.jobs >= self._terms.recycle_after

    @property
    def taking(self) -> bool:
        """Whether the worker serves, and isn't about to retire."""
        return self.state is WorkerState.SERVING and self._doomed is None

    @property
    def busy(self) -> bool:
        return self._leasing.execution is not None

    @property
    def tenant(self) -> Execution | Lease | LiveRunner | None:
        """The job, session or live sandbox that has a runner."""
        return self._leasing.execution

    @property
    def running(self) -> int:
        """The number of the runner that has a job, or that had the last job and still has processes; 0 for none."""
        return 0 if self._leasing.running is None else self._leasing.running.number

    @property
    def runner_on_offer(self) -> Runner | None:
        """The runner to which the fast path may give a job."""
        return self._leasing.offered

    def offer(self) -> None:
        """For the pool: offer the next runner to the fast path."""
        if self._leasing.offered is None and self.free:
            self._leasing.offer()

    def withdraw(self) -> None:
        """Withdraw the offer: only Python uses this worker's next runner."""
        self._leasing.withdraw()

    def job_started(self, caller: Caller, start: JobStart) -> Execution:
        """Take over the job of *caller*, which the fast path has given to the runner on offer."""
        return self._leasing.job_started(caller, start)

    def run(self, caller: Caller) -> Execution:
        """Lease an armed runner to the job of *caller*. Call only when `free`."""
        return self._leasing.run(caller)

    def lease(self, limits: Limits, lost: Callable[[str], None], policy: Mapping[str, Any] | None = None) -> Lease:
        """Give an armed runner to a session. Call only when `free`. See Leasing.lease."""
        return self._leasing.lease(limits, lost, policy)

    def open(self, limits: Limits, lost: Callable[[str], None]) -> LiveRunner:
        """Keep an armed runner open for more processes. Call only when `free`. See Leasing.open."""
        return self._leasing.open(limits, lost, self.keeper, self._ids)

    def lent(self, owner: Ticket) -> None:
        """For the pool: the runner that `run`, `lease` or `open` has taken belongs to *owner*."""
        self._leasing.terms.ways_out.owned(self.running, owner)

    def reconsider(self) -> None:
        """For the pool: call `go_on` soon, because a zygote serves again, or another worker was replaced."""
        self._reactor.soon(self.go_on)

    def go_on(self) -> None:
        """Take the next step: retire, report to the pool that a job may start, or arm another runner."""
        if self.state is not WorkerState.SERVING:
            return
        if self._doomed is not None and self._leasing.execution is None:
            self.retire(self._doomed)
            return
        if self._leasing.running is None and self._spent:
            self.retire("")
            return
        if self.free:
            self._owner.worker_free(self)  # a waiting job comes before the arming of another runner
        self._arming.refill()

    def runner_ended(self, number: int, status: int | None, reason: str, spent: float = 0.0) -> None:
        """Release this runner: no process of it is left. By its init they took *spent* seconds of processor time."""
        runner = self.runners.pop(number, None)
        if runner is None:
            return
        was_arming = runner.state is RunnerState.ARMING
        pause = pause_of(runner) if was_arming else None
        try:
            self._take_off(runner, spent)
        finally:
            try:
                if runner is self._leasing.running and self._leasing.execution is not None:
                    self._leasing.execution.emptied(status, reason)
            finally:
                if runner is self._leasing.running:
                    self._leasing.emptied()
                self._retirement.removal.dispose(runner)
        if was_arming and self.state is WorkerState.SERVING:
            self._arming.ended(pause)
            self._retirement.check()
            return
        self.go_on()
        self._retirement.check()

    def _take_off(self, runner: Runner, spent: float) -> None:
        """Remove *runner*, which can have no further job; its processes took *spent* seconds of processor time."""
        if runner is self._leasing.offered:
            self.withdraw()
        if runner in self._armed:
            self._armed.remove(runner)
        if runner is self._leasing.running and self.keeper.sockets():
            # A socket whose descriptor is in flight in its own queue is freed only by the kernel's garbage collector,
            # milliseconds later; until then the next job would see its abstract name.
            self._doomed = "a job left sockets in its network namespace"
        if runner is self._leasing.running:
            self._show_default()
        stop_listening(self._reactor, runner)
        self._arming.move(runner, RunnerEvent.EMPTY)
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
        self.withdraw()
        if self._doomed is None:
            self._doomed = reason
        if self._leasing.execution is None:
            self.retire(reason)

    def retire(self, reason: str) -> None:
        """End the keeper and all its runners; a running job ends with *reason*."""
        if self.state in (WorkerState.RETIRING, WorkerState.GONE):
            return
        if self.state is WorkerState.MAKING:
            self.keeper.abandon()
        self._happen(WorkerEvent.RETIRED)
        self._retirement.start(reason)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. The worker retires, and its job is answered."""
        if self.state in (WorkerState.MAKING, WorkerState.SERVING):
            in_any_case(partial(self._owner.worker_failed, self, "", bug(error)), partial(self.retire, bug(error)))
        elif self.state is WorkerState.RETIRING:
            self._retirement.mend()

    def keeper_ended(self) -> None:
        """For `Retirement`: the keeper has ended, so only the daemon can reap processes that it has left."""
        self._leasing.orphaned()

    def group_stays(self, message: str) -> None:
        """For `Retirement`: a group can't be removed."""
        self._owner.worker_failed(self, "cgroup", message)

    def gone(self) -> None:
        """For `Retirement`: nothing of the worker is left."""
        self._happen(WorkerEvent.EMPTY)
        self._terms.ways_out.gone(self)
        self._owner.worker_gone(self)

    def _happen(self, event: WorkerEvent) -> None:
        self.state = after("worker", WORKER, self.state, event)
