"""
A worker: one keeper, its runners, and at most one job at a time.

Runs in:   the daemon.

Theory of operation. The zygote clones the keeper; the daemon writes its id maps; the keeper
builds its template and serves. From then on the daemon keeps runners armed, one for the next
job and `spares` more, and leases one per job, or to a session. A runner that has had a job is killed after the
answer, and the next job's code is sent only when that runner's init is gone: two jobs of one worker share its
user and network namespaces, so they must not overlap.

Whatever goes wrong in a keeper retires the whole worker; its owner makes another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Protocol

from leeward.dataclass import dataclass
from leeward.errors import KernelRefusal, LeewardError, PeerError
from leeward.isolation.cgroup.entry import WorkerGroup
from leeward.isolation.channel import Channel
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.wire import control
from leeward.worker.births import attend, leave
from leeward.worker.execution import SHORT_OUTPUT, Execution, Stop
from leeward.worker.express import Client, Express
from leeward.worker.idmaps import write_id_maps
from leeward.worker.lease import Lease
from leeward.worker.orphans import reap, reap_inits
from leeward.worker.reactor import READ, Reactor
from leeward.worker.report import Report
from leeward.worker.runner import Denials, Runner
from leeward.worker.states import WORKER, RunnerEvent, RunnerState, WorkerEvent, WorkerState, after
from leeward.worker.stream import Begun

_numbers = itertools.count(1)

#: A keeper arms a runner in milliseconds, and tells a runner's end as fast. One that hasn't by
#: then is stopped or stuck, and is replaced.
_KEEPER_DEADLINE_S = 10.0

#: After an answer its client is let run before its runner's end takes a processor, unless jobs wait.
_COURTESY_S = 0.0005

#: A runner that wasn't gone by then, on a host that has no time to spare, gets a full share of what there is.
_PATIENCE_S = 0.1

#: After a keeper's death its inits have this long to die of it before they are looked for.
_ORPHANS_S = 0.1


class Owner(Protocol):
    """
    What a worker tells the pool.
    """

    def worker_free(self, worker: Worker) -> None: ...
    def worker_failed(self, worker: Worker, layer: str, message: str) -> None: ...
    def worker_gone(self, worker: Worker) -> None: ...
    def runner_made(self) -> None: ...
    def runner_wanted(self, worker: Worker) -> None: ...
    @property
    def crowded(self) -> bool: ...
    def arming_over(self, runner: int) -> None: ...
    @property
    def short(self) -> Express | None: ...
    def offered(self, runner: int, worker: Worker | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """
    What all workers of a pool have in common.
    """

    limits: Limits
    uid: int
    spares: int
    recycle_after: int
    degraded: tuple[str, ...]
    results: str = "auto"


class Worker:
    """
    Attributes:
        slot: its number in the pool; the cgroup and the host uid follow from it.
        jobs: how many it has run.
    """

    def __init__(self, reactor: Reactor, slot: int, host_uid: int, host_gid: int, group: WorkerGroup,
                 terms: Terms, denials: Denials, owner: Owner) -> None:
        self.slot = slot
        self.group = group
        self.jobs = 0
        self.state = WorkerState.MAKING
        self.pid = -1
        self._reactor = reactor
        self._ids = host_uid, host_gid
        self._terms = terms
        self._denials = denials
        self._owner = owner
        self._channel, self._far_end = Channel.pair()
        self._channel.socket.setblocking(False)
        self._pidfd = -1
        self._runners: dict[int, Runner] = {}
        self._armed: deque[Runner] = deque()
        self._waits_to_arm = False
        self._execution: Execution | Lease | None = None
        self._running: Runner | None = None
        self._retired_for: str = ""
        self._doomed: str | None = None  # retire as soon as no job runs, and why
        self._sockets = -1  # /proc/net/sockstat of its network namespace
        self._keeper_gone = False
        self._leaves: list[Runner] = []
        self._first_report: dict[str, str] = {}
        self._offered: Runner | None = None  # on offer to the short way

    # --- making ---------------------------------------------------------------

    def order(self) -> tuple[control.MakeKeeper, list[int]]:
        """
        The message that has the keeper made, and its descriptors; then call `ordered`.
        """
        entry = self.group.keeper
        fds = [self._far_end.fileno(), *([entry.into] if entry.into >= 0 else []), *entry.attach]
        return control.MakeKeeper(self.slot, entry.into >= 0, len(entry.attach)), fds

    def ordered(self) -> None:
        """
        The order is out: only the keeper holds the far end now.
        """
        self._far_end.close()
        self._reactor.watch(self._channel.fileno(), READ, self._on_message)

    def made(self, message: control.Made, pidfd: int) -> None:
        """
        The keeper exists: write its id maps and let it go on.
        """
        self.pid, self._pidfd = message.pid, pidfd
        self._reactor.watch(pidfd, READ, self._on_keeper_end)
        if self.state is not WorkerState.MAKING:
            return
        try:
            self._sockets = os.open(f"/proc/{message.pid}/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
            write_id_maps(message.pid, self._terms.uid, *self._ids)
            self._channel.send(control.Mapped())
        except (KernelRefusal, OSError) as error:
            # Told as a failure: what can't be mapped once can't the next time, and mustn't be tried without a pause.
            self._owner.worker_failed(self, "namespaces", f"id maps: {error}")
            self.retire(f"id maps: {error}")

    # --- messages -------------------------------------------------------------

    def _on_message(self, _events: int) -> None:
        try:
            received = self._channel.receive()
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
                self._happen(WorkerEvent.READY)
                self._refill()
            case control.Armed(number, pid):
                self._on_armed(number, pid, fds)
            case control.Ended(number, status):
                self._on_ended(number, status, "its init was killed")
            case control.Failed(number, layer, text):
                self._on_failed(number, layer, text)
            case _:
                self.retire(f"keeper says {type(message).__name__}")

    def _on_armed(self, number: int, pid: int, fds: list[int]) -> None:
        runner = self._runners[number]
        runner.take(pid, fds)
        if runner.state is RunnerState.ENDING:
            runner.kill()  # it failed before its pidfd was here
        self._check_ready(runner)

    def _born(self, runner: Runner) -> None:
        self._first_report = self._first_report or runner.report
        self._check_ready(runner)

    def _check_ready(self, runner: Runner) -> None:
        if runner.state is RunnerState.ARMING and runner.ready():
            try:
                runner.settle()
            except (LeewardError, OSError) as error:  # it is dead already, say
                self._on_failed(runner.number, "", str(error))
                return
            self._move(runner, RunnerEvent.READY)
            self._armed.append(runner)
            self._owner.runner_made()
            if self.free:
                self._owner.worker_free(self)
            self._refill()

    def _on_failed(self, number: int, layer: str, text: str) -> None:
        self._owner.worker_failed(self, layer, text)
        runner = self._runners.get(number)
        if runner is not None:
            self._drop(runner)
        self._doom(f"{layer or 'runner'}: {text}")

    # --- arming and leasing ---------------------------------------------------

    @property
    def free(self) -> bool:
        """
        May a job start here now?
        """
        return (self.state is WorkerState.SERVING and self._doomed is None and self._running is None
                and bool(self._armed) and self.jobs < self._terms.recycle_after)

    @property
    def busy(self) -> bool:
        return self._execution is not None

    @property
    def running(self) -> int:
        """
        The number of the runner that has a job, or had the last one and isn't empty yet; 0 for none.
        """
        return 0 if self._running is None else self._running.number

    @property
    def report(self) -> dict[str, str]:
        """
        What the self-check of its first runner saw.
        """
        return self._first_report

    @property
    def armed(self) -> int:
        """
        How many runners wait for a job.
        """
        return len(self._armed)

    @property
    def arming(self) -> int:
        """
        How many are on their way, or wait for a turn to be.
        """
        return self._waits_to_arm + sum(runner.state is RunnerState.ARMING for runner in self._runners.values())

    def _refill(self) -> None:
        """
        Ask for a turn to arm a runner if one is wanted: for the next job and `spares` more, but no
        more than jobs are left here. One at a time: a keeper makes them one after the other.
        """
        if self.arming or not self._wants_runner():
            return
        self._waits_to_arm = True
        self._owner.runner_wanted(self)

    def _wants_runner(self) -> bool:
        return (self.state is WorkerState.SERVING and self._doomed is None
                and len(self._armed) < min(1 + self._terms.spares - self.busy, self._terms.recycle_after - self.jobs))

    def arm(self, *, patient: bool) -> int | None:
        """
        For the pool: this worker's turn has come.

        Args:
            patient: nobody waits for the runner.

        Returns:
            The number of the runner that is on its way, or None if none is.
        """
        self._waits_to_arm = False
        if not self._wants_runner():
            return None
        try:
            return self._arm(patient)
        except (LeewardError, OSError) as error:
            self._owner.worker_failed(self, "cgroup", str(error))
            self._doom(f"arming: {error}")
            return None

    def hurry(self, number: int) -> None:
        """
        For the pool: this runner has been armed for too long with what others left it.
        """
        runner = self._runners.get(number)
        if runner is not None and runner.state is RunnerState.ARMING:
            runner.hurry()

    def _arm(self, patient: bool) -> int:
        number = next(_numbers)
        here, there = Channel.pair()
        try:
            leaf = self.group.leaf(number, self._terms.limits, patient=patient)
        except LeewardError:
            here.close()
            there.close()
            raise
        here.socket.setblocking(False)
        runner = Runner(number, leaf, here, self._denials, self.sockets,
                        more_tasks=2 * max(0, self._terms.spares - 1))
        self._runners[number] = runner
        entry = leaf.entry
        fds = [there.fileno(), *([entry.into] if entry.into >= 0 else []), *entry.attach]
        try:
            self._channel.send(control.Arm(number, entry.into >= 0, len(entry.attach), leaf.cpu(),
                                           hurried=self._owner.crowded), fds)
        finally:
            there.close()
        attend(self._reactor, runner, self._born, self._on_failed)
        self._reactor.after(_KEEPER_DEADLINE_S, lambda: self._check_armed(runner))
        return number

    def _check_armed(self, runner: Runner) -> None:
        if runner.state is RunnerState.ARMING and runner.number in self._runners:
            self._on_failed(runner.number, "", f"a runner wasn't ready within {_KEEPER_DEADLINE_S:g} s")

    def _expect_end(self, runner: Runner) -> None:
        """
        It was killed: its keeper has to tell its end.
        """
        self._reactor.after(_PATIENCE_S, lambda: self._hurry_end(runner))

    def _hurry_end(self, runner: Runner) -> None:
        if runner.number in self._runners:
            runner.hurry()
            self._reactor.after(_KEEPER_DEADLINE_S, lambda: self._check_ended(runner))

    def _check_ended(self, runner: Runner) -> None:
        if runner.number in self._runners:
            self.retire(f"its keeper didn't tell a runner's end within {_KEEPER_DEADLINE_S:g} s")

    def offer(self) -> None:
        """
        Let the short way have the runner whose turn is next.
        """
        short = self._owner.short
        if short is None or self._offered is not None or not self.free:
            return
        runner = self._armed[0]
        offer = runner.offer(runner.out, runner.err) if self._terms.limits.output >= SHORT_OUTPUT else None
        if offer is not None and short.offer(offer):
            self._offered = runner
            self._owner.offered(runner.number, self)

    def withdraw(self) -> None:
        """
        Whoever wants this worker's next runner has to ask here.
        """
        runner, self._offered = self._offered, None
        if runner is not None:
            self._owner.offered(runner.number, None)
            if self._owner.short is not None:
                self._owner.short.withdraw(runner.number)

    def begun(self, job: Job, done: Callable[[Report], None], lost: Callable[[], None], begun: Begun) -> Execution:
        """
        The runner on offer has *job* already.
        """
        assert self._offered is self._armed[0]
        self._offered = None
        self._owner.offered(begun.runner, None)
        execution = self._lease(job, done, lost, None)
        execution.begin(begun)
        return execution

    def run(self, job: Job, done: Callable[[Report], None], lost: Callable[[], None],
            client: Client | None = None) -> Execution:
        """
        Lease an armed runner to *job*. Call only when `free`.
        """
        self.withdraw()
        execution = self._lease(job, done, lost, client)
        execution.start()  # which may find that the runner is gone
        return execution

    def lease(self, limits: Limits, lost: Callable[[str], None]) -> Lease:
        """
        Give an armed runner to a session. Call only when `free`.

        Args:
            lost: called once when the session has it no more, with the reason.

        Raises:
            LeewardError: the runner is gone, or can't be held to *limits*.
        """
        self.withdraw()
        runner = self._take()

        def over() -> None:
            self._execution = None
            self._after_job(runner)

        lease = Lease(self._reactor, runner, self._terms.degraded, over=over,
                      killed=lambda: self._expect_end(runner), lost=lost, crowded=lambda: self._owner.crowded,
                      results=self._terms.results, short=self._owner.short)
        self._execution = lease
        try:
            lease.open(limits)
        except LeewardError:
            lease.abandon()
            raise
        return lease

    def _take(self) -> Runner:
        runner = self._armed.popleft()
        self._move(runner, RunnerEvent.LEASED)
        self._running = runner
        self.jobs += 1
        return runner

    def _lease(self, job: Job, done: Callable[[Report], None], lost: Callable[[], None],
               client: Client | None) -> Execution:
        runner = self._take()

        def answered(report: Report) -> None:
            done(report)  # the client first; what follows is nobody's wait
            self._execution = None
            if self._owner.crowded:
                self._after_job(runner)
            else:
                self._reactor.after(_COURTESY_S, lambda: self._after_job(runner, patient=True))

        def gone() -> None:
            self._execution = None
            self._after_job(runner)
            lost()

        execution = Execution(self._reactor, job, runner, self._terms.degraded, answered, gone,
                              lambda: self._expect_end(runner), alone=not self._owner.crowded,
                              short=self._owner.short, client=client, results=self._terms.results)
        self._execution = execution
        return execution

    def _after_job(self, runner: Runner, *, patient: bool = False) -> None:
        if runner.state is RunnerState.RUNNING:
            self._move(runner, RunnerEvent.ENDED)
            if patient and not self._owner.crowded:
                runner.leave()
            runner.kill()
            self._expect_end(runner)
        if runner.state is RunnerState.GONE and runner is self._running:
            self._running = None
        self._reactor.soon(self._go_on)

    def _go_on(self) -> None:
        if self.state is not WorkerState.SERVING:
            return
        if self._doomed is not None and self._execution is None:
            self.retire(self._doomed)
            return
        if self.jobs >= self._terms.recycle_after and self._running is None:
            self.retire("")
            return
        if self.free:
            self._owner.worker_free(self)  # a job that waits comes before the runner of a later one
        self._refill()

    def _on_ended(self, number: int, status: int | None, reason: str) -> None:
        """
        No process of this runner is left.
        """
        runner = self._runners.pop(number, None)
        if runner is None:
            return
        if runner is self._offered:
            self.withdraw()
        if runner in self._armed:
            self._armed.remove(runner)
        if runner is self._running and self.sockets():
            # One whose descriptor was in flight in its own queue goes only when the kernel's collector
            # comes by, milliseconds later; until then the next job would see its abstract name.
            self._doomed = "a job left sockets in its network namespace"
        was_arming = runner.state is RunnerState.ARMING
        leave(self._reactor, runner)
        self._move(runner, RunnerEvent.EMPTY)
        if runner is self._running and self._execution is not None:
            self._execution.emptied(status, reason)
        if runner is self._running:
            self._running = None
        self._dispose(runner)
        if was_arming and self.state is WorkerState.SERVING:
            self._owner.worker_failed(self, "", "a runner ended before it was ready")
            self._doom("a runner ended before it was ready")
            return
        self._go_on()
        self._check_gone()

    def sockets(self) -> int:
        """
        How many sockets there are in the network namespace. One read, 10 us.
        """
        if self._sockets < 0:
            return 0
        return int(os.pread(self._sockets, 64, 0).split(maxsplit=3)[2])  # "sockets: used N"

    def _move(self, runner: Runner, event: RunnerEvent) -> None:
        was_arming = runner.state is RunnerState.ARMING
        runner.happen(event)
        if was_arming:
            self._owner.arming_over(runner.number)

    def _drop(self, runner: Runner) -> None:
        if runner.state in (RunnerState.ARMING, RunnerState.ARMED):
            self.withdraw()
            self._move(runner, RunnerEvent.ENDED)
            runner.kill()

    def _dispose(self, runner: Runner) -> None:
        if runner.pidfd >= 0:
            self._reactor.forget(runner.pidfd)
        runner.dispose()
        if not runner.leaf.remove():
            self._leaves.append(runner)
            self._reactor.after(0.05, self._remove_leaves)

    def _remove_leaves(self) -> None:
        self._leaves = [runner for runner in self._leaves if not runner.leaf.remove()]
        if self._leaves:
            self._reactor.after(0.05, self._remove_leaves)
        self._check_gone()

    # --- the end --------------------------------------------------------------

    def cancel(self, execution: Execution) -> None:
        """
        End this job; its report goes nowhere useful.
        """
        execution.stop(Stop.CANCELLED)

    def _doom(self, reason: str) -> None:
        """
        Retire, but let a job that runs come to its end first: what failed is another runner.
        """
        self.withdraw()
        if self._doomed is None:
            self._doomed = reason
        if self._execution is None:
            self.retire(reason)

    def retire(self, reason: str) -> None:
        """
        Let the keeper and all its runners go; a job that runs ends with *reason*.
        """
        if self.state in (WorkerState.RETIRING, WorkerState.GONE):
            return
        self.withdraw()
        making = self.state is WorkerState.MAKING
        self._happen(WorkerEvent.RETIRED)
        self._retired_for = reason
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()
        if making:
            self._far_end.close()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # gone already
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # end of file wouldn't reach a stopped one
        for runner in list(self._runners.values()):
            leave(self._reactor, runner)
            if runner.pidfd >= 0:
                # The keeper can't tell any more: its init's end is seen by the pidfd.
                runner.kill()
                self._reactor.watch(runner.pidfd, READ, lambda _, runner=runner: self._on_orphan_end(runner))  # type: ignore[misc]  # a bound default
            else:
                # Never heard of: it reads end of file on its pipes, or dies with the keeper.
                self._on_ended(runner.number, None, reason)
        if self._pidfd < 0 and making:
            self._keeper_gone = True
        self._reactor.soon(self._check_gone)

    def _on_orphan_end(self, runner: Runner) -> None:
        self._reactor.forget(runner.pidfd)
        reap(runner.pidfd)
        self._on_ended(runner.number, None, self._retired_for)

    def _on_keeper_end(self, _events: int) -> None:
        self._reactor.forget(self._pidfd)
        reap(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._keeper_gone = True
        if self._sockets >= 0:
            os.close(self._sockets)
            self._sockets = -1
        self._reactor.after(_ORPHANS_S, reap_inits)
        self.retire("its keeper is gone")
        self._check_gone()

    def _check_gone(self) -> None:
        if (self.state is WorkerState.RETIRING and self._keeper_gone and not self._runners and not self._leaves):
            if not self.group.remove():
                self._reactor.after(0.05, self._check_gone)
                return
            self._happen(WorkerEvent.EMPTY)
            self._owner.worker_gone(self)

    def _happen(self, event: WorkerEvent) -> None:
        self.state = after("worker", WORKER, self.state, event)
