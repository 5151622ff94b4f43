"""
A runner that one session has for many jobs, and the run of each of these jobs.

Theory of operation. A lease begins with an armed runner and ends with the runner's death; in between it has one job at
a time. The pipes are the runner's and stay open. A job's end is its reply's last byte, so bytes on the reply pipe
before a job was sent are a breach of the protocol, and end the lease. Bytes on the output pipes between two jobs were
written by threads or children that jobs left, and are taken with the next job's output; nobody reads them before, so
they are 64 KiB at most.

The lease is over when the runner has ended (Ended), when a job was stopped by a limit or withdrawn, or when the session
gives it back. Then its lender gets the runner back, and kills the processes that are left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Sequence
from functools import partial

from leeward.base.dataclass import replace
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.fast_path import FastPath, ReplyAddress
from leeward.daemon.loop.reactor import NO_TIMER, JobStart, Ran, Reactor
from leeward.daemon.run.calling_job import Calling
from leeward.daemon.run.execution import Caller, Execution, RunnerUser
from leeward.daemon.run.output import Output, unread
from leeward.daemon.run.report import SHORT_OUTPUT, Report, inline_bytes, internal
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.verdict import Stop, Verdict, bug, name_of, overdue, why_ended, why_killed
from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit, Outcome
from leeward.wire import job_frames as wire

#: Why a session is over, by the outcome of its last job.
ENDS = {
    Outcome.TIMED_OUT: "a job was ended at its time limit",  # the job ignored the interrupt
    Outcome.OUT_OF_MEMORY: "it ran out of memory",
    Outcome.OUTPUT_LIMIT: "a job was ended at its output limit",
    Outcome.SIGNALLED: "a signal ended its process",
    Outcome.FINISHED: "its process has exited",
    Outcome.RAISED: "its process has exited",
    Outcome.INTERNAL: "its process was lost",
}


class Turn(Execution):
    """The run of one job of a lease, interrupted at its time limit, and killed *grace* seconds later."""

    _asks_when_late = False  # the process has handlers of its own

    stray = False  # bytes on the reply pipe although no job runs
    grace = 0.0    # seconds
    signals: Callable[[int], None]
    _overdue = False

    def stop(self, why: Stop) -> None:
        if why is not Stop.TIME or self._overdue or not self.grace or self.stopped or self.over:
            super().stop(why)
            return
        self._overdue = True
        # Only once. The fast path doesn't answer this job, because the answer has to report the limit.
        self._timers["grace"] = self._reactor.after(self.grace, partial(super().stop, Stop.TIME))
        in_any_case(self.take_back, self.interrupt)

    def _judged(self, verdict: Verdict) -> Verdict:
        return overdue(verdict) if self._overdue else verdict

    def _open_output(self, results: str) -> Output:
        # The pipes keep their size, which bounds the output between two jobs.
        limits = self._job.limits
        return Output(self._runner.out, self._runner.err, limits.output, memory=0, cuts=limits.cuts_output,
                      inline=inline_bytes(results, files=bool(self._job.collect) or self._job.display))

    def _prepare(self) -> None:
        if unread(self._runner.reply):
            self.stray = True
            raise LeewardError("bytes on the reply pipe before there was a job")

    def _frame(self) -> Sequence[bytes | memoryview]:
        return wire.session_pieces(self._job)

    def _close_pipes(self) -> None:
        return  # the pipes are the runner's

    def _not_started(self, status: int | None) -> bool:
        return False  # the session's state is gone, so the job can't run elsewhere

    def signal(self, number: int) -> None:
        self.signals(number)


class BranchTurn(Turn):
    """The request for a branch: run/branches.py."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.BRANCH_FRAME]


class AheadTurn(Turn):
    """The same, before a client asks for it."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.BRANCH_AHEAD_FRAME]


class TakeTurn(Turn):
    """The request for a snapshot: run/dumping.py."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.adopted_frame(self._runner.adopted), wire.TAKE_FRAME]


class TakeWarmTurn(Turn):
    """The same, for a state whose copies wait for a first frame."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.TAKE_WARM_FRAME]


class LoadTurn(Turn):
    """The request to become the copy of a snapshot: run/loading.py."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.LOAD_FRAME]


class LoadSameTurn(Turn):
    """The same, for a copy whose random numbers go on as they were."""

    def _frame(self) -> Sequence[bytes | memoryview]:
        return [wire.LOAD_SAME_FRAME]


class CallingTurn(Calling, Turn):
    """The run of a job that may call functions of its client."""


class Lease:
    """*lender* has lent the runner, and gets it back; *lost* is called once with the reason after that."""

    costs = "session"

    def __init__(self, reactor: Reactor, runner: Runner, lender: RunnerUser, *, lost: Callable[[str], None],
                 fast_path: FastPath | None = None) -> None:
        self._reactor = reactor
        self.held = runner
        self._lender, self._lost = lender, lost
        self.terms = lender.terms
        self._over = False
        self.turn: Turn | None = None
        self._job_pidfd = -1
        self._used = Usage(cpu_time=runner.cpu_before)
        self._cpu_time = 0.0  # seconds of jobs on the fast path, since the last job that took another way
        self._fast_path = fast_path
        self._offered = False
        self._empty = False
        self._orphans: set[int] = set()
        self._ending = ""
        self._ticks = NO_TIMER

    @property
    def runner(self) -> int:
        return self.held.number

    @property
    def ending(self) -> bool:
        """Whether the lease is over, or about to be, so that it takes no job."""
        return bool(self._ending)

    def open(self, limits: Limits, *, loads: bool = False) -> None:
        """
        Set *limits* on the runner, before it has any code, or *loads* a state; LeewardError if it is gone, or one can't be
        set.
        """
        self.held.limit(limits)
        try:
            self._job_pidfd = self.held.job_pidfd()
        except OSError as error:
            raise LeewardError(f"runner {self.held.number}: {error}") from error
        self._check_there()
        try:
            variables, begins = self.held.variables, wire.SESSION_LOADS_BEGINS if loads else wire.SESSION_BEGINS
            os.write(self.held.job,  # into an empty pipe
                     begins + (wire.variables_frame(variables) if variables else b""))
        except OSError as error:
            raise LeewardError(f"runner {self.held.number}: {error}") from error
        if self.held.leaf.needs_ticks:
            self._tick_later()

    def _check_there(self) -> None:
        poll = select.poll()
        poll.register(self.held.pidfd, select.POLLIN)
        if poll.poll(0):
            raise LeewardError(f"init {self.held.pid} has gone")

    def run(self, caller: Caller) -> Turn:
        """Send the job of *caller*; call only while no job runs."""
        self.withdraw()
        turn = self._next(caller)
        turn.start()
        return turn

    def ask(self, caller: Caller, kind: type[Turn]) -> Turn:
        """Let the process do what *kind* asks for, with the descriptors that were sent to it; only while no job runs."""
        self.withdraw()
        turn = self._next(caller, kind)
        turn.start()
        return turn

    def job_started(self, caller: Caller, start: JobStart) -> Turn:
        """For the fast path: it has sent the job of *caller*."""
        self._offered = False
        turn = self._next(caller)
        turn.begin(start)
        return turn

    def ran(self, ran: Ran) -> None:
        """For the fast path: it has sent a job, and answered its client. It may run the next job as well."""
        self._cpu_time += ran.cpu_time
        self.held.leaf.saw(ran.memory_peak)

    def keep(self) -> None:
        """Give the fast path no more jobs. A job that runs there is answered by Python."""
        if self.turn is not None:
            self.turn.take_back()

    def _next(self, caller: Caller, kind: type[Turn] | None = None) -> Turn:
        turn: Turn
        kind = kind or (Turn if caller.job.functions is None else CallingTurn)
        turn = self.turn = kind(self._reactor, self.held, self, caller, alone=not self._lender.crowded,
                                 fast_path=self._fast_path)
        turn.grace, turn.signals = self.terms.session_grace, self._signal
        turn.before = self._so_far()
        return turn

    def _so_far(self) -> Usage:
        if self._cpu_time:
            self._used = replace(self._used, cpu_time=self._used.cpu_time + self._cpu_time)
            self._cpu_time = 0.0
        return self._used

    def reap(self, number: int) -> None:
        """Have the process reap children that the branch *number* has left to it, as soon as no job runs."""
        self._orphans.add(number)
        if self.turn is None:
            self._tell_orphans()

    def _tell_orphans(self) -> None:
        if self._orphans and not self._ending:
            with contextlib.suppress(OSError):  # it doesn't read now: later, with others
                os.write(self.held.job, wire.adopted_frame(self._orphans))
                self._orphans.clear()

    def killed(self, runner: Runner) -> None:
        self._lender.killed(runner)

    def conclude(self, execution: Execution, report: Report) -> None:
        turn, self.turn = self.turn, None
        try:
            if turn is not None:
                self._finish_turn(turn, report)
        except Exception as error:
            self._ending = self._ending or bug(error)
            raise
        finally:
            try:
                execution.caller.finished(report)
            finally:
                if self._ending:
                    self._release()

    def gone(self, execution: Execution) -> None:
        """For an execution: its job was not sent."""
        self.conclude(execution, _REFUSED)

    def _finish_turn(self, turn: Turn, report: Report) -> None:
        """Prepare the runner for the job after *turn*, or end the lease."""
        turn.release()
        self._used = turn.used
        if report.answered:
            self._offered = True  # the fast path still has the runner
            if report.result is not None:
                self.held.leaf.saw(report.result.memory_peak)
        else:
            self.held.mark()
        outcome = Outcome.INTERNAL if report.result is None else report.result.outcome
        if self._empty or turn.stopped or turn.stray or outcome not in _GOES_ON:
            self._ending = self._ending or ENDS[outcome]
        self._tell_orphans()

    # --- the fast path --------------------------------------------------------

    def offer(self, limits: Limits, client: ReplyAddress, *, shows: bool = False) -> None:
        """
        Let the fast path have the next job, while no job runs. *client* is the connection, with the client's number of
        the session in place of a request's. *shows*: the session's jobs show things.
        """
        if self._fast_path is None or self._offered or self.turn is not None or self._ending:
            return
        if limits.output < SHORT_OUTPUT or unread(self.held.reply):
            return
        try:
            offer = self.held.offer(self.held.out, self.held.err)
        except LeewardError:  # a file of its group can't be opened
            return
        if offer is None:
            return
        since_armed = self._so_far().cpu_time - self.held.cpu_before
        self._offered = self._fast_path.offer(replace(offer, session=client.request, stream=client.fd, shows=shows,
                                                      time_before=offer.time_before + since_armed), self)

    def withdraw(self) -> None:
        """Give the fast path no job before the next `offer`."""
        if self._offered and self._fast_path is not None:
            self._fast_path.withdraw(self.held.number)
        self._offered = False

    def take_back(self) -> None:
        """Make the fast path stop reading the runner's pipes, for the next job and for a running one."""
        in_any_case(self.withdraw, self.keep)

    # --- while a job runs, and at the end -------------------------------------

    def interrupt(self) -> bool:
        """Send SIGINT to the job's process as soon as the process has read the job. Returns whether there is a job."""
        if self.turn is None:
            return False
        self.turn.interrupt()
        return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process has ended; that is noticed elsewhere
            signal.pidfd_send_signal(self._job_pidfd, number)

    def end(self, why: str) -> None:
        """Give the runner back. A job that runs is taken back first."""
        self._ending = self._ending or why
        if self.turn is None:
            self._release()
        else:
            self.turn.stop(Stop.CANCELLED)

    def emptied(self, status: int | None, reason: str) -> None:
        """For the lender: no process of the runner is left."""
        self._empty = True
        if self.turn is not None:
            self.turn.emptied(status, reason)
            return
        if status is None:
            self._ending = self._ending or f"its process was lost: {reason}"
        elif os.WIFSIGNALED(status):
            leaf = self.held.leaf
            killed = why_killed(status, Usage(), leaf.usage(), partial(leaf.killed_unseen, self.held.largest))
            self._ending = self._ending or (f"{ENDS[Outcome.SIGNALLED]}: {name_of(os.WTERMSIG(status))}" if killed is None
                                            else why_ended(killed))
        else:
            self._ending = self._ending or ENDS[Outcome.FINISHED]
        self._release()

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. Ends the session and its job."""
        self._ending = self._ending or bug(error)
        if self.turn is None:
            self._release()
        else:
            self.turn.broken(error)

    def abandon(self) -> None:
        """End the runner without telling a session, because the lease couldn't be opened."""
        self._lost = lambda _: None
        self._release()

    def _release(self) -> None:
        if self._over:
            return
        self._over = True
        in_any_case(self.withdraw, self._close, partial(self._lender.give_back, self.held),
                    partial(self._lost, self._ending))

    def _close(self) -> None:
        self._ticks.cancel()
        pidfd, self._job_pidfd = self._job_pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    # --- between jobs, where no controller counts -----------------------------

    def _tick_later(self) -> None:
        self._ticks = self._reactor.after(self.held.leaf.tick_interval, self._tick)

    def _tick(self) -> None:
        """Enforce the limits on threads and children that jobs have left. While a job runs, its execution does that."""
        if self.turn is None and self.held.tick() == Limit.MEMORY:
            self.end(ENDS[Outcome.OUT_OF_MEMORY])
            return
        self._tick_later()


#: The outcomes of a job after which its process lives on; TIMED_OUT if the interrupt has ended the job.
_GOES_ON = frozenset({Outcome.FINISHED, Outcome.RAISED, Outcome.TIMED_OUT})


#: The answer to a job that was not sent.
_REFUSED = internal("Ended", "a job before it broke the protocol of its reply pipe")
