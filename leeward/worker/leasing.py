"""
What uses a worker's runner: a job, a session, or a live sandbox; one at a time.

Runs in:   the daemon.

Theory of operation. A worker has one job, session or live sandbox at a time. A runner is taken out of the store for it;
the fast path may take the runner that is on offer by itself. After the answer the runner is killed. The worker is free
again when no process of the runner is left, because two jobs of one worker share its user and network namespaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.errors import Bug
from leeward.isolation.cgroup.entry import WorkerGroup
from leeward.loop.barrier import in_any_case
from leeward.loop.fast_path import FastPath
from leeward.loop.reactor import Reactor
from leeward.loop.stream import JobStart
from leeward.protocols import Protocol
from leeward.run.execution import Execution
from leeward.run.functions import execution_of
from leeward.run.holder import Caller
from leeward.run.lease import Lease
from leeward.run.live import LiveRunner
from leeward.run.live_parts import LiveKeeper
from leeward.run.placement import SHORT_OUTPUT
from leeward.run.report import Report
from leeward.run.runner import Runner
from leeward.run.states import RunnerEvent, RunnerState
from leeward.spec.limits import Limits
from leeward.wire import control
from leeward.worker.arming import Arming
from leeward.worker.keeper import Keeper
from leeward.worker.orphans import reap_inits
from leeward.worker.terms import WorkerSettings

_NO_LISTENERS = "no descriptors were left for its listeners"

#: After an answer its client is let run before its runner's end takes a processor, unless jobs wait.
_COURTESY_S = 0.0005

#: A runner that wasn't gone by then, on a host that has no time to spare, gets a full share of what there is.
_PATIENCE_S = 0.1


class Lessor(Protocol):
    """
    The worker whose runners they are.
    """

    slot: int
    jobs: int
    group: WorkerGroup
    keeper: Keeper

    def go_on(self) -> None: ...
    def stumbled(self, layer: str, text: str, *, passing: bool) -> None: ...
    def retire(self, reason: str) -> None: ...
    def broken(self, error: Exception) -> None: ...


class Queue(Protocol):
    """
    What is asked of the pool.
    """

    @property
    def crowded(self) -> bool: ...
    @property
    def crammed(self) -> bool:
        """
        Are there as many workers as there may be without a session or sandbox?
        """
    @property
    def fast_path(self) -> FastPath | None: ...
    def offered(self, runner: int, worker: Any | None) -> None:
        """
        The *runner* of this worker is on offer to the fast path; with None no longer.
        """


class Leasing:
    """
    Attributes:
        execution: the job or the session that has a runner.
        running: that runner, or the last one while it isn't empty yet.
        offered: the runner that is on offer to the fast path.
        clearing: nobody has the listeners until the broker has cleared them.
    """

    costs = "worker"

    def __init__(self, reactor: Reactor, worker: Lessor, terms: WorkerSettings, pool: Queue, arming: Arming) -> None:
        self._reactor, self._worker, self.terms, self._pool, self._arming = reactor, worker, terms, pool, arming
        self.execution: Execution | Lease | LiveRunner | None = None
        self.running: Runner | None = None
        self.offered: Runner | None = None
        self.clearing = False

    def broken(self, error: Exception) -> None:
        """
        For the barrier: the worker hears of it.
        """
        self._worker.broken(error)

    # --- the fast path --------------------------------------------------------

    def offer(self) -> None:
        """
        Let the fast path have the runner whose turn is next.
        """
        fast_path = self._pool.fast_path
        if fast_path is None or self.terms.ways_out.listeners:  # the broker has to hear of a job before it runs
            return
        runner = self._arming.store[0]
        offer = runner.offer(runner.out, runner.err) if self.terms.limits.output >= SHORT_OUTPUT else None
        if offer is not None and fast_path.offer(offer, self):
            self.offered = runner
            self._pool.offered(runner.number, self._worker)

    def withdraw(self) -> None:
        """
        Whoever wants this worker's next runner has to ask here.
        """
        runner, self.offered = self.offered, None
        if runner is not None:
            self._pool.offered(runner.number, None)
            if self._pool.fast_path is not None:
                self._pool.fast_path.withdraw(runner.number)

    # --- ways out -------------------------------------------------------------

    def stands(self, keeper: Keeper, fds: list[int]) -> bool:
        """
        The keeper serves, and has sent *fds*: are its listeners there, if it has any?
        """
        ways_out = self.terms.ways_out
        try:
            why = "" if keeper.ready(fds, ways_out.listeners, ways_out.certificates) else _NO_LISTENERS
        except OSError as error:
            why = f"its file of certificates: {error}"
        if why:
            self._worker.stumbled("egress", why, passing=False)
            self._worker.retire(why)
            return False
        ways_out.stand(self._worker, keeper.listeners)
        return True

    def emptied(self) -> None:
        """
        No process of the runner is left that had a job last.
        """
        self.running = None
        self.clearing = not self.terms.ways_out.over(self._worker, self._cleared)

    def _cleared(self) -> None:
        """
        For the broker: nothing is left of what that job has connected.
        """
        self.clearing = False
        self._reactor.soon(self._worker.go_on)

    # --- leases ---------------------------------------------------------------

    def job_started(self, caller: Caller, start: JobStart) -> Execution:
        """
        The runner on offer has the job of *caller* already.
        """
        if self.offered is not self._arming.store[0]:
            raise Bug(f"runner {start.runner} has a job, and isn't what worker {self._worker.slot} had on offer")
        self.offered = None
        self._pool.offered(start.runner, None)
        execution = self._execution(caller)
        execution.begin(start)
        return execution

    def run(self, caller: Caller) -> Execution:
        """
        Lease an armed runner to the job of *caller*. Call only when `free`.
        """
        if self.offered is not None:
            self.withdraw()
        execution = self._execution(caller)
        execution.start()  # which may find that the runner is gone
        return execution

    def _execution(self, caller: Caller) -> Execution:
        runner = self._take(caller.job.egress)
        execution = self.execution = execution_of(caller.job)(
            self._reactor, runner, self, caller, alone=not self._pool.crowded, fast_path=self._pool.fast_path)
        return execution

    def lease(self, limits: Limits, lost: Callable[[str], None], policy: Mapping[str, Any] | None) -> Lease:
        """
        Give an armed runner to a session. Call only when `free`.

        Args:
            lost: called once when the session has it no more, with the reason.
            policy: of its egress, where that isn't the pool's.

        Raises:
            LeewardError: the runner is gone, or can't be held to *limits*.
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

    def open(self, limits: Limits, lost: Callable[[str], None], keeper: LiveKeeper,
             owner: tuple[int, int]) -> LiveRunner:
        """
        Keep an armed runner open for more processes. Call only when `free`.

        Args:
            lost: called once when the runner is open no more, with the reason.
            keeper: to whom orders go.
            owner: the keeper's uid and gid on the host.

        Raises:
            LeewardError: the runner is gone, or can't be held to *limits*.
        """
        self.withdraw()
        runner = self._take()
        live = LiveRunner(self._reactor, runner, self.terms, owner, keeper, over=partial(self.give_back, runner),
                          killed=partial(self.killed, runner), lost=lost, collect=reap_inits,
                          rested=partial(self._rested, keeper), fast_path=lambda: self._pool.fast_path)
        self.execution = live
        try:
            live.open(limits)
        except BaseException:
            live.abandon()
            raise
        return live

    def _rested(self, keeper: LiveKeeper) -> None:
        """
        For a live sandbox: it will be there for longer. What others wait for is armed in other workers.
        """
        in_any_case(self._arming.go_without, self._worker.group.rest, keeper.rest)

    def heard(self, message: control.Started | control.Unstarted | control.Exited, fds: list[int]) -> None:
        """
        The keeper tells of a process of a runner that is open, or was.
        """
        if isinstance(self.execution, LiveRunner):
            self.execution.heard(message, fds)
            return
        for fd in fds:
            os.close(fd)

    def orphaned(self) -> None:
        """
        The keeper is dead.
        """
        if isinstance(self.execution, LiveRunner):
            self.execution.orphaned()

    @property
    def crowded(self) -> bool:
        """
        Do jobs wait for a worker?
        """
        return self._pool.crowded

    def _take(self, policy: Mapping[str, Any] | None = None) -> Runner:
        runner = self._arming.store.popleft()
        self._arming.move(runner, RunnerEvent.LEASED)
        self.running = runner
        runner.lend(self.terms.ways_out.lease(self._worker, runner.number, policy), self._worker.keeper.trust)
        self._worker.jobs += 1
        if self._reactor.rouse is not None:
            self._reactor.rouse()
        return runner

    # --- their end ------------------------------------------------------------

    def conclude(self, execution: Execution, report: Report) -> None:
        """
        For a job: it is over.
        """
        caller = execution.caller
        try:
            caller.finished(report)  # the client first; nobody waits for what follows
        except Exception as error:
            self._reactor.barrier.caught(caller.finished, error)
        self.execution = None
        if self._pool.crowded:
            self._after_job(execution.runner)
        else:
            self._reactor.after(_COURTESY_S, partial(self._after_job, execution.runner, patient=True))

    def gone(self, execution: Execution) -> None:
        """
        For a job: it was lost, and so is its runner.
        """
        in_any_case(partial(self.give_back, execution.runner), execution.caller.lost)

    def give_back(self, runner: Runner) -> None:
        """
        For a session, or a job that was lost: it has *runner* no more.
        """
        self.execution = None
        self._arming.go_with()
        self._after_job(runner)
        if self._pool.crammed or self._worker.keeper.rested:
            self._worker.retire("")

    def _after_job(self, runner: Runner, *, patient: bool = False) -> None:
        if runner.state is RunnerState.RUNNING:
            self._arming.move(runner, RunnerEvent.ENDED)
            if patient and not self._pool.crowded:
                runner.lower_priority()
            runner.kill()
            self.killed(runner)
        if runner.state is RunnerState.GONE and runner is self.running:
            self.running = None
        self._reactor.soon(self._worker.go_on)

    def killed(self, runner: Runner) -> None:
        """
        For whoever has it: *runner* was killed, and its keeper has to tell its end.
        """
        self._reactor.after(_PATIENCE_S, partial(self._hurry_end, runner))

    def _hurry_end(self, runner: Runner) -> None:
        if runner.number in self._arming.runners:
            runner.restore_priority()
            self._reactor.after(self.terms.patience.keeper, partial(self._check_ended, runner))

    def _check_ended(self, runner: Runner) -> None:
        if runner.number in self._arming.runners:
            reason = f"its keeper didn't tell a runner's end within {self.terms.patience.keeper:g} s"
            in_any_case(partial(self._worker.retire, reason), partial(self._wait_no_longer, runner, reason))

    def _wait_no_longer(self, runner: Runner, reason: str) -> None:
        """
        Processes of *runner* don't die: frozen by somebody outside (version 1), or in a call that no signal ends.
        Whoever has it is answered without their end. They stay locked in, and the worker stays until they are gone.
        """
        if runner is self.running and self.execution is not None:
            self.execution.emptied(None, reason)
