"""
One process of a live sandbox, as its clients see it: its output, its stdin, its end.

Theory of operation. A program that is *run* keeps what it writes within its output limit, and its one client gets a
report at the end. One that is *started* has its output read chunk by chunk: what nobody has taken waits in `Chunks`,
and while that is full its pipes aren't read, so that the process waits in write(2) and nobody else does. Each read and
each wait of a client is answered once: when there is something to report, when its time has passed, or when the sandbox
is over. Each reader has every chunk, and the process waits for the slowest, unless that has stopped.
Output beyond the limit ends the program, or, if it is to go on, is read with pauses, and its end is kept: in
the report, or as the last chunks.

A limit on processor time is enforced by checks. The next one is made when the program can have used up what is left, if
it runs all the time on all processors that it may have. So one that waits most of the time is checked seldom, and one
that computes is ended METER_S late at most, plus the delay of the event loop.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import NO_TIMER, Reactor, Timer
from leeward.daemon.run.output import EXCESS_CHUNK, Ends, ends_of
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import after
from leeward.daemon.run.verdict import Stop, Verdict, bug, ended, stopped, why_killed
from leeward.daemon.sandboxes.registry import PROCESS, Life, Moment
from leeward.daemon.sandboxes.streams import ROOM, STALE_S, STDERR, STDOUT, Chunks, Feed, KeptOutput, OutputChunk
from leeward.errors import SHORT, KernelRefusal
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.outcome import EXIT_INTERNAL, EXIT_SIGNAL_BASE, JobError, Limit, Outcome, Result

if TYPE_CHECKING:
    from leeward.daemon.run.launch import Exit
    from leeward.daemon.run.live_process import LiveProcess

#: Requests that may wait for one process.
MOST_WAITING = 64

#: The limits that a program itself tells of on stderr, in small letters: what the C library, languages and shells write
#: about ENOSPC, EMFILE, ENOMEM, and EAGAIN of fork(2), which nobody counts where there are no controllers.
_TOLD = {b"no space left on device": Limit.FILES, b"disk quota exceeded": Limit.FILES,
         b"too many open files": Limit.DESCRIPTORS,
         b"cannot allocate memory": Limit.MEMORY, b"memoryerror": Limit.MEMORY, b"heap out of memory": Limit.MEMORY,
         b"outofmemoryerror": Limit.MEMORY, b"std::bad_alloc": Limit.MEMORY,
         b"cannot fork": Limit.PROCESSES, b"fork: resource temporarily unavailable": Limit.PROCESSES,
         b"fork: retry: resource temporarily unavailable": Limit.PROCESSES, b"can't start new thread": Limit.PROCESSES}
#: Bytes of the stream's end so far that are looked at with the next chunk: a text may be cut anywhere.
_TAIL = max(map(len, _TOLD)) - 1

#: Seconds between two checks of a program's processor time, at least.
METER_S = 0.01
#: Seconds until another check after one for which there was no descriptor.
_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Order:
    """
    What program a process is to run, with its *title* in lists. None for *time*, *output* bytes and processor seconds
    (*cpu_time*, with descendants) is no limit. *cuts*: output beyond the limit is cut, else it ends the process.
    *kept*: it is for the report, else clients read it in chunks. A *terminal*'s one stream is stdout.
    """

    argv: tuple[str, ...]
    title: str
    folder: str
    time: float | None
    output: int | None
    cuts: bool
    kept: bool
    terminal: bool = False
    cpu_time: float | None = None
    processors: float = 1.0


@dataclass(slots=True)
class _Waits:
    after: int | None  # for a read: the number of the last chunk that its client has
    wake: Callable[[], None]
    timer: Timer = NO_TIMER


class LiveProgram:
    """
    A process that clients have started, from its start until it is forgotten. *usage* returns what the whole sandbox
    has used; *killed_unseen* is of its leaf; *over* is called once with the report.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, number: int, order: Order, usage: Callable[[], Usage],
                 killed_unseen: Callable[[int], bool | None], over: Callable[[Report], None],
                 degraded: tuple[str, ...] = ()) -> None:
        self._reactor, self.order, self._usage, self._over = reactor, order, usage, over
        self._degraded, self._killed_unseen = degraded, killed_unseen
        self.number = number
        self.life = Life.STARTING
        self.started = reactor.now()
        self.report: Report | None = None
        self.chunks = Chunks()
        self._kept = KeptOutput(order.output or 0, cuts=order.cuts) if order.kept else None
        self._room = order.output  # for chunks; None without a limit
        self._ends: Ends | None = None
        if order.cuts and order.output is not None and not order.kept:
            of_ends = ends_of(order.output, ROOM)
            self._ends, self._room = Ends(of_ends), order.output - of_ends
        self._omitted = 0, 0
        self._told: Limit | None = None
        self._tail = b""
        self._child: LiveProcess | None = None
        self.feed: Feed | None = None
        self._paused = self._killed = False
        self.waits: list[_Waits] = []
        self._stop: Stop | None = None
        self._fault = ""
        self._timer = self._meter = self._parting = NO_TIMER
        self._before = usage()
        self._spent_before = 0.0
        self._cut = False

    # --- its start --------------------------------------------------------------

    def begin(self, child: LiveProcess, spent: float = 0.0) -> None:
        """The process exists, as *child*. The first *spent* of its processor seconds aren't counted."""
        self._child, self._spent_before = child, spent
        self.feed = Feed(self._reactor, child)
        self._happen(Moment.STARTED)
        if self.order.kept:
            child.gather()
        if self.order.time is not None:
            self._timer = self._reactor.after(self.order.time, partial(self.stop, Stop.TIME))
            child.ends = self._reactor.now() + self.order.time
        self._look_later(0.0)

    def _look_later(self, spent: float) -> None:
        """Set the timer for the next check of the processor time, of which *spent* seconds are used."""
        most = self.order.cpu_time
        if most is not None:
            pause = max((most - spent) / self.order.processors, METER_S)
            self._meter = self._reactor.after(pause, self._look)

    def _look(self) -> None:
        if self._child is None or self.order.cpu_time is None or self.life is not Life.RUNNING:
            return
        try:
            spent = self._child.spent() - self._spent_before
        except (KernelRefusal, OSError) as error:
            if error.errno not in SHORT:
                raise
            spent = self.order.cpu_time - self.order.processors * _AGAIN_S  # not known now: look again soon
        if spent >= self.order.cpu_time:
            self.stop(Stop.CPU)
        else:
            self._look_later(spent)

    def _happen(self, moment: Moment) -> None:
        self.life = after("process", PROCESS, self.life, moment)

    @property
    def pid(self) -> int:
        return -1 if self._child is None else self._child.pid

    # --- while it runs ----------------------------------------------------------

    def output(self, stream: int, data: bytes) -> None:
        if self.life is Life.OVER or self._cut:
            return
        if stream == STDERR or self.order.terminal:
            lately = (self._tail + data).lower()
            self._told = next((limit for words, limit in _TOLD.items() if words in lately), self._told)
            self._tail = lately[-_TAIL:]
        try:
            exceeded, in_excess = self._keep(stream, data) if self._kept is not None else self._pass_on(stream, data)
        except OSError:
            self.stop(Stop.STORE)
            return
        if exceeded:
            self._cut = True
            self.stop(Stop.OUTPUT)
        elif in_excess and self._child is not None:
            self._child.slow()

    def _keep(self, stream: int, data: bytes) -> tuple[bool, bool]:
        """Keep *data* for the report. Returns whether it exceeds a limit that ends the process, and any limit."""
        assert self._kept is not None
        self._kept.put(stream, data)
        return self._kept.exceeded, self._kept.in_excess

    def _pass_on(self, stream: int, data: bytes) -> tuple[bool, bool]:
        """Add *data* to the chunks. Returns as `_keep`."""
        if self._killed and self.chunks.full:  # a killed process has to end, even if nobody reads its output
            self._cut = True
            return False, False
        rest = b""
        if self._room is not None:
            data, rest = data[:self._room], data[self._room:]
            self._room -= len(data)
        if data:
            self.chunks.put(stream, self._reactor.now(), data)
            self._wake_waiters()
            self._adjust()
        if self._ends is None:
            return bool(rest), False
        self._ends.put(stream - 1, rest)
        return False, not self._room

    def _put_ends(self) -> None:
        """Add the ends of the streams to the chunks, because the process is over."""
        ends, self._ends = self._ends, None
        if ends is None:
            return
        for stream in (STDOUT, STDERR):
            end = ends.take(stream - 1)
            for at in range(0, len(end), EXCESS_CHUNK):
                self.chunks.put(stream, self._reactor.now(), end[at:at + EXCESS_CHUNK])
        self._omitted = ends.dropped

    def complain(self, how: Exit) -> None:
        """Add the message that a shell would write about the program, which couldn't be started, to the output."""
        text = complaint(self.order.argv[0], self.order.folder, how)
        if self.order.terminal:
            self.output(STDOUT, text.replace(b"\n", b"\r\n"))
        else:
            self.output(STDERR, text)

    def _adjust(self) -> None:
        """Stop reading the process's pipes if no room is left for its output, and go on reading when there is room again."""
        child = self._child
        if child is None or self._killed or self.chunks.full is self._paused or self.life is not Life.RUNNING:
            return
        self._paused = self.chunks.full
        for stream in (1, 2):
            (child.pause if self._paused else child.resume)(stream)
        self._part_later()

    def _part_later(self) -> None:
        if self._paused and not self._parting.is_set and self.chunks.readers > 1:
            self._parting = self._reactor.after(STALE_S, self._part)

    def _part(self) -> None:
        """Go on without readers that have stopped, if the process waits for room."""
        if self._paused:
            self.chunks.part(self._reactor.now() - STALE_S)
            self._adjust()
            self._part_later()

    def read(self, reader: int, number: int) -> list[OutputChunk]:
        """The chunks after the number *number*. Those up to it are dropped when the other readers have them, too."""
        self.chunks.has(reader, number, self._reactor.now())
        self._adjust()
        return self.chunks.after(number)

    def more(self, number: int) -> bool:
        """Whether there is news for a reader that has the chunks up to *number*."""
        return self.chunks.more(number) or self.life is Life.OVER

    def wait(self, after: int | None, seconds: float, wake: Callable[[], None]) -> Callable[[], None]:
        """
        Call *wake* once, at a chunk after the number *after* (None: at the end), or in *seconds*. Returns what cancels
        it.
        """
        waits = _Waits(after, wake)
        self.waits.append(waits)
        waits.timer = self._reactor.after(seconds, partial(self._expire, waits))

        def take_back() -> None:
            self._forget(waits)
        return take_back

    def _expire(self, waits: _Waits) -> None:
        if self._forget(waits):
            waits.wake()

    def _forget(self, waits: _Waits) -> bool:
        waits.timer.cancel()
        if waits in self.waits:
            self.waits.remove(waits)
            return True
        return False

    def _wake_waiters(self) -> None:
        for waits in list(self.waits):
            if self.life is Life.OVER or (waits.after is not None and self.more(waits.after)):
                self._expire(waits)

    def signal(self, number: int) -> bool:
        """Send a signal to the process itself. Returns whether it exists."""
        return self._child is not None and self.life is Life.RUNNING and self._child.signal(number)

    def resize(self, rows: int, columns: int) -> bool:
        """Change the size of its terminal. Returns whether the process exists."""
        return self._child is not None and self.life is Life.RUNNING and self._child.resize(rows, columns)

    def stop(self, why: Stop) -> None:
        """End the process and its descendants; the report will give *why* as the cause."""
        if self._stop is None and self.life in (Life.STARTING, Life.RUNNING):
            self._stop = why
        self.kill()

    def kill(self) -> None:
        """End the process and its descendants, also those left after its end; the exit status is the kernel's."""
        if self._child is None:
            return
        if self.life is not Life.OVER:
            self._killed = True
            if self._paused:
                self._paused = False
                for stream in (1, 2):
                    self._child.resume(stream)
        self._child.kill()

    def broken(self, error: Exception) -> None:
        self._fault = self._fault or bug(error)
        if self.life is not Life.OVER:
            self.stop(Stop.BUG)

    # --- its end ----------------------------------------------------------------

    def exited(self, how: Exit) -> None:
        """Make the report: the process has ended, and all that it wrote was read."""
        if self.life is Life.OVER:
            return
        if self._child is not None:
            self._stop = self._stop or self._child.ended_by_watchdog
        usage, killed, unseen = self._usage(), None, partial(self._killed_unseen, how.memory_peak)
        if self._stop is not None:
            verdict = stopped(self._stop, self._fault)
        else:
            killed = why_killed(how.status, self._before, usage, nothing if self._killed else unseen)
            verdict = ended(how.status, how.reason, killed=killed)
            if killed is Stop.HOST and verdict.exit_code == EXIT_SIGNAL_BASE + signal.SIGKILL:  # or a shell's, of its child
                verdict = stopped(killed)
        self._finish(verdict, usage, how, killed)

    def lost(self, outcome: Outcome, why: str) -> None:
        """Make the report: the sandbox is over, for the reason *why*."""
        if self.life is Life.OVER:
            return
        if self._stop is not None:
            verdict = stopped(self._stop, self._fault)
        elif outcome is Outcome.OUT_OF_MEMORY:
            verdict = stopped(Stop.MEMORY)
        else:
            verdict = Verdict(Outcome.INTERNAL, EXIT_INTERNAL, error=JobError("SandboxOver", why, ""))
        self._finish(verdict, Usage(), None)

    def denied(self) -> Mapping[str, int]:
        """How often each call was refused so far, by name. Empty once it is over: its result has the numbers."""
        return {} if self._child is None or self.life is Life.OVER else self._child.denied()

    def _finish(self, verdict: Verdict, usage: Usage, how: Exit | None, killed: Stop | None = None) -> None:
        denied = self.denied() if how is None else how.denied
        self._happen(Moment.ENDED)
        for timer in (self._timer, self._meter, self._parting):
            timer.cancel()
        out, err, arena = b"", b"", None
        try:
            if self._kept is not None:
                out, err, arena = self._kept.take()
                self._omitted = self._kept.omitted
            else:
                self._put_ends()
        except OSError:
            verdict = stopped(Stop.STORE)
        limit = verdict.limit_beside(self._before, usage, killed) or self._told
        if limit is None and any(self._omitted):
            limit = Limit.OUTPUT
        result = Result(
            stdout=out, stderr=err, exit_code=verdict.exit_code, outcome=verdict.outcome, limit=limit,
            duration=self._reactor.now() - self.started,
            cpu_time=0.0 if how is None else max(0.0, how.cpu_time - self._spent_before),
            memory_peak=usage.memory_peak, denied=dict(denied),
            truncated=self._cut or any(self._omitted), degraded=self._degraded, error=verdict.error,
            stdout_omitted=self._omitted[0], stderr_omitted=self._omitted[1])
        self.report = Report(result=replace(result, stdout=b"", stderr=b""))
        in_any_case(self._close_feed, self._wake_waiters, partial(self._hand, Report(result=result, arena=arena)))

    def _hand(self, report: Report) -> None:
        self._over(report)

    def _close_feed(self) -> None:
        if self.feed is not None:
            self.feed.close()

    def drop(self) -> None:
        """Drop the output: no client can ask for the process any more."""
        self.chunks.drop()
        if self._kept is not None:
            self._kept.drop()


def complaint(program: str, folder: str, how: Exit) -> bytes:
    """The message that a shell would write about *program*, which couldn't be started in *folder*: *how* has the errno."""
    said = os.strerror(how.refused)
    if how.layer == "cwd":
        return f"sh: cannot start in {folder}: {said}\n".encode()
    if how.refused in (errno.ENOENT, errno.ENOTDIR) and "/" not in program:
        said = "not found"
    return f"sh: {program}: {said}\n".encode()
