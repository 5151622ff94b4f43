"""
A runner that one session has for many jobs, and each of those jobs.

Runs in:   the daemon.

Theory of operation. A lease begins with an armed runner and ends with its death; in between it has one job at
a time. The pipes are the runner's and stay. A job's end is its reply's last byte, so whatever is on the reply pipe
before a job was sent is a breach of the protocol, and the end of the lease. What is on the output
pipes then was written by threads or children that jobs left, and is taken with the next job's output: nobody
reads it before, so it is 64 KiB at most, and whoever writes more waits.

The lease is over when the runner is (Ended), when a job was stopped by a limit or taken back, or when the
session gives it back. It then calls *over* once, which has what is left of the runner killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from functools import partial

from leeward.dataclass import replace
from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Usage
from leeward.outcome import EXIT_INTERNAL, JobError, Limit, Outcome, Result
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.wire import job as wire
from leeward.worker.execution import SHORT_OUTPUT, Execution, Stop
from leeward.worker.express import Client, Express
from leeward.worker.output import Output, inline_bytes, unread
from leeward.worker.reactor import Reactor, Timer
from leeward.worker.report import Report
from leeward.worker.runner import Runner, job_of
from leeward.worker.stream import Begun, Ran

#: An interrupt waits so long for its job's frame to be read, and then looks again.
_UNREAD_S = 0.001

#: CPython sees a signal that came right before a call that sleeps only when that call ends: another signal, which
#: does nothing, ends it. SIGURG: a job that puts its default back ignores it.
_NUDGE_S = 0.02

#: Why a session is over, by the outcome of its last job.
ENDS = {
    Outcome.TIMED_OUT: "a job was ended at its time limit",
    Outcome.OUT_OF_MEMORY: "it ran out of memory",
    Outcome.OUTPUT_LIMIT: "a job was ended at its output limit",
    Outcome.SIGNALLED: "a signal ended its process",
    Outcome.FINISHED: "its process has exited",
    Outcome.RAISED: "its process has exited",
    Outcome.INTERNAL: "its process was lost",
}


class Turn(Execution):
    """
    One job of a lease.
    """

    stray = False  # bytes on the reply pipe that no job of ours can have sent

    def _open_output(self, results: str) -> Output:
        # Its pipes stay as narrow as they are: what stands in them between two jobs is bounded by that.
        return Output(self._runner.out, self._runner.err, self._job.limits.output, memory=0,
                      inline=inline_bytes(results, files=bool(self._job.collect)))

    def _prepare(self) -> None:
        if unread(self._runner.reply):
            self.stray = True
            raise LeewardError("bytes on the reply pipe before there was a job")

    def counting_from(self, before: Usage) -> None:
        """
        What was used before that isn't this job's.
        """
        self._before = before

    def let_go(self) -> None:
        """
        It is over: others may wait for the pipes now.
        """
        self._release()

    @property
    def used(self) -> Usage:
        """
        At its end, by all jobs so far.
        """
        return self._used

    def _frame(self) -> bytes:
        return wire.session_frame(self._job)

    def _close_pipes(self) -> None:
        return  # they are the runner's

    def _not_started(self, status: int | None) -> bool:
        return False  # its state is gone, so it can't run elsewhere

    @property
    def taken(self) -> bool:
        """
        Has the runner read all of the job's frame?
        """
        return not self._unsent and not unread(self._runner.job)

    @property
    def stopped(self) -> bool:
        return self._stop is not None


class Lease:
    """
    Args:
        over: called once, when the runner is the session's no more.
        killed: called when the runner was killed, and `emptied` has to follow.
        lost: called once, after *over*, with the reason.
        crowded: do others wait for the daemon?
        results: how output travels, of output.RESULTS.
        short: takes jobs the short way, where there is one.
    """

    def __init__(self, reactor: Reactor, runner: Runner, degraded: tuple[str, ...], *, over: Callable[[], None],
                 killed: Callable[[], None], lost: Callable[[str], None], crowded: Callable[[], bool],
                 results: str = "auto", short: Express | None = None) -> None:
        self._reactor = reactor
        self._runner = runner
        self._degraded = degraded
        self._results = results
        self._over: Callable[[], None] | None = over
        self._killed, self._lost, self._crowded = killed, lost, crowded
        self._turn: Turn | None = None
        self._job_pidfd = -1
        self._used = Usage(cpu_time=runner.cpu_before)
        self._cpu_time = 0.0  # of jobs of which we heard when they were over, since the last other one
        self._short = short
        self._client: Client | None = None
        self._offered = False
        self._empty = False
        self._ending = ""
        self._ticks: Timer | None = None

    @property
    def runner(self) -> int:
        return self._runner.number

    def open(self, limits: Limits) -> None:
        """
        Hold the runner to *limits*, before it has any code.

        Raises:
            LeewardError: it is gone, or a limit can't be set.
        """
        self._runner.limit(limits)
        try:
            # The only child that its init has as yet. While the init lives nobody else reaps it, so the number is its.
            self._job_pidfd = os.pidfd_open(job_of(self._runner.pid))
        except OSError as error:
            raise LeewardError(f"runner {self._runner.number}: {error}") from error
        self._check_there()
        try:
            os.write(self._runner.job, wire.SESSION_BEGINS)  # into an empty pipe
        except OSError as error:
            raise LeewardError(f"runner {self._runner.number}: {error}") from error
        if self._runner.leaf.needs_ticks:
            self._tick_later()

    def _check_there(self) -> None:
        poll = select.poll()
        poll.register(self._runner.pidfd, select.POLLIN)
        if poll.poll(0):
            raise LeewardError(f"init {self._runner.pid} has gone")

    def run(self, job: Job, done: Callable[[Report], None]) -> Turn:
        """
        Send *job*; call only while none runs.

        Args:
            done: called once with the report.
        """
        self._withdraw()
        turn = self._next(job, done)
        turn.start()
        return turn

    def begun(self, job: Job, done: Callable[[Report], None], begun: Begun) -> Turn:
        """
        The short way has sent *job*.
        """
        self._offered = False
        turn = self._next(job, done)
        turn.begin(begun)
        return turn

    def ran(self, ran: Ran) -> None:
        """
        The short way has sent a job, and answered it; it may have the next one.
        """
        self._cpu_time += ran.cpu_time

    def keep(self) -> None:
        """
        The short way gets no more jobs: if one runs, its answer is ours.
        """
        if self._turn is not None:
            self._turn.take_back()

    def _next(self, job: Job, done: Callable[[Report], None]) -> Turn:
        turn: Turn
        turn = self._turn = Turn(
            self._reactor, job, self._runner, self._degraded, lambda report: self._answered(turn, report, done),
            lambda: self._answered(turn, _REFUSED, done), self._killed, alone=not self._crowded(),
            results=self._results, short=self._short)
        turn.counting_from(self._so_far())
        return turn

    def _so_far(self) -> Usage:
        if self._cpu_time:
            self._used = replace(self._used, cpu_time=self._used.cpu_time + self._cpu_time)
            self._cpu_time = 0.0
        return self._used

    def _answered(self, turn: Turn, report: Report, done: Callable[[Report], None]) -> None:
        self._turn = None
        turn.let_go()
        assert report.result is not None
        self._used = turn.used
        if report.told:
            self._offered = True  # the short way has its runner still
        else:
            self._runner.mark()
        outcome = report.result.outcome
        if self._empty or turn.stopped or turn.stray or outcome not in (Outcome.FINISHED, Outcome.RAISED):
            self._ending = self._ending or ENDS[outcome]
        done(report)
        if self._ending:
            self._release()

    # --- the short way --------------------------------------------------------

    def offer(self, limits: Limits, client: Client) -> None:
        """
        Let the short way have the next job. Call only while none runs.

        Args:
            client: the connection, and as its request the number under which it knows the session.
        """
        if self._short is None or self._offered or self._turn is not None or self._ending:
            return
        if limits.output < SHORT_OUTPUT or unread(self._runner.reply):
            return
        offer = self._runner.offer(self._runner.out, self._runner.err)
        if offer is None:
            return
        since_armed = self._so_far().cpu_time - self._runner.cpu_before
        self._offered = self._short.offer(replace(offer, session=client.request, stream=client.fd,
                                                  time_before=offer.time_before + since_armed))

    def _withdraw(self) -> None:
        if self._offered and self._short is not None:
            self._short.withdraw(self._runner.number)
        self._offered = False

    # --- meanwhile ------------------------------------------------------------

    def interrupt(self) -> bool:
        """
        SIGINT to the job's process, as soon as it has the job; is there a job?
        """
        if self._turn is None:
            return False
        self._interrupt(self._turn)
        return True

    def _interrupt(self, turn: Turn) -> None:
        if turn is not self._turn:
            return  # over meanwhile
        if turn.taken:
            self._signal(turn, signal.SIGINT)
            self._reactor.after(_NUDGE_S, partial(self._signal, turn, signal.SIGURG))
        else:
            self._reactor.after(_UNREAD_S, partial(self._interrupt, turn))

    def _signal(self, turn: Turn, number: int) -> None:
        if turn is self._turn:
            with contextlib.suppress(ProcessLookupError):  # dead: that will be seen
                signal.pidfd_send_signal(self._job_pidfd, number)

    def end(self, why: str) -> None:
        """
        Give the runner back. A job that runs is taken back first.
        """
        self._ending = self._ending or why
        if self._turn is None:
            self._release()
        else:
            self._turn.stop(Stop.CANCELLED)

    def emptied(self, status: int | None, reason: str) -> None:
        """
        No process of the runner is left.
        """
        self._empty = True
        if self._turn is not None:
            self._turn.emptied(status, reason)
            return
        if status is None:
            self._ending = self._ending or f"its process was lost: {reason}"
        elif os.WIFSIGNALED(status):
            oom = self._runner.leaf.usage().oom_kills > 0
            self._ending = self._ending or ENDS[Outcome.OUT_OF_MEMORY if oom else Outcome.SIGNALLED]
        else:
            self._ending = self._ending or ENDS[Outcome.FINISHED]
        self._release()

    def abandon(self) -> None:
        """
        It couldn't be opened: the runner goes, and no session hears of it.
        """
        self._lost = _nobody
        self._release()

    def _release(self) -> None:
        over, self._over = self._over, None
        if over is None:
            return
        self._withdraw()
        if self._ticks is not None:
            self._ticks.cancel()
        if self._job_pidfd >= 0:
            os.close(self._job_pidfd)
            self._job_pidfd = -1
        over()
        self._lost(self._ending)

    # --- between jobs, where no controller counts -----------------------------

    def _tick_later(self) -> None:
        self._ticks = self._reactor.after(self._runner.leaf.tick_interval, self._tick)

    def _tick(self) -> None:
        """
        Threads and children that jobs left are held to the limits as well; while a job runs it does this itself.
        """
        if self._turn is None and Limit.MEMORY == self._runner.tick():
            self.end(ENDS[Outcome.OUT_OF_MEMORY])
            return
        self._tick_later()


def _nobody(_why: str) -> None:
    return


#: The answer to a job that was not sent.
_REFUSED = Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL, error=JobError(
    "Ended", "a job before it broke the protocol of its reply pipe", "")))

