"""
One job on one runner: send it, watch it, say how it ended.

Runs in:   the daemon.

Theory of operation. Started by `Execution.start`, which writes the frame, it waits for
whichever comes first:

    reply complete           the main module ended; answer at once, then kill what is left
    runner empty (Ended)     it ended by itself: os._exit, a signal, the OOM killer
    time, output, memory     kill; the answer waits until the runner is empty
    cancelled                the same, and nobody is answered

It calls *done* exactly once. The daemon alone says outcome, limit, times and counts.
"""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Callable

from leeward._native.loop import Offer
from leeward.dataclass import replace
from leeward.errors import LeewardError, PeerError
from leeward.isolation.cgroup.entry import Usage
from leeward.outcome import (
    EXIT_INTERNAL,
    EXIT_OUT_OF_MEMORY,
    EXIT_OUTPUT_LIMIT,
    EXIT_SIGNAL_BASE,
    EXIT_TIMED_OUT,
    JobError,
    Limit,
    Outcome,
    Result,
)
from leeward.spec.job import Job
from leeward.wire import job as wire
from leeward.wire.messages import encode_result
from leeward.worker.express import Client, Express
from leeward.worker.output import Output, Stream, inline_bytes, unread
from leeward.worker.reactor import READ, WRITE, Reactor, Timer
from leeward.worker.report import Arena, Report
from leeward.worker.runner import Runner
from leeward.worker.stream import Begun

#: Output is left in the pipes this long: a short job's is taken in one go at its end, and
#: the daemon isn't woken for every line. A pipe holds 64 KiB; a flood waits 5 ms once.
_FIRST_LOOK_S = 0.005
#: Unless that much is in one of them before, which a job waits with that writes more than a pipe holds.
_FLOOD, _FLOOD_LOOK_S = 32 << 10, 0.001

#: The short way takes at most this much output, with room to spare; a job that may have less goes the long one.
SHORT_OUTPUT = 64 << 10

_REPLY_CHUNK = 1 << 20
#: Beside its content, what a collected file may cost in the reply.
_PER_FILE = 1100


class Stop(enum.Enum):
    """
    Why we ended a job that hadn't ended.
    """

    TIME = "time"
    OUTPUT = "output"
    MEMORY = "memory"
    REPLY = "reply"  # its reply broke the protocol
    STORE = "store"  # the daemon ran out of descriptors or memory for its output
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"


class Execution:
    """
    The run of one job.

    Args:
        done: called once with the report, when the client may be answered.
        lost: called instead of *done* if the runner was gone before it had read the whole
            code: the job has not started and may run elsewhere.
        killed: called when the runner was killed, and `emptied` has to follow.
        alone: nobody waits for the daemon while the job runs, so that it may rehearse the answer.
        short: takes the answer the short way, where there is one.
        client: where the answer goes, if it may go that way.
        results: how output travels, of output.RESULTS.
    """

    def __init__(self, reactor: Reactor, job: Job, runner: Runner, degraded: tuple[str, ...],
                 done: Callable[[Report], None], lost: Callable[[], None], killed: Callable[[], None], *,
                 alone: bool = False, short: Express | None = None, client: Client | None = None,
                 results: str = "auto") -> None:
        self._reactor = reactor
        self._job = job
        self._runner = runner
        self._degraded = degraded
        self._done: Callable[[Report], None] | None = done
        self._lost = lost
        self._killed = killed
        self._alone = alone
        self._short, self._client = short, client
        self._short_now = False  # the shim waits for the reply
        self._output = self._open_output(results)
        self._before = self._used = Usage(cpu_time=runner.cpu_before)
        self._unsent = memoryview(b"")
        self._reply = bytearray()
        self._reply_size = 0  # with its header, once that is here
        self._timers: list[Timer] = []
        self._stop: Stop | None = None
        self._started = 0.0
        self._watched: set[int] = set()

    @property
    def over(self) -> bool:
        """
        Has *done* (or *lost*) been called?
        """
        return self._done is None

    # --- what a job of a session does otherwise --------------------------------

    def _open_output(self, results: str) -> Output:
        return Output(*self._runner.give_output(), self._job.limits.output, memory=self._job.limits.memory,
                      inline=inline_bytes(results, files=bool(self._job.collect)))

    def _prepare(self) -> None:
        """
        Before the code is sent.

        Raises:
            LeewardError: it can't be.
        """
        self._runner.limit(self._job.limits)

    def _frame(self) -> bytes:
        return wire.job_frame(self._job)

    def _close_pipes(self) -> None:
        self._output.close_pipes()

    # --- starting -------------------------------------------------------------

    def start(self) -> None:
        """
        Send the code; the time limit counts from here.
        """
        try:
            self._prepare()
        except LeewardError:
            self._give_up()
            return
        offer = self._offer()
        self._unsent = memoryview(self._frame())
        self._started = time.monotonic()
        self._send()  # first: the runner is awake and at work while we make ready to watch it
        if not self._unsent and offer is not None and self._short is not None and self._client is not None:
            self._short_now = self._short.adopt(offer, self._client, self._started)
        self._go_on()

    def begin(self, begun: Begun) -> None:
        """
        Go on with what the short way has started.
        """
        self._started = begun.started
        self._short_now = not begun.unsent
        if begun.unsent and self._short is not None:  # there was no memory for all of it in the pipe, say
            frame = self._frame()
            self._unsent = memoryview(frame)[len(frame) - begun.unsent:]
            self._short.withdraw(self._runner.number)
            self._send()
        self._go_on()

    def _offer(self) -> Offer | None:
        """
        The runner as the short way has to know it, if the answer may go that way.
        """
        if self._client is None or self._job.collect or self._job.limits.output < SHORT_OUTPUT:
            return None
        return self._runner.offer(self._output.out.fd, self._output.err.fd)

    def _go_on(self) -> None:
        if self._short_now and self._short is not None:
            self._short.expect(self._runner.number, self)
        else:
            self._watch(self._runner.reply, READ, self._on_reply)
            if self._alone:
                self._reactor.soon(self._rehearse)
        self._reactor.soon(self._keep_time)  # most short jobs are over in the turn that tells of them

    def _keep_time(self) -> None:
        if self.over:
            return
        reactor = self._reactor
        self._timers.append(reactor.at(self._started + self._job.limits.time, lambda: self.stop(Stop.TIME)))
        self._look_for_flood(self._started + _FLOOD_LOOK_S)
        self._timers.append(reactor.at(self._started + self._runner.leaf.tick_interval, self._tick))

    # --- the short way --------------------------------------------------------

    def take_back(self) -> None:
        """
        From here on the reply is for us alone.
        """
        if self._short_now and self._short is not None:
            self._short_now = False
            self._short.withdraw(self._runner.number)
            self._watch(self._runner.reply, READ, self._on_reply)

    def told(self, ended: float, cpu_time: float, memory_peak: int) -> None:
        """
        The client has its answer: an end in order, with nothing to tell.
        """
        self._short_now = False
        self._used = replace(self._before, cpu_time=self._before.cpu_time + cpu_time)
        done, self._done = self._done, None
        if done is None:
            return
        result = Result(stdout=b"", stderr=b"", exit_code=0, outcome=Outcome.FINISHED, duration=ended - self._started,
                        cpu_time=cpu_time, memory_peak=memory_peak, degraded=self._degraded)
        try:
            done(Report(result=result, told=True))
        finally:
            self._release()
            self._close_pipes()

    def handed(self, reply: bytes) -> None:
        """
        The end has something to tell, or isn't one.
        """
        self._short_now = False
        if self.over:
            return
        self._watch(self._runner.reply, READ, self._on_reply)
        self._reply += reply
        self._on_reply(0)

    def _rehearse(self) -> None:
        """
        Go the way of an answer once, while the job runs and we would sleep.

        After some idle milliseconds that code, the kernel's too, has left the processor's caches, and the
        client would wait for each line of it to come back.
        """
        if self.over:
            return
        self._runner.leaf.usage()
        self._runner.denied()
        wire.read_reply(wire.NOTHING_TO_TELL, 0)
        encode_result(0, _ANY)

    def _send(self, _events: int = 0) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._runner.job, self._unsent):]
        except BlockingIOError:
            if self._runner.job not in self._watched:
                self._watch(self._runner.job, WRITE, self._send)
            return
        except BrokenPipeError:
            pass  # it died; its end, when it is seen, tells why
        self._forget(self._runner.job)  # open it stays: it tells how much was read

    def _not_started(self, status: int | None) -> bool:
        """
        Was the runner killed from outside before it had read the whole frame?

        An exit, or an end for want of memory, is the doing of a job too large to be read: it
        would go the same way elsewhere.
        """
        left = len(self._unsent) or unread(self._runner.job)
        killed = status is None or os.WIFSIGNALED(status)
        return left > 0 and killed and not self._runner.leaf.usage().oom_kills

    def _give_up(self) -> None:
        """
        Nothing of the job has run: let it run elsewhere.
        """
        lost, self._done = self._lost, None
        self._release()
        self._close_pipes()
        self._output.drop()
        lost()

    # --- while it runs --------------------------------------------------------

    def _look_for_flood(self, when: float) -> None:
        """
        Look every millisecond from *when* on, until there is a flood, or the first look at any output is due.
        """
        def look() -> None:
            if max(unread(self._output.out.fd), unread(self._output.err.fd)) >= _FLOOD:
                self._watch_output()
            else:
                self._look_for_flood(when + _FLOOD_LOOK_S)

        due = when >= self._started + _FIRST_LOOK_S
        self._timers.append(self._reactor.at(when, self._watch_output if due else look))

    def _watch_output(self) -> None:
        self.take_back()
        for stream in (self._output.out, self._output.err):
            self._watch(stream.fd, READ, lambda _, stream=stream: self._on_output(stream))  # type: ignore[misc]  # a bound default

    def _on_output(self, stream: Stream) -> None:
        try:
            more = self._output.drain(stream)
        except OSError:
            self.stop(Stop.STORE)
        else:
            if self._output.truncated:
                self.stop(Stop.OUTPUT)
            elif not more:
                self._forget(stream.fd)
        if self._stop is not None:  # a pipe that stays full would wake us without end
            self._forget(self._output.out.fd)
            self._forget(self._output.err.fd)

    def _on_reply(self, _events: int) -> None:
        try:
            complete = self._read_reply(_REPLY_CHUNK)
        except PeerError:
            self.stop(Stop.REPLY)
            return
        if complete:
            self._finish(None)

    def _read_reply(self, most: int) -> bool:
        """
        Read on, about *most* bytes, so that a large reply waits its turn; is the frame complete?

        Raises:
            PeerError: it announces more than a reply may have.
        """
        enough = len(self._reply) + most
        while not self._announced() or len(self._reply) < self._reply_size:
            if len(self._reply) >= enough:
                return False
            try:
                data = os.read(self._runner.reply, min(self._missing(), _REPLY_CHUNK))
            except BlockingIOError:
                return False
            if not data:  # closed by the job: its exit status will tell
                self._forget(self._runner.reply)
                return False
            self._reply += data
        return True

    def _announced(self) -> bool:
        """
        Is the reply's size known?

        Raises:
            PeerError: it announces more than a reply may have.
        """
        if not self._reply_size and len(self._reply) >= wire.HEADER.size:
            size = wire.HEADER.unpack_from(self._reply)[0]
            if size > self._most_reply():
                raise PeerError(f"a reply of {size} bytes")
            self._reply_size = wire.HEADER.size + size
        return bool(self._reply_size)

    def _missing(self) -> int:
        return (self._reply_size or wire.HEADER.size) - len(self._reply)

    def _most_reply(self) -> int:
        if not self._job.collect:
            return wire.MAX_BARE_REPLY
        return wire.MAX_BARE_REPLY + self._job.limits.files + _PER_FILE * wire.MAX_FILES

    def _tick(self) -> None:
        if self.over:
            return
        verdict = self._runner.tick()
        if Limit.MEMORY == verdict:
            self.stop(Stop.MEMORY)
        if not self.over:
            self._timers.append(self._reactor.after(self._runner.leaf.tick_interval, self._tick))

    def stop(self, why: Stop) -> None:
        """
        End the job; the answer comes when no process of it is left.
        """
        if self._stop is None and not self.over:
            self._stop = why
            self.take_back()
            self._runner.kill()
            self._killed()

    # --- the end --------------------------------------------------------------

    def emptied(self, status: int | None, reason: str) -> None:
        """
        No process of the runner is left.

        Args:
            status: the job's wait status, or None where it isn't known.
            reason: why it isn't known.
        """
        if self.over:
            return
        self.take_back()
        if self._stop is None and self._not_started(status):
            self._give_up()
            return
        try:
            replied = self._stop is None and self._read_reply(self._most_reply())
        except PeerError:
            replied = False
        self._finish(None if replied else (status, reason))

    def _finish(self, end: tuple[int | None, str] | None) -> None:
        """
        Put the report together; *end* is None where a complete reply tells the end.
        """
        done, self._done = self._done, None
        assert done is not None
        ended = time.monotonic()
        output = self._output
        memfd = -1
        try:
            output.settle()
            memfd = output.seal()
        except OSError:
            self._stop = Stop.STORE
            output.drop()
        if end is None and self._runner.leaf.needs_ticks:
            self._runner.tick()  # its processes are still there to be counted
        before = self._before
        usage = self._used = self._runner.leaf.usage()
        error: JobError | None = None
        limit: Limit | None = None
        files: dict[str, bytes] = {}
        if self._stop is None and output.truncated:
            self._stop = Stop.OUTPUT  # seen only in what was left in the pipes
        if self._stop is not None:
            outcome, exit_code, limit = _STOPPED[self._stop]
            if outcome is Outcome.INTERNAL:
                error = JobError("Ended", _WHY[self._stop], "")
        elif end is None:
            try:
                reply = wire.read_reply(bytes(self._reply[wire.HEADER.size:self._reply_size]), wire.MAX_FILES)
            except PeerError as broken:
                outcome, exit_code = Outcome.INTERNAL, EXIT_INTERNAL
                error = JobError("PeerError", str(broken), "")
            else:
                outcome = Outcome.RAISED if reply.raised else Outcome.FINISHED
                exit_code, error, limit, files = reply.exit_code, reply.error, reply.limit, dict(reply.files)
        else:
            outcome, exit_code, error = _ended(*end, oom=usage.oom_kills > before.oom_kills)
        if usage.forks_refused > before.forks_refused and limit is None:
            limit = Limit.PROCESSES
        if usage.oom_kills > before.oom_kills and limit is None:
            limit = Limit.MEMORY
        if outcome is Outcome.OUT_OF_MEMORY:
            limit = Limit.MEMORY
        arena = None
        if memfd >= 0:
            arena = Arena(memfd, output.size, _region(output.out), _region(output.err))
        result = Result(
            stdout=bytes(output.out.head), stderr=bytes(output.err.head), exit_code=exit_code, outcome=outcome,
            limit=limit, duration=ended - self._started, cpu_time=max(0.0, usage.cpu_time - before.cpu_time),
            memory_peak=usage.memory_peak, denied=self._runner.denied(), truncated=output.truncated,
            degraded=self._degraded, error=error, files=files,
        )
        try:
            done(Report(result=result, arena=arena))
        finally:  # after the answer: nobody waits for this
            self._release()
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

    def _release(self) -> None:
        if self._short_now and self._short is not None:
            self._short_now = False
            self._short.withdraw(self._runner.number)
        for timer in self._timers:
            timer.cancel()
        for fd in tuple(self._watched):
            self._forget(fd)


#: For a rehearsal.
_ANY = Result(b"\n", b"", 0, Outcome.FINISHED, duration=0.001, cpu_time=0.001, memory_peak=1 << 20)

_STOPPED: dict[Stop, tuple[Outcome, int, Limit | None]] = {
    Stop.TIME: (Outcome.TIMED_OUT, EXIT_TIMED_OUT, Limit.TIME),
    Stop.OUTPUT: (Outcome.OUTPUT_LIMIT, EXIT_OUTPUT_LIMIT, Limit.OUTPUT),
    Stop.MEMORY: (Outcome.OUT_OF_MEMORY, EXIT_OUT_OF_MEMORY, Limit.MEMORY),
    Stop.REPLY: (Outcome.INTERNAL, EXIT_INTERNAL, None),
    Stop.STORE: (Outcome.INTERNAL, EXIT_INTERNAL, None),
    Stop.CANCELLED: (Outcome.INTERNAL, EXIT_INTERNAL, None),
    Stop.SHUTDOWN: (Outcome.INTERNAL, EXIT_INTERNAL, None),
}

_WHY: dict[Stop, str] = {
    Stop.REPLY: "the job broke the protocol of its reply pipe",
    Stop.STORE: "the daemon had no descriptor or no memory left for its output",
    Stop.CANCELLED: "nobody waits for it any more",
    Stop.SHUTDOWN: "the daemon shut down before the job was over",
}


def _ended(status: int | None, reason: str, *, oom: bool) -> tuple[Outcome, int, JobError | None]:
    """
    What a wait status means.
    """
    if oom and (status is None or (os.WIFSIGNALED(status) and signal.SIGKILL == os.WTERMSIG(status))):
        return Outcome.OUT_OF_MEMORY, EXIT_OUT_OF_MEMORY, None
    if status is None:
        return Outcome.INTERNAL, EXIT_INTERNAL, JobError("WorkerLost", reason, "")
    if os.WIFSIGNALED(status):
        return Outcome.SIGNALLED, EXIT_SIGNAL_BASE + os.WTERMSIG(status), None
    return Outcome.FINISHED, os.WEXITSTATUS(status), None


def _region(stream: Stream) -> tuple[int, int] | None:
    return (stream.offset, stream.length) if stream.spilled else None


