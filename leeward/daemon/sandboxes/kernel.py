"""
A Python interpreter with state in a live sandbox: requests one after the other, in the order in which they came.

Theory of operation. A kernel is a process of the sandbox with a lease of its own (`run/lease.py`); both end together.
Its requests wait here while the process starts, and while another runs. After two branches of one state in a row it forks
the next one *ahead*, which waits for its request; any other request ends it. When the process is lost, for whatever reason,
the state is lost: waiting requests are refused, and so is every later request until a reset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import NO_TIMER, JobStart, Ran, Timer
from leeward.daemon.run.branches import KernelBranch
from leeward.daemon.run.dumping import Dump
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.lease import AheadTurn, BranchTurn, Lease, TakeTurn, Turn
from leeward.daemon.run.loading import why_not
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import after
from leeward.daemon.run.verdict import bug
from leeward.errors import Bug, Busy, LeewardError, SessionOver, SnapshotFailed
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

#: Requests that may wait for one kernel.
MOST_WAITING = 64

Done = Callable[[Report], None]


class KernelProcess(Protocol):
    """A process of a live sandbox, or one that is being started, which can be killed."""

    def kill(self) -> None: ...


#: Starts a kernel's process: takes a callback for when the process has a lease, and one for when it is lost.
Start = Callable[[Callable[[Lease], None], Callable[[str], None]], KernelProcess]


#: Makes a process by a fork of a kernel's process, which is the first argument. The others are those of `Start`.
Fork = Callable[[Any, Callable[[Lease], None], Callable[[str], None]], KernelBranch]


class KernelStage(Enum):
    """The states of a kernel. LOST lasts until a reset, or until the kernel is closed."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"
    CLOSED = "closed"


class Change(Enum):
    """What changes a kernel's stage: the start or the loss of its process, a reset, and the kernel's end."""

    STARTED = "started"
    LOST = "lost"
    RESET = "reset"
    CLOSED = "closed"


KERNEL: Mapping[tuple[KernelStage, Change], KernelStage] = {
    (KernelStage.STARTING, Change.STARTED): KernelStage.READY,
    (KernelStage.STARTING, Change.LOST): KernelStage.LOST,
    (KernelStage.READY, Change.LOST): KernelStage.LOST,
    **{(stage, Change.RESET): KernelStage.STARTING for stage in KernelStage if stage is not KernelStage.CLOSED},
    **{(stage, Change.CLOSED): KernelStage.CLOSED for stage in KernelStage if stage is not KernelStage.CLOSED},
}


class KernelRequest:
    """A job for a kernel. Whoever sent it can withdraw it by `cancel`; for the lease it is the `Caller`."""

    client = None  # its answer never goes by the fast path

    def __init__(self, kernel: LiveKernel, job: Job, done: Done) -> None:
        self._kernel, self.job = kernel, job
        self._done: Done | None = done
        #: Does what isn't running a job, with the lease, when its turn comes.
        self.begins: Callable[[Lease], None] | None = None

    @property
    def execution(self) -> Execution | None:
        """The run of the job; None while it waits for its turn."""
        return self._kernel.turn_of(self)

    def answer(self, report: Report) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(report)
        else:
            report.close()

    def finished(self, report: Report) -> None:
        self._kernel.ran(self, report)

    def lost(self) -> None:
        """Called by the lease: its process was gone before it had received the code."""
        self._kernel.ran(self, Report(refusal=SessionOver("the kernel's process was gone before it had the code")))

    def cancel(self) -> None:
        self._done = None
        self._kernel.taken_back(self)


class Forking:
    """
    The process of a branch, from the request for it on: at first a request that waits for the kernel to fork. Without
    *opened* it waits for `give`, for as long as *timer* runs.
    """

    def __init__(self, opened: Callable[[Lease], None] | None, lost: Callable[[str], None],
                 then: Callable[[], object] = nothing) -> None:
        self._opened, self._then = opened, then
        self._lost: Callable[[str], None] | None = lost
        self._lease: Lease | None = None
        self.timer = NO_TIMER
        self.request: KernelRequest | None = None
        self.process: KernelBranch | None = None

    def opened(self, lease: Lease) -> None:
        if self._opened is None:
            self._lease = lease
        else:
            self._opened(lease)

    def give(self, opened: Callable[[Lease], None], lost: Callable[[str], None]) -> bool:
        """Set the callbacks of one that was made without, and call *opened* at once. False if it isn't there."""
        if self._lease is None or self._lease.ending or self.process is None or not self.process.waits():
            return False
        self.timer.cancel()
        self._lost = lost
        opened(self._lease)
        return True

    @property
    def is_adopted(self) -> bool:
        """Whether what it forks becomes a child of the first kernel's: no group contains it."""
        family = None if self.process is None else self.process.family
        return family is not None and family.adopts

    def lost(self, why: str) -> None:
        self.timer.cancel()
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(why)

    def answered(self, report: Report) -> None:
        """Take the report of the kernel that was to fork: it has, or it couldn't."""
        why = why_not(report)
        why = why and f"its kernel can't fork: {why}"
        report.close()
        in_any_case(*([partial(self.process.forked, why)] if self.process is not None else
                      [partial(self.lost, why)] if why else []), self._then)

    def kill(self) -> None:
        self.timer.cancel()
        self._lost = None
        if self.process is not None:
            self.process.kill()
        elif self.request is not None:
            self.request.cancel()  # the request still waits


class Rolling:
    """The process that a kernel gets in place of its own, from the rollback's turn until it is there."""

    def __init__(self, kernel: LiveKernel, request: KernelRequest) -> None:
        self._kernel, self._request = kernel, request
        self.process: KernelProcess | None = None
        self.turn = 0  # the kernel's, once the process is its own

    def opened(self, lease: Lease) -> None:
        self._kernel.rolled(self, self._request, lease)

    def lost(self, why: str) -> None:
        self._kernel.rolled_lost(self, self._request, why)


class LiveKernel:
    """
    One kernel of a sandbox: its process, which *start* starts at once and at each reset, and waiting requests. *told* is
    called once the first process is there with "", or with the reason why there is none. It begins without one if it is
    given why it is *lost*.
    """

    costs = "session"

    def __init__(self, start: Start, told: Callable[[str], None] = nothing, *, lost: str = "") -> None:
        self._start = start
        self.stage = KernelStage.STARTING
        self._lease: Lease | None = None
        self._process: KernelProcess | None = None
        self._waiting: deque[KernelRequest] = deque()
        self._running: KernelRequest | None = None
        self._why = ""
        self._turn = 0  # callbacks of earlier processes are ignored
        self._rolling: Rolling | None = None
        self._ahead: Forking | None = None
        self._row = 0  # branches since the last other request
        #: Whether a branch is likely to be followed by one of the same state.
        self.repeats = False
        self._told: Callable[[str], None] = nothing
        if lost:
            self.stage, self._why = KernelStage.LOST, lost
        else:
            self._begin(start, told)

    def _begin(self, start: Start, told: Callable[[str], None] = nothing) -> None:
        self._turn += 1
        self._told = told
        turn = self._turn
        self._process = start(partial(self._opened, turn), partial(self._lost, turn))

    def _tell(self, why: str) -> None:
        told, self._told = self._told, nothing
        told(why)

    def _opened(self, turn: int, lease: Lease) -> None:
        if turn != self._turn or self.stage is not KernelStage.STARTING:
            lease.end("it was given up")
            return
        self.stage = after("kernel", KERNEL, self.stage, Change.STARTED)
        self._lease = lease
        in_any_case(partial(self._tell, ""), self._pump)

    def _lost(self, turn: int, why: str) -> None:
        if turn != self._turn or self.stage in (KernelStage.LOST, KernelStage.CLOSED):
            return
        self.stage = after("kernel", KERNEL, self.stage, Change.LOST)
        self._why = why
        self._lease = self._process = None
        in_any_case(partial(self._tell, why), self._drop_rolling, self.drop_ahead, self._refuse_all)

    def _drop_rolling(self) -> None:
        rolling, self._rolling = self._rolling, None
        if rolling is not None and rolling.process is not None:
            rolling.process.kill()

    def _refuse_all(self) -> None:
        running, self._running = self._running, None
        waiting, self._waiting = self._waiting, deque()
        refusal = Report(refusal=SessionOver(f"the kernel's state is gone: {self._why}"))
        in_any_case(*(partial(request.answer, refusal) for request in ([running] if running else []) + list(waiting)))

    @property
    def why_lost(self) -> str:
        return self._why

    @property
    def lives(self) -> bool:
        """Whether the kernel has a process, or one is being started."""
        return self.stage in (KernelStage.STARTING, KernelStage.READY)

    def run(self, job: Job, done: Done) -> KernelRequest:
        """Queue *job*; *done* is called once, perhaps at once. SessionOver without a process, Busy if too many wait."""
        self.drop_ahead()
        request = self._new(job, done)
        self._pump()
        return request

    def _new(self, job: Job, done: Done) -> KernelRequest:
        if not self.lives:
            raise SessionOver(f"the kernel's state is gone: {self._why}")
        if len(self._waiting) >= MOST_WAITING:
            raise Busy(f"{len(self._waiting)} requests wait for the kernel already")
        request = KernelRequest(self, job, done)
        self._waiting.append(request)
        if self._running is not None and self._lease is not None:
            self._lease.keep()  # else the fast path would send the next job of its connection before this one
        return request

    def fork(self, job: Job, fork: Fork, opened: Callable[[Lease], None], lost: Callable[[str], None],
             then: Callable[[], object] = nothing) -> Forking:
        """
        Queue, as *job*, the fork of a branch, with the state that this kernel has then. *fork* makes its process,
        *opened* and *lost* are as in `Start`; *then* is called when the kernel is done with it. Raises as `run`.
        """
        self._row += 1
        self.repeats = self.repeats or self._row > 1
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if not self._waiting and self._running is None and ahead.give(opened, lost):
                then()
                return ahead
            ahead.kill()
        forking = Forking(opened, lost, then)
        self._ask_to_fork(job, fork, forking, BranchTurn)
        return forking

    def _ask_to_fork(self, job: Job, fork: Fork, forking: Forking, kind: type[Turn]) -> None:
        request = self._new(job, forking.answered)
        forking.request = request

        def begins(lease: Lease) -> None:
            try:
                process = self._process
                forking.process = fork(process.process if isinstance(process, Forking) else process, forking.opened,
                                       forking.lost)
            except LeewardError as error:
                forking.lost(str(error))
                raise
            lease.ask(request, kind)

        request.begins = begins
        self._pump()

    def fork_ahead(self, job: Job, fork: Fork, timer: Callable[[Callable[[], None]], Timer],
                   may: Callable[[], bool]) -> None:
        """Fork the next branch now, and keep it until what *timer* returns is over, if one is likely to be wanted."""
        if not self.repeats or not self._row or self._ahead is not None or not may():
            return
        if self.stage is not KernelStage.READY or not self.rests:
            return
        if isinstance(self._process, Forking) and self._process.is_adopted:
            return  # another kernel, which may be asked for a snapshot meanwhile, would find a child that it doesn't know

        def over(_why: str) -> None:
            self.repeats = False
            self._ahead = None if self._ahead is ahead else self._ahead

        ahead = self._ahead = Forking(None, over)
        ahead.timer = timer(partial(self.drop_ahead, ahead))
        try:
            self._ask_to_fork(job, fork, ahead, AheadTurn)
        except LeewardError as error:
            ahead.lost(str(error))

    def drop_ahead(self, only: Forking | None = None) -> None:
        """End the branch that waits for its request: the kernel has another one, or the time of *only* that is over."""
        ahead = self._ahead
        if only is None:
            self.repeats = self.repeats and self._row != 1
            self._row = 0
        if ahead is not None and only in (None, ahead):
            self._ahead = None
            ahead.kill()

    def _is_ahead(self, request: KernelRequest | None) -> bool:
        return request is not None and self._ahead is not None and request is self._ahead.request

    def snapshot(self, job: Job, dump: Dump) -> None:
        """Queue, as *job*, a snapshot of the state that the kernel has then, which *dump* takes. Raises as `run`."""
        self.drop_ahead()

        def answered(report: Report) -> None:
            why = why_not(report)
            report.close()
            dump.answered(why)

        request = self._new(job, answered)

        def begins(lease: Lease) -> None:
            dump.begin(lease.held)
            lease.ask(request, TakeTurn)

        request.begins = begins
        self._pump()

    def roll_back(self, job: Job, start: Start, told: Callable[[str], None]) -> None:
        """
        Queue, as *job*, the exchange of the process for the one that *start* makes; *told* is called with "" when that
        is there, or with the reason why not: then the kernel goes on as it was. A lost kernel has one again. Raises as
        `run`.
        """
        if self.stage is KernelStage.LOST:
            self.wake(start, told)
            return
        self.drop_ahead()

        def answered(report: Report) -> None:
            why = why_not(report)
            report.close()
            told(why)

        request = self._new(job, answered)

        def begins(lease: Lease) -> None:
            lease.withdraw()
            rolling = self._rolling = Rolling(self, request)
            try:
                rolling.process = start(rolling.opened, rolling.lost)
            except LeewardError:
                self._rolling = None
                raise

        request.begins = begins
        self._pump()

    @property
    def rests(self) -> bool:
        """Whether nothing runs and nothing waits; also of one that is lost."""
        return self.stage in (KernelStage.READY, KernelStage.LOST) and not self._waiting and (
            self._running is None or self._is_ahead(self._running))

    def sleep(self) -> None:
        """End the process of a kernel that rests; `wake` gives it another one."""
        if self.stage is KernelStage.READY:
            self.stage = after("kernel", KERNEL, self.stage, Change.LOST)
            self._give_up("it sleeps")

    def wake(self, start: Start, told: Callable[[str], None]) -> None:
        """Give a kernel that sleeps the process that *start* makes; *told* as for `roll_back`. Raises as *start*."""
        self.stage = after("kernel", KERNEL, self.stage, Change.RESET)
        try:
            self._begin(start, told)
        except LeewardError as error:
            self._lost(self._turn, str(error))
            raise

    def rolled(self, rolling: Rolling, request: KernelRequest, lease: Lease) -> None:
        """The process of a rollback is there."""
        if self._rolling is not rolling or self._running is not request:
            lease.end("it was given up")
            return
        before, self._lease, self._process = self._lease, lease, rolling.process
        self._rolling = None
        self._turn += 1
        rolling.turn = self._turn
        in_any_case(*([partial(before.end, "it was rolled back")] if before is not None else []),
                    partial(self.ran, request, Report(result=Result(b"", b"", 0, Outcome.FINISHED))))

    def rolled_lost(self, rolling: Rolling, request: KernelRequest, why: str) -> None:
        """The process of a rollback isn't there, or not any more."""
        if self._rolling is rolling:
            self._rolling = None
            self.ran(request, Report(refusal=SnapshotFailed(why)))
        elif rolling.turn:
            self._lost(rolling.turn, why)

    def _pump(self) -> None:
        if self._lease is None or self._running is not None or not self._waiting:
            return
        request = self._running = self._waiting.popleft()
        try:
            if request.begins is None:
                self._lease.run(request)
            else:
                request.begins(self._lease)
        except LeewardError as error:
            self._running = None
            request.answer(Report(refusal=error if isinstance(error, SnapshotFailed) else
                                  Busy(f"the kernel can't run it: {error}")))

    # --- the fast path --------------------------------------------------------

    def offer(self, limits: Limits, client: ReplyAddress, shows: bool) -> None:
        """Let the fast path have the next request of *client*, if it is code alone; see Lease.offer."""
        if self._lease is not None and self._running is None and not self._waiting and self._ahead is None:
            self._lease.offer(limits, client, shows=shows)

    def job_started(self, job: Job, done: Done, start: JobStart) -> KernelRequest:
        """Record that the fast path has sent *job* to the process."""
        if self._lease is None or self._running is not None:
            raise Bug("a job was sent to a kernel that has no process, or has one already")
        self.drop_ahead()
        request = self._running = KernelRequest(self, job, done)
        self._lease.job_started(request, start)
        return request

    def ran_fast(self, ran: Ran) -> None:
        """Record that the fast path has sent a job to the process, and answered it."""
        if self._lease is None or self._running is not None:
            raise Bug("a job was run by a kernel that has no process, or another job")
        self.drop_ahead()
        self._lease.ran(ran)

    # --------------------------------------------------------------------------

    def ran(self, request: KernelRequest, report: Report) -> None:
        if self._running is request:
            self._running = None
        request.answer(report)
        if self._lease is not None and not self._lease.ending:
            self._pump()  # else the process ends, and `_lost` is called

    def taken_back(self, request: KernelRequest) -> None:
        """Called by *request*: it was cancelled. If it runs, the process is ended and the kernel's state is lost."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request is self._running and self._lease is not None:
            self._lease.end("a request of it was taken back")

    def turn_of(self, request: KernelRequest) -> Turn | None:
        return self._lease.turn if self._running is request and self._lease is not None else None

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running request. Returns whether there is one."""
        return not self._is_ahead(self._running) and self._running is not None and (
            self._lease is not None and self._lease.interrupt())

    def reset(self) -> None:
        """Start a new process; all requests are refused. LeewardError if none can be started, and the state is lost."""
        self._give_up("it was reset")
        self.stage = after("kernel", KERNEL, self.stage, Change.RESET)
        try:
            self._begin(self._start)
        except LeewardError as error:
            self._lost(self._turn, str(error))
            raise

    def close(self) -> None:
        if self.stage is not KernelStage.CLOSED:
            self.stage = after("kernel", KERNEL, self.stage, Change.CLOSED)
            self._give_up("it was closed")

    def _give_up(self, why: str) -> None:
        self._why = why
        self._turn += 1
        lease, self._lease = self._lease, None
        process, self._process = self._process, None
        in_any_case(partial(self._tell, why), self._drop_rolling, self.drop_ahead, self._refuse_all,
                    *([partial(lease.end, why)] if lease is not None else []),
                    *([process.kill] if process is not None else []))

    def broken(self, error: Exception) -> None:
        if self.lives:
            self.stage = after("kernel", KERNEL, self.stage, Change.LOST)
            self._give_up(bug(error))
