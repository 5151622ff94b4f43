"""
A job that calls functions of its client: calls come by its reply pipe before the reply, answers go by its job pipe.

Trust: none in a call's bytes. Its head is checked here, and its body is passed on unread. Wrong bytes end only the job
that sent them, as a broken reply does.

Theory of operation. Each call goes to the exchange, whose other end is the client's connection. A call is *open* until
its answer is written; at most MAX_OPEN are, so the memory for calls and answers is bounded. A call that waits for too
long is answered here, by a TimeoutError. Answers are written in pieces that the pipe takes whole or not at all; while
it is full they wait, and the loop goes on. A job that reads no answers can make no other calls. The clock of the time
limit runs while a call waits, unless the client asked to stop it, for `standing` seconds at most in all.

With other jobs, `unread` bytes in the job pipe mean that the job hasn't started. Here they may be answers, so a job
that has made a call counts as started.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial

from leeward.base.dataclass import replace
from leeward.daemon.loop.fast_path import FastPath
from leeward.daemon.loop.reactor import WRITE, Reactor, Timer
from leeward.daemon.run.execution import Caller, Execution, Holder
from leeward.daemon.run.reply import ReplyReader
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.verdict import Stop, Verdict
from leeward.errors import PeerError
from leeward.spec.job import Functions, Job
from leeward.spec.outcome import JobError
from leeward.wire import function_frames as wire


class CallReader(ReplyReader):
    """Reads the frames of a job: calls, each of which *called* gets (it may raise PeerError), and then its reply."""

    __slots__ = ("_called",)

    def __init__(self, job: Job, called: Callable[[bytes], None]) -> None:
        super().__init__(job)
        self.most = max(self.most, wire.MAX_CALL)
        self._called = called

    def _read_frame(self, fd: int, most: int) -> bool:
        """As `ReplyReader._read_frame`. Also raises PeerError for an invalid call."""
        while super()._read_frame(fd, most):
            body = self.body
            if not wire.is_call(body):
                return True
            self._data, self._size = bytearray(), 0
            self._called(body)
        return False


class Calling(Execution):
    def __init__(self, reactor: Reactor, runner: Runner, holder: Holder, caller: Caller, *, alone: bool = False,
                 fast_path: FastPath | None = None) -> None:
        super().__init__(reactor, runner, holder, caller, alone=alone, fast_path=fast_path)
        assert caller.job.functions is not None
        self._functions: Functions = caller.job.functions
        self._reply = CallReader(self._job, self._heard)
        self._waiting: dict[int, Timer] = {}  # calls without an answer; the timers of their deadlines
        self._answers: deque[deque[bytes]] = deque()  # the pieces of each answer
        self._last = 0
        self._gone = False
        self._wrong = ""  # what was wrong with a call
        self._time_up = False
        self._stood = 0.0
        self._stands_since: float | None = None
        self._functions.exchange.begin(self.answer, self._body_broken)

    @property
    def taken(self) -> bool:
        """A job that has made a call has read its code; the bytes in the pipe may be answers."""
        return self._last > 0 or super().taken

    def _heard(self, body: bytes) -> None:
        """Handle a frame that isn't the reply; PeerError if it isn't a call, or one that isn't allowed."""
        try:
            self._called(body)
        except PeerError as error:
            self._wrong = str(error)
            raise

    def _called(self, body: bytes) -> None:
        if self.over or self.stopped or self._gone:
            return
        if self._errand.unsent:
            raise PeerError("a call of a job that has not read its code")
        call = wire.read_call(body)
        if call.number != self._last + 1 or call.number > wire.MAX_CALLS:
            raise PeerError(f"call {call.number} behind call {self._last}")
        if call.place >= len(self._functions.names):
            raise PeerError(f"a call of function {call.place}, of {len(self._functions.names)}")
        if len(self._waiting) + len(self._answers) >= wire.MAX_OPEN:
            raise PeerError(f"a call while {wire.MAX_OPEN} others are open")
        self._last = call.number
        self._waiting[call.number] = self._reactor.after(self._functions.wait, partial(self._waited, call.number))
        self._stop_clock()
        self._functions.exchange.called(call.number, self._functions.names[call.place], call.body)

    def answer(self, number: int, raised: bool, body: bytes) -> bool:
        """For the exchange: send the answer to call *number*. Returns False if that call doesn't wait for an answer."""
        timer = self._waiting.pop(number, None)
        if timer is None:
            return False
        timer.cancel()
        if not self._waiting:
            self._clock_goes_on()
        if not (self.over or self.stopped):
            self._answers.append(deque(wire.answer_frames(number, raised, body)))
            self._write()
        return True

    def _waited(self, number: int) -> None:
        """Answer call *number* by a TimeoutError, because the client didn't answer it in time."""
        self._functions.exchange.withdrawn(number)
        self.answer(number, True, wire.pack_error("TimeoutError", f"no answer within {self._functions.wait:g} s"))

    def _body_broken(self) -> None:
        """For the exchange: the client couldn't decode the body of a call."""
        self._wrong = "the arguments of a call are none"
        self.stop(Stop.REPLY)

    def _write(self, _events: int = 0) -> None:
        job = self._runner.job
        try:
            while self._answers:
                pieces = self._answers[0]
                while pieces:
                    os.write(job, pieces[0])  # whole, or not at all
                    pieces.popleft()
                self._answers.popleft()
        except BlockingIOError:
            if job not in self._watched:
                self._watch(job, WRITE, self._write)
            return
        except BrokenPipeError:  # the job has closed its end, or has ended; that is handled elsewhere
            self._answers.clear()
        self._forget(job)

    @property
    def stood(self) -> float:
        """The seconds for which the clock was stopped, or, if it is stopped now, for which it may be at most."""
        return self._stood if self._stands_since is None else self._functions.standing

    def _keep_time(self) -> None:
        super()._keep_time()
        if not self.over:
            self._set_clock()

    def _stop_clock(self) -> None:
        left = self._functions.standing - self._stood
        if self._stands_since is None and left > 0 and not self._time_up:
            self._stands_since = self._reactor.now()
            self._set_clock()

    def _clock_goes_on(self) -> None:
        if self._stands_since is not None:
            stood = self._stood + self._reactor.now() - self._stands_since
            self._stood, self._stands_since = min(stood, self._functions.standing), None
            if not (self.over or self._time_up):
                self._set_clock()

    def _set_clock(self) -> None:
        """While the clock is stopped, set the deadline for the longest stop that is allowed."""
        timer = self._timers.get("time")
        if timer is not None:  # otherwise `_keep_time` sets it
            timer.cancel()
            self._timers["time"] = self._reactor.at(self.started + self._job.limits.time + self.stood,
                                                    self._out_of_time)

    def _out_of_time(self) -> None:
        self._time_up = True
        super()._out_of_time()

    def _offer(self) -> None:
        """None: the fast path reads only the reply of a job, and no calls."""
        return

    def _judged(self, verdict: Verdict) -> Verdict:
        verdict = super()._judged(verdict)
        if self._stop is Stop.REPLY:
            wrong = self._wrong or "a frame, or files, longer than any that it may send"
            return replace(verdict, error=JobError("PeerError", f"a call of a function: {wrong}", ""))
        return verdict

    def _not_started(self, status: int | None) -> bool:
        return not self._last and super()._not_started(status)

    def emptied(self, status: int | None, reason: str) -> None:
        """As of any job. No answer to an open call is accepted any more."""
        self._gone = True
        super().emptied(status, reason)

    def release(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for timer in waiting.values():
            timer.cancel()
        self._answers.clear()
        self._functions.exchange.ended()
        super().release()


def execution_of(job: Job) -> type[Execution]:
    return Execution if job.functions is None else Calling
