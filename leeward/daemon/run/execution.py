"""
One job on one runner: send it, watch it, say how it ended.

Theory of operation. `Execution.start` writes the frame. Then the execution waits for the first of these events:

    reply complete           the main module ended; answer at once, then kill the processes that are left
    runner empty (Ended)     the job ended by itself: os._exit, a signal, the OOM killer
    time, output, memory     kill the job; the answer waits until the runner is empty
    cancelled                kill the job; nobody is answered

The daemon alone decides outcome, limit, times and counts. The report passes three objects, also when a callback fails:
the execution calls `conclude` of its holder once (the worker's Leasing, or a session's Lease), which lets the Caller
(the ticket of the pool) answer before it ends the runner or prepares it for the next job. A job that no runner has read
passes them by `gone` and `lost`; its ticket waits for another worker.

The shim handles a job on the fast path until the job ends normally (`completed`), ends otherwise (`handed_over`), or is
withdrawn (`take_back`). In the last two cases the job's reply is read here, as that of any other job.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from leeward._native.loop import Offer
from leeward.base.dataclass import replace
from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.fast_path import FastPath, ReplyAddress
from leeward.daemon.loop.reactor import NO_TIMER, READ, WRITE, JobStart, Reactor, Timer
from leeward.daemon.run.output import Output, OutputWatch, unread
from leeward.daemon.run.reply import REPLY_CHUNK, ReplyReader
from leeward.daemon.run.report import SHORT_OUTPUT, Report, inline_bytes, internal
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.starvation import FIRST_S, NEXT, Starvation
from leeward.daemon.run.verdict import (
    Fault,
    Stop,
    Verdict,
    brought,
    bug,
    ended,
    may_be_fault,
    overspent,
    replied,
    stopped,
    why_killed,
    with_network,
)
from leeward.errors import LeewardError, PeerError
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.job import Job
from leeward.spec.outcome import Limit, Outcome, Result
from leeward.wire import job_frames as wire
from leeward.wire.answers import encode_result

if TYPE_CHECKING:
    from leeward.daemon.worker.terms import WorkerSettings


#: Pieces of one write (IOV_MAX is 1024), and the bytes after which the pipe is left for the next turn of the loop: a
#: runner that reads as fast as the daemon writes would hold the loop until it has all.
_PIECES, MOST = 64, 1 << 20


class FrameWriter:
    """Writes the frame of one job to the job pipe of *runner*."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: deque[memoryview] = deque()
        self.unsent = 0  # bytes of the frame that the pipe hasn't taken

    def set_out(self, pieces: Sequence[bytes | memoryview], unsent: int | None = None) -> None:
        """Send the frame that consists of *pieces*, or only its last *unsent* bytes."""
        self._waiting = deque(memoryview(piece) for piece in pieces)
        self.unsent = sum(map(len, pieces))
        if unsent is not None:
            self._taken(self.unsent - unsent)

    def go_on(self) -> bool:
        """Write as much of the frame as the pipe takes, MOST bytes at most. Returns whether nothing is left to write."""
        until = max(0, self.unsent - MOST)
        try:
            while self.unsent > until:
                self._taken(os.writev(self._runner.job, self._first(self.unsent - until)))
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the runner has ended; the report of its end gives the reason
        return not self.unsent

    def _first(self, most: int) -> list[memoryview]:
        pieces = []
        for piece in islice(self._waiting, _PIECES):
            pieces.append(piece[:most])
            most -= len(piece)
            if most <= 0:
                break
        return pieces

    def _taken(self, count: int) -> None:
        self.unsent -= count
        waiting = self._waiting
        while waiting and count >= len(waiting[0]):
            count -= len(waiting.popleft())
        if count:
            waiting[0] = waiting[0][count:]

    @property
    def left(self) -> int:
        """The number of bytes of the frame that the runner hasn't read, as far as the daemon can tell."""
        return self.unsent or unread(self._runner.job)


class Caller(Protocol):
    """The sender of a job. *client* is where the answer goes, if it may go by the fast path."""

    @property
    def job(self) -> Job: ...
    @property
    def client(self) -> ReplyAddress | None: ...

    def finished(self, report: Report) -> None:
        """Answer the client with the report. Called once."""

    def lost(self) -> None:
        """Called instead of `finished` if the job hasn't started: its runner was gone before it had read the code."""


class Holder(Protocol):
    """The object that has the runner on which a job runs."""

    @property
    def terms(self) -> WorkerSettings: ...

    def killed(self, runner: Runner) -> None:
        """*runner* was killed: `emptied` has to follow."""

    def conclude(self, execution: Execution, report: Report) -> None:
        """Call `finished` of the execution's caller; then end the runner, or prepare it for the next job."""

    def gone(self, execution: Execution) -> None:
        """Called if the runner has ended before any part of the job has run."""


class RunnerUser(Holder, Protocol):
    @property
    def crowded(self) -> bool:
        """Whether other jobs wait for the daemon."""

    def give_back(self, runner: Runner) -> None:
        """Take *runner* back from the session."""


#: Seconds that a job whose time is up has to return its files; and seconds until the signal is sent once more, because
#: CPython handles a signal that came right before a sleeping call only when that call ends.
COLLECT_S, _AGAIN_S = 0.5, 0.02
#: Seconds between two checks whether the frame of a job that is to be interrupted was read.
_UNREAD_S = 0.001
#: Seconds between two looks at a job's processor time, or at its own time, at least.
METER_S = 0.005
#: Seconds after which the daemon is late to read a full pipe, which the job hasn't to answer for.
LATE_S = 0.02
#: As _AGAIN_S, after an interrupt: SIGURG, because its default action is to be ignored, and again after twice the time,
#: while that is below _LAST_NUDGE_S, since a job without a processor takes several of them for one.
_NUDGE_S, _LAST_NUDGE_S = 0.02, 1.0

_ANY = Result(b"\n", b"", 0, Outcome.FINISHED, duration=0.001, cpu_time=0.001, memory_peak=1 << 20)


class Execution:
    """
    The run of one job. *holder* has *runner* until the job is over, and *caller* gets the report. *alone*: no other job
    waits for the daemon, so it may rehearse the answer. *fast_path* answers the client in the shim, if there is one.
    """

    costs = "job"

    _asks_when_late = True  # at its time limit the job is asked for the files to collect

    def __init__(self, reactor: Reactor, runner: Runner, holder: Holder, caller: Caller, *, alone: bool = False,
                 fast_path: FastPath | None = None) -> None:
        self._reactor = reactor
        self.runner = self._runner = runner
        self._holder, self.caller = holder, caller
        self._job = caller.job
        self._alone = alone
        self._fast_path, self._client = fast_path, caller.client
        self._on_fast_path = False  # the shim waits for the reply
        self.answered = self.over = False
        self._fault = ""
        self.started = 0.0  # by the reactor's clock; 0.0 before
        self.output = self._open_output(holder.terms.results)
        self.before = self.used = Usage(cpu_time=runner.cpu_before)
        self._errand = FrameWriter(runner)
        self._reply = ReplyReader(self._job)
        self._timers: dict[str, Timer] = {}  # by purpose
        self._output_watch: OutputWatch | None = None
        self._starvation: Starvation | None = None
        self._late = False  # the job's time is up, and it was told to return its files
        self._stop: Stop | None = None
        self._watched: set[int] = set()

    @property
    def stopped(self) -> bool:  # by the daemon
        return self._stop is not None

    # --- overridden for the jobs of a session ----------------------------------

    def _open_output(self, results: str) -> Output:
        limits = self._job.limits
        return Output(*self._runner.give_output(), limits.output, memory=limits.memory, cuts=limits.cuts_output,
                      inline=inline_bytes(results, files=bool(self._job.collect) or self._job.display))

    def _prepare(self) -> None:
        """Prepare the runner, before the code is sent; LeewardError if it is gone, or a limit can't be set."""
        self._runner.limit(self._job.limits)

    def _frame(self) -> Sequence[bytes | memoryview]:  # in pieces
        return wire.job_pieces(self._job, self._runner.variables)

    def _close_pipes(self) -> None:
        self.output.close_pipes()

    def _judged(self, verdict: Verdict) -> Verdict:
        return verdict

    # --- starting -------------------------------------------------------------

    def start(self) -> None:
        """Send the code, and start the clock of the time limit."""
        try:
            self._prepare()
        except LeewardError:
            self._give_up()
            return
        offer = self._offer()
        self._errand.set_out(self._frame())
        if self._job.limits.wall is not None:  # before the job can wait for a processor
            self._starvation = Starvation(self._runner.pid, self._processors, self._reactor.now(),
                                          self._runner.leaf.cpu_time())
        self.started = self._reactor.now()
        self._send()  # first, so that the runner works while the daemon prepares to watch it
        if not self._errand.unsent and offer is not None and self._fast_path is not None and self._client is not None:
            self._on_fast_path = self._fast_path.adopt(offer, self._client, self.started)
        self._go_on()

    def begin(self, start: JobStart) -> None:
        """Watch a job that the fast path has started."""
        self.started = start.started
        self._on_fast_path = not start.unsent
        if start.unsent and self._fast_path is not None:  # for instance, the pipe had no memory for all of it
            self._errand.set_out(self._frame(), start.unsent)
            self._fast_path.withdraw(self._runner.number)
            self._send()
        self._go_on()

    def _offer(self) -> Offer | None:
        """The description of the runner for the fast path, if the fast path may answer."""
        job = self._job
        limits = job.limits
        if self._client is None or job.collect or job.display or job.label or limits.output < SHORT_OUTPUT or (
                limits.cpu_time is not None or limits.wall is not None):
            return None
        return self._runner.offer(self.output.out.fd, self.output.err.fd)

    def _go_on(self) -> None:
        if self._on_fast_path and self._fast_path is not None:
            self._fast_path.expect(self._runner.number, self)
        else:
            self._watch(self._runner.reply, READ, self._on_reply)
            if self._alone:
                self._reactor.soon(self._rehearse)
        self._reactor.soon(self._keep_time)  # most short jobs are over in the turn that reports them

    def _keep_time(self) -> None:
        if self.over:
            return
        reactor = self._reactor
        limits = self._job.limits
        self._timers["time"] = reactor.at(self.started + limits.time,
                                          self._out_of_time if limits.wall is None else self._check_time)
        if limits.cpu_time is not None:
            self._meter_later(0.0)
        if limits.wall is not None:
            self._timers["starved"] = reactor.after(FIRST_S, self._look)
        self._timers["tick"] = reactor.at(self.started + self._runner.leaf.tick_interval, self._tick)
        self._output_watch = OutputWatch(reactor, self.output, self, self.started)

    def _tick(self) -> None:
        """Check the job, now and at intervals, for limits that the kernel doesn't enforce."""
        if self._runner.leaf.needs_ticks:
            self.take_back()  # what is seen now is more than the fast path would tell
        if self._runner.tick() == Limit.MEMORY:
            self.stop(Stop.MEMORY)
        if not self.over:
            self._timers["tick"] = self._reactor.after(self._runner.leaf.tick_interval, self._tick)

    # --- processor time, and the lack of it -------------------------------------

    @property
    def _processors(self) -> float:
        return 1.0 if self._runner.leaf.cpu() is not None else self._job.limits.cpu / 100

    def _meter_later(self, spent: float) -> None:
        """Set the timer for the next look at the processor time, of which *spent* seconds are used."""
        assert self._job.limits.cpu_time is not None
        pause = max((self._job.limits.cpu_time - spent) / self._processors, METER_S)
        self._timers["meter"] = self._reactor.after(pause, self._meter)

    def _meter(self) -> None:
        if self.over or self.stopped:
            return
        spent = self._runner.leaf.cpu_time() - self.before.cpu_time
        if self._overspent(spent):
            self.stop(Stop.CPU)
        else:
            self._meter_later(spent)

    def _overspent(self, spent: float) -> bool:
        return self._job.limits.cpu_time is not None and spent >= self._job.limits.cpu_time

    def _look(self) -> None:
        """Count for how long the job was starved, and look again after a part of the time so far."""
        if self.over or self.stopped or self._starvation is None:
            return
        now = self._reactor.now()
        self._starvation.look(now, self._runner.leaf.cpu_time())
        pause = max(FIRST_S, NEXT * (now - self.started), self._starvation.pause)
        self._timers["starved"] = self._reactor.after(pause, self._look)

    @property
    def counts_waiting(self) -> bool:
        """Whether it is asked for how long the job waited for the machine."""
        return self._starvation is not None

    def waited_for_us(self, seconds: float) -> None:
        """For the watch of its output: a pipe was full when it was read, for which the daemon was late by *seconds*."""
        if self._starvation is not None and seconds > LATE_S:
            self._starvation.seconds += seconds

    def _check_time(self) -> None:
        """End the job if its own time is up, or all that it has by the wall's clock."""
        limits, starvation = self._job.limits, self._starvation
        if self.over or self.stopped or limits.wall is None or starvation is None:
            return
        now, spent = self._reactor.now(), self._runner.leaf.cpu_time()
        starvation.look(now, spent)
        passed = now - self.started
        own = partial(starvation.own_time, passed, spent - self.before.cpu_time)
        if own() >= limits.time and self._output_watch is not None and not self._output_watch.take_full():
            return  # the daemon may have been as late as the job
        surely = own() - starvation.unknown >= limits.time
        if own() >= limits.time and (starvation.settled or surely):
            self._out_of_time()
        elif passed >= limits.wall:
            self._on_reply(0)  # the loop may be late although the job isn't
            if not self._has_ended(self._check_time):
                self.stop(Stop.STARVED)
        else:
            again = min(limits.time - own(), limits.wall - passed)
            self._timers["time"] = self._reactor.after(max(again, METER_S, starvation.pause), self._check_time)

    # --- the fast path --------------------------------------------------------

    def take_back(self) -> None:
        """Withdraw the job from the fast path: from now on only Python reads the reply."""
        if self._on_fast_path and self._fast_path is not None:
            self._on_fast_path = False
            self._fast_path.withdraw(self._runner.number)
            self._watch(self._runner.reply, READ, self._on_reply)

    def completed(self, ended: float, cpu_time: float, memory_peak: int) -> None:
        """For the fast path: the job has finished without details, and the client has its answer."""
        self._on_fast_path = False
        before = self.before
        self.used = replace(before, cpu_time=before.cpu_time + cpu_time)
        if self.over:
            return
        self.over = True
        result = Result(stdout=b"", stderr=b"", exit_code=0, outcome=Outcome.FINISHED, duration=ended - self.started,
                        cpu_time=cpu_time, memory_peak=memory_peak, degraded=self._holder.terms.degraded)
        try:
            self._holder.conclude(self, Report(result=result, answered=True))
        finally:
            self._give_back()

    def handed_over(self, reply: bytes) -> None:
        """For the fast path: handle *reply* in Python, because it has details or is invalid."""
        self._on_fast_path = False
        if self.over:
            return
        self._watch(self._runner.reply, READ, self._on_reply)
        self._reply.feed(reply)
        self._on_reply(0)

    def _rehearse(self) -> None:
        """
        Take the steps of the answer, without any effect, while the job runs and the daemon would sleep. After some idle
        milliseconds neither that code nor the kernel's part of it is in the processor's caches any more, and the client
        would wait until it is loaded again.
        """
        if not self.over:
            self._runner.leaf.usage()
            self._runner.denied()
            wire.read_reply(wire.NOTHING_TO_TELL, 0)
            encode_result(0, _ANY)

    def _send(self, _events: int = 0) -> None:
        if self._errand.go_on():
            self._forget(self._runner.job)  # the pipe stays open, to find out how much was read
        elif self._runner.job not in self._watched:
            self._watch(self._runner.job, WRITE, self._send)

    def _not_started(self, status: int | None) -> bool:
        """Whether the runner was killed from outside before it had read the frame; one too large ends any runner."""
        left = self._errand.left
        killed = status is None or os.WIFSIGNALED(status)
        return left > 0 and killed and not self._runner.leaf.usage().oom_kills

    def _give_up(self) -> None:
        """Tell the holder that nothing of the job has run, so that another runner gets it."""
        self.over = True
        in_any_case(self.release, self._close_pipes, self.output.drop, partial(self._holder.gone, self))

    # --- while it runs --------------------------------------------------------

    def _on_reply(self, _events: int) -> None:
        try:
            complete = self._read_reply(REPLY_CHUNK)
        except (PeerError, OSError) as error:
            self._forget(self._runner.reply)  # nobody reads the rest, and the pipe would wake the loop again and again
            self.stop(Stop.REPLY if isinstance(error, PeerError) else Stop.STORE)
            return
        if complete and self._late:
            self.stop(Stop.TIME)
        elif complete:
            self._finish(None)

    def _read_reply(self, most: int) -> bool:
        """Read about *most* bytes, so that a large reply takes several turns. Returns whether the reply is complete."""
        complete = self._reply.read(self._runner.reply, most)
        if self._reply.closed:  # the job's exit status follows
            self._forget(self._runner.reply)
        return complete

    def _out_of_time(self) -> None:
        """End the job; but one with `collect` is first told to return its files, by the signal LATE (inside/answer.py)."""
        self.take_back()
        self._on_reply(0)  # the loop may be late although the job isn't
        if self._has_ended(self._out_of_time):
            return
        if self._asks_when_late and self._job.collect and not (self._errand.unsent or self.over or self.stopped) \
                and self._runner.signal(wire.LATE):
            self._late = True
            self._timers["ask"] = self._reactor.after(_AGAIN_S, self._ask_again)
            self._timers["collect"] = self._reactor.after(COLLECT_S, partial(self.stop, Stop.TIME))
        else:
            self.stop(Stop.TIME)

    def _has_ended(self, callback: Callable[[], None]) -> bool:
        """Whether the job has ended by itself, and on a busy host only its status is late; then *callback* comes soon."""
        if self.over or self.stopped or not self._reply.closed or not self._runner.has_ended():
            return False
        self._timers["time"] = self._reactor.after(_AGAIN_S, callback)
        return True

    def _ask_again(self) -> None:
        if not self.over and not self.stopped:
            self._runner.signal(wire.LATE)

    def stop(self, why: Stop) -> None:
        """End the job. The answer is made when no process of the job is left."""
        if self._stop is None and not self.over:
            self._stop = why
            last = [self._runner.tick] if self._runner.leaf.needs_ticks else ()  # usage can't be read afterwards
            in_any_case(*last, self._runner.kill, partial(self._holder.killed, self._runner), self.take_back)

    def interrupt(self) -> None:
        """
        Raise KeyboardInterrupt in the job by a SIGINT, which it may handle or ignore, once it has read its whole frame:
        an earlier one would hit code of leeward, or in a session the previous job.
        """
        self._timers.get("interrupt", NO_TIMER).cancel()
        if self.over:
            return
        taken = self.taken
        if taken:
            self.signal(signal.SIGINT)
            self._nudge_in(_NUDGE_S)
        else:
            self._timers["interrupt"] = self._reactor.after(_UNREAD_S, self.interrupt)

    def _nudge_in(self, pause: float) -> None:
        self._timers["interrupt"] = self._reactor.after(pause, partial(self._nudge, 2 * pause))

    def _nudge(self, pause: float) -> None:
        if not self.over:
            self.signal(signal.SIGURG)
            if pause < _LAST_NUDGE_S:
                self._nudge_in(pause)

    @property
    def taken(self) -> bool:
        return not self._errand.left

    def signal(self, number: int) -> None:
        self._runner.signal(number)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. Ends the job, if it hasn't ended."""
        self._fault = self._fault or bug(error)
        if self.over:
            self._give_back()
        elif self.answered:  # another report would answer the client again
            self._stop = self._stop or Stop.BUG
            self._finish((None, self._fault))
        else:
            self.stop(Stop.BUG)

    # --- the end --------------------------------------------------------------

    def emptied(self, status: int | None, reason: str) -> None:
        """For the holder: no process of the runner is left; *status* is its wait status, or None for *reason*."""
        if self.over:
            return
        try:
            self.take_back()
            why = self._stop or self._ended_by_watchdog()
            if why is None and self._not_started(status):
                self._give_up()
                return
            complete = self._stop is None and self._read_reply(self._reply.most)
            self._stop = self._stop if complete else why
            if self._late:
                self._stop, complete = self._stop or Stop.TIME, False
        except PeerError:
            complete = False
        except OSError:
            self._stop, complete = Stop.STORE, False
        except Exception as error:
            self._fault, self._stop, complete = bug(error), Stop.BUG, False
            self._reactor.barrier.note(self.emptied, error)
        if not self.over:
            self._finish(None if complete else (status, reason))

    def _ended_by_watchdog(self) -> Stop | None:
        """Why the watchdog has ended the job: one with a bound by the wall's clock isn't blamed for what it didn't use."""
        why, own = self._runner.ended_by_watchdog, self._starvation
        if why is not Stop.TIME or own is None:
            return why
        spent = self._runner.leaf.cpu_time() - self.before.cpu_time
        return Stop.TIME if own.surely_used(self.started, spent) >= self._job.limits.time else Stop.STARVED

    def _finish(self, end: tuple[int | None, str] | None) -> None:
        """Make the report; *end* is None if a complete reply says how the job ended."""
        if self.over:
            return
        self.over = True
        try:
            report = self._report(end, self._reactor.now() - self.started)
        except Exception as error:
            self._reactor.barrier.note(self._finish, error)
            self._reactor.barrier.steps(self.output.drop)
            report = internal("Bug", bug(error), self._reactor.now() - self.started, self._holder.terms.degraded)
        if self.answered:
            report.answered = True
            report.close()
        try:
            self._holder.conclude(self, report)
        finally:  # after the answer, because giving back isn't urgent
            self._give_back()

    def _report(self, end: tuple[int | None, str] | None, duration: float) -> Report:
        memfd, fault = self._take_output(faulted=end is not None and may_be_fault(end[0]))
        try:
            if end is None and self._starvation is not None:
                self._starvation.look(self._reactor.now(), self._runner.leaf.cpu_time())
            if end is None and self._runner.leaf.needs_ticks:
                self._runner.tick()  # the job's processes are still there to be counted
            before, output = self.before, self.output
            usage = self.used = self._runner.leaf.usage()
            killed = self._why_killed(end, usage)
            if self._stop is not None:
                verdict = stopped(self._stop, self._fault)
            elif end is None:
                verdict = replied(self._reply.parsed)
            else:
                verdict = ended(*end, killed=killed, fault=fault)
            if self._overspent(usage.cpu_time - before.cpu_time):
                verdict = overspent(verdict)
            if killed is Stop.HOST and not self._runner.leaf.shared:
                verdict = stopped(Stop.HOST)
            cut, late = self._stop is not None or end is not None, self._late and self._reply.complete
            if self._job.collect and cut:
                verdict = brought(verdict, self._reply.parsed if late else None, self._job)
            verdict = self._judged(verdict)
            result = Result(
                stdout=bytes(output.out.head), stderr=bytes(output.err.head), exit_code=verdict.exit_code,
                outcome=verdict.outcome, duration=duration,
                limit=verdict.limit_beside(before, usage, killed) or (Limit.OUTPUT if output.truncated else None),
                cpu_time=max(0.0, usage.cpu_time - before.cpu_time), memory_peak=usage.memory_peak,
                denied=with_network(self._runner.denied()), truncated=output.truncated,
                stdout_omitted=output.omitted[0], stderr_omitted=output.omitted[1],
                degraded=self._holder.terms.degraded, error=verdict.error, files=verdict.files,
                left_out=verdict.left_out, results=verdict.results, value=verdict.value,
                starved=None if self._starvation is None else min(self._starvation.seconds, duration),
            )
            files = self._reply.give_files() if late or not cut else None
            return Report(result=result, arena=output.arena(memfd) if memfd >= 0 else None, files=files)
        except BaseException:
            if memfd >= 0:
                os.close(memfd)
            raise

    def _why_killed(self, end: tuple[int | None, str] | None, usage: Usage) -> Stop | None:
        status = None if end is None else end[0]
        unseen = partial(self._runner.leaf.killed_unseen, self._runner.largest)
        return why_killed(status, self.before, usage, unseen if self._stop is None else nothing)

    def _take_output(self, *, faulted: bool) -> tuple[int, Fault | None]:
        """Read the rest of the pipes. Returns the sealed memfd of large output, or -1; and the text of a fault, or None."""
        try:
            self.output.take_rest()
            self.output.join()
            fault = self.output.take_fault() if faulted else None
            return self.output.seal(), fault
        except OSError:
            self._stop = Stop.STORE
            self.output.drop()
            return -1, None
        finally:
            if self._stop is None and self.output.exceeded:
                self._stop = Stop.OUTPUT  # the rest in the pipes has exceeded the limit

    def _give_back(self) -> None:
        try:
            self.release()
        finally:
            self._close_pipes()

    # --- descriptors ----------------------------------------------------------

    def _watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        if fd >= 0 and not self.over:
            self._reactor.watch(fd, events, callback)
            self._watched.add(fd)

    def _forget(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            self._reactor.forget(fd)

    def release(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        try:
            if self._on_fast_path and self._fast_path is not None:
                self._on_fast_path = False
                self._fast_path.withdraw(self._runner.number)
        finally:
            for fd in tuple(self._watched):
                self._forget(fd)
            self._reply.close()
            watch, self._output_watch = self._output_watch, None  # a reference cycle would keep the job in memory
            if watch is not None:
                watch.close()
