"""
Leases of a worker's runners to jobs, sessions and live sandboxes, one at a time.

Theory of operation. A runner is taken out of the store; the fast path may take the runner that is on offer by itself.
After the answer the runner is killed. The worker is free again when no process of the runner is left, because two jobs
of one worker share its user and network namespaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import JobStart, Reactor
from leeward.daemon.run.calling_job import execution_of
from leeward.daemon.run.execution import Caller, Execution
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_runner import LiveRunner
from leeward.daemon.run.report import SHORT_OUTPUT, Report
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.runner_states import RunnerEvent, RunnerState
from leeward.daemon.worker.arming import Arming
from leeward.daemon.worker.orphans import reap_orphans
from leeward.daemon.worker.terms import WorkerSettings
from leeward.errors import Bug
from leeward.spec.limits import Limits
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Ticket
    from leeward.daemon.pool.workforce import Workforce
    from leeward.daemon.worker.worker import Worker

_NO_LISTENERS = "no descriptors were left for its listeners"
#: Seconds after an answer before its runner is ended, so that the client can run first; not if jobs wait.
_COURTESY_S = 0.0005
#: Seconds after which a runner that hasn't ended gets a full share of processor time, on a busy host.
_PATIENCE_S = 0.1


class Leasing:
    costs = "worker"

    def __init__(self, reactor: Reactor, worker: Worker, terms: WorkerSettings, pool: Workforce, arming: Arming) -> None:
        self._reactor, self._worker, self.terms, self._pool, self._arming = reactor, worker, terms, pool, arming
        self.broken = worker.broken
        self.execution: Execution | Lease | LiveRunner | None = None  # the job, session or sandbox that has a runner
        self.running: Runner | None = None  # that runner, or the last one while it has processes
        self.offered: Runner | None = None  # the runner that is on offer to the fast path
        self.clearing = False  # the listeners can't be leased until the broker has cleared them

    def offer(self) -> None:
        """Offer the next runner to the fast path, if the worker is free."""
        if self.offered is not None or not self._worker.free or self._arming.next_holder:
            return
        fast_path = self._pool.open_path
        if fast_path is None or self.terms.ways_out.listeners:  # the broker has to hear of a job before it runs
            return
        runner = self._arming.store[0]
        offer = runner.offer(runner.out, runner.err) if self.terms.limits.output >= SHORT_OUTPUT else None
        if offer is not None and fast_path.offer(offer, self):
            self.offered = runner
            self._pool.offered(runner.number, self._worker)

    def withdraw(self) -> None:
        """Withdraw the offer: only Python uses this worker's next runner."""
        runner, self.offered = self.offered, None
        if runner is not None:
            self._pool.offered(runner.number, None)
            if self._pool.fast_path is not None:
                self._pool.fast_path.withdraw(runner.number)

    def stands(self, fds: list[int]) -> bool:
        """Give the keeper's *fds* to it: it serves. Returns whether it has all; if not, the worker retires."""
        ways_out = self.terms.ways_out
        try:
            why = "" if self._worker.keeper.ready(fds, ways_out.listeners, ways_out.certificates) else _NO_LISTENERS
        except OSError as error:
            why = f"its file of certificates: {error}"
        if why:
            self._pool.worker_failed(self._worker, "egress", why)
            self._worker.retire(why)
            return False
        ways_out.stand(self._worker, self._worker.keeper.listeners)
        return True

    def emptied(self) -> None:
        """Free the listeners: no process of the last job's runner is left."""
        self.running = None
        self.clearing = not self.terms.ways_out.over(self._worker, self._cleared)

    def _cleared(self) -> None:
        """For the broker: no connection of the last job is left."""
        self.clearing = False
        self._reactor.soon(self._worker.go_on)

    def job_started(self, caller: Caller, start: JobStart) -> Execution:
        """Take over the job of *caller*, which the fast path has given to the runner on offer."""
        if self.offered is not self._arming.store[0]:
            raise Bug(f"runner {start.runner} has a job, and isn't what worker {self._worker.slot} had on offer")
        self.offered = None
        self._pool.offered(start.runner, None)
        execution = self._execution(caller)
        execution.begin(start)
        return execution

    def run(self, caller: Caller) -> Execution:
        """Lease an armed runner to the job of *caller*. Call only when `free`."""
        if self.offered is not None:
            self.withdraw()
        execution = self._execution(caller)
        execution.start()  # ends the job if the runner is gone
        return execution

    def _execution(self, caller: Caller) -> Execution:
        runner = self._take(caller.job.egress, 0 if caller.client is None else caller.client.connection)
        execution = self.execution = execution_of(caller.job)(
            self._reactor, runner, self, caller, alone=not self._pool.crowded, fast_path=self._pool.fast_path)
        return execution

    def lease(self, limits: Limits, lost: Callable[[str], None], policy: Mapping[str, Any] | None = None) -> Lease:
        """
        Give an armed runner to a session; call only when `free`. *lost* is called once, with the reason; *policy* is
        its egress policy, if it isn't the pool's. LeewardError if the runner is gone, or can't be held to *limits*.
        """
        self.withdraw()
        runner = self._take(policy)
        lease = Lease(self._reactor, runner, self, lost=lost, fast_path=self._pool.fast_path)
        self.execution = lease
        try:
            lease.open(limits)
        except BaseException:
            lease.abandon()
            raise
        return lease

    def open(self, limits: Limits, lost: Callable[[str], None]) -> LiveRunner:
        """Keep an armed runner open for more processes; otherwise as `lease`."""
        self.withdraw()
        runner = self._take()
        live = LiveRunner(self._reactor, runner, self.terms, self._worker.ids, self._worker.keeper,
                          over=partial(self.give_back, runner), killed=partial(self.killed, runner), lost=lost,
                          collect=reap_orphans, rested=partial(self._rested, runner), fast_path=lambda: self._pool.fast_path)
        self.execution = live
        try:
            live.open(limits)
        except BaseException:
            live.abandon()
            raise
        return live

    @property
    def lives(self) -> bool:
        """Whether a live sandbox has the worker, perhaps for hours: no runner is armed beside it."""
        return isinstance(self.execution, LiveRunner)

    def lent(self, ticket: Ticket) -> None:
        """Note that the runner which has been taken belongs to *ticket*."""
        self.terms.ways_out.owned(self._worker.running, ticket)

    def _rested(self, runner: Runner) -> None:
        """For a live sandbox that keeps the worker for longer: arm no further runner, and close what only those need."""
        in_any_case(self._arming.go_without, self._worker.group.rest,
                    partial(self._worker.keeper.rest, watched=runner.leaf.needs_ticks))

    def heard(self, message: control.Started | control.Unstarted | control.Exited, fds: list[int]) -> None:
        """Pass on a message of the keeper about a process of an open runner; if there is none, close *fds*."""
        if isinstance(self.execution, LiveRunner):
            self.execution.heard(message, fds)
            return
        for fd in fds:
            os.close(fd)

    def orphaned(self) -> None:
        if isinstance(self.execution, LiveRunner):
            self.execution.orphaned()

    @property
    def crowded(self) -> bool:
        return self._pool.crowded

    def _take(self, policy: Mapping[str, Any] | None = None, connection: int = 0) -> Runner:
        if self._arming.next_holder not in (0, connection):
            raise Bug(f"runner {self._arming.store[0].number} is for the jobs of another connection")
        runner = self._arming.store.popleft()
        self._arming.move(runner, RunnerEvent.LEASED)
        self.running = runner
        runner.lend(self.terms.ways_out.lease(self._worker, runner.number, policy), self._worker.keeper.trust)
        self._worker.jobs += 1
        if self._reactor.rouse is not None:
            self._reactor.rouse()
        return runner

    def conclude(self, execution: Execution, report: Report) -> None:
        """For a job that is over: answer its client, and end its runner."""
        caller = execution.caller
        try:
            caller.finished(report)  # the client is answered first; the rest isn't urgent
        except Exception as error:
            self._reactor.barrier.caught(caller.finished, error)
        self.execution = None
        if self._pool.crowded:
            self._after_job(execution.runner)
        else:
            self._reactor.after(_COURTESY_S, partial(self._after_job, execution.runner, patient=True))

    def gone(self, execution: Execution) -> None:
        in_any_case(partial(self.give_back, execution.runner), execution.caller.lost)

    def give_back(self, runner: Runner) -> None:
        """For a session, a live sandbox or a lost job: take back *runner*, and end it."""
        self.execution = None
        self._arming.go_with()
        self._after_job(runner)
        if self._pool.crammed or self._worker.keeper.rested or self._worker.keeper.lent:
            self._worker.retire("")

    def _after_job(self, runner: Runner, *, patient: bool = False) -> None:
        if runner.state is RunnerState.RUNNING:
            self._arming.move(runner, RunnerEvent.ENDED)
            if patient and not self._pool.crowded:
                runner.lower_priority()
            runner.kill()
            self.killed(runner)
        if runner.state is RunnerState.GONE and runner is self.running:
            self.emptied()
        self._reactor.soon(self._worker.go_on)

    def killed(self, runner: Runner) -> None:
        """For the tenant: *runner* was killed. Set a deadline for its keeper to report its end."""
        self._arming.set_deadline(runner, _PATIENCE_S, self._hurry_end)

    def _hurry_end(self, runner: Runner) -> None:
        if runner.number in self._arming.runners:
            runner.restore_priority()
            self._arming.set_deadline(runner, self.terms.patience.keeper, self._check_ended)

    def _check_ended(self, runner: Runner) -> None:
        if runner.number in self._arming.runners:
            reason = f"its keeper didn't tell a runner's end within {self.terms.patience.keeper:g} s"
            in_any_case(partial(self._worker.retire, reason), partial(self._wait_no_longer, runner, reason))

    def _wait_no_longer(self, runner: Runner, reason: str) -> None:
        """
        Answer the tenant although processes of *runner* haven't ended: they are frozen from outside (cgroup version 1),
        or in a system call that no signal interrupts. They stay confined, and the worker stays until they have ended.
        """
        if runner is self.running and self.execution is not None:
            self.execution.emptied(None, reason)
