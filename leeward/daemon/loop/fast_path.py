"""
The part of a short job's fast path that is in Python, before and after the shim's.

The shim (fast_path.c) passes a request that is code alone from its client's connection to a runner, and the answer
back, if the job ends within milliseconds and finishes without error, files or denied calls. This module gives it the
constant bytes of the four messages, and the runners on offer. The shim reports when one of these runners has got a job,
and when the job is over.

A session's job whose start and end are reported together needs almost no bookkeeping. So its start is reported only
after the time that a short job takes, or before any other callback: the bookkeeping is complete in each callback.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING

import msgpack

from leeward._native import loop as native
from leeward.base.dataclass import dataclass
from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import Barrier
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.errors import Refused
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire import job_frames as wire
from leeward.wire.answers import encode_refused, encode_result
from leeward.wire.requests import Execute, encode_request

if TYPE_CHECKING:
    from leeward.daemon.run.execution import Execution
    from leeward.daemon.serving.connection import Connection

#: Values that no message has by chance: the bytes around them in an encoded message are the template.
_MARK_ID, _MARK = (1 << 53) - 2, b"\0mark of a value\0"
_MARK_TIMES = 1.0 / 3, 2.0 / 7
_MARK_SESSION = (1 << 53) - 3
_MARK_PEAK = (1 << 60) + 12345


class Giver(Protocol):
    """A worker or lease that has put a runner on offer."""

    def broken(self, error: Exception) -> None:
        """Called if the runner has a job whose start couldn't be reported. The runner must not get another job."""


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """The address of an answer: a connection's descriptor, a request's number, and the connection's own, never another's."""

    fd: int
    request: int
    connection: int = 0


#: Seconds for which the report of the start of a session's job may be delayed.
_HELD_S = 0.001


class FastPath:
    """
    The runners on offer, and the jobs that the fast path has. *held* are starts that aren't reported yet by the
    runner's number, oldest first; *offered* counts runners that were offered to fresh jobs.
    """

    def __init__(self, loop: native.Loop, barrier: Barrier) -> None:
        self._loop, self._barrier = loop, barrier
        self._givers: dict[int, Giver] = {}  # by the runner's number
        self._jobs: dict[int, Execution] = {}
        self.held: dict[int, tuple[Connection, JobStart]] = {}
        self._once = set[int]()  # runners of sessions that take one job
        self._enabled = False
        self.offered = 0

    def enable(self, degraded: tuple[str, ...]) -> None:
        """Set the bytes of the messages; until then there is no fast path."""
        if not self._enabled:
            self._loop.set_templates(message_templates(degraded))
            self._enabled = True

    def offer(self, offer: native.Offer, giver: Giver) -> bool:
        """
        Give this runner to the next request of code alone; a session's to all of the session, until `withdraw`, or to one
        of them.
        """
        if not self._enabled:
            return False
        with contextlib.suppress(OSError):
            self._loop.offer(offer)
            self._givers[offer.number] = giver
            if offer.once:
                self._once.add(offer.number)
            self.offered += not offer.session
            return True
        return False

    def adopt(self, offer: native.Offer, client: ReplyAddress, started: float) -> bool:
        """Let the fast path answer for this runner, which has a job already. The caller then calls `expect`."""
        if not self._enabled:
            return False
        with contextlib.suppress(OSError):
            self._loop.adopt(offer, client.fd, client.request, started)
            return True
        return False

    def expect(self, runner: int, job: Execution) -> None:
        """Report the end of this runner's job to *job*."""
        self._jobs[runner] = job

    def withdraw(self, runner: int) -> None:
        """Take the runner, and the job that it runs, off the fast path."""
        self._jobs.pop(runner, None)
        self._givers.pop(runner, None)
        self._once.discard(runner)
        self._loop.withdraw(runner)

    def refuse_with(self, why: Refused) -> None:
        self._loop.refusal(*_split(encode_refused(_MARK_ID, why)[4:], _packed(_MARK_ID)))

    def shed(self, fd: int, on: bool) -> None:
        """Set whether the shim refuses requests of *fd* that find no runner; it tells the receiver how many."""
        with contextlib.suppress(OSError):
            self._loop.shed(fd, on)

    def job_started(self, receiver: Connection, start: JobStart) -> None:
        if start.session and not start.unsent and start.runner not in self._once:
            self.held[start.runner] = receiver, start
        else:
            self._report_start(receiver, start)

    def _report_start(self, receiver: Connection, start: JobStart) -> None:
        lasts = start.session and start.runner not in self._once
        self._once.discard(start.runner)
        giver = self._givers.get(start.runner) if lasts else self._givers.pop(start.runner, None)
        try:
            receiver.job_started(start)
        except Exception as error:
            self._barrier.caught(receiver.job_started, error)
            if giver is not None:
                self._barrier.steps(partial(giver.broken, error))

    def done(self, runner: int, ended: float, cpu_time: float, memory_peak: int) -> None:
        if runner in self.held:
            receiver, start = self.held.pop(runner)
            ran = Ran(start.request, runner, start.session, start.started, ended, cpu_time, memory_peak)
            self._barrier.call(receiver.ran, ran)
            return
        job = self._jobs.pop(runner, None)
        if job is not None:
            job.answered = True
            self._barrier.call(job.completed, ended, cpu_time, memory_peak)

    def flush(self, now: float = math.inf) -> None:
        """Report the starts that are due *now*, or all: before any change of a job, runner or connection."""
        while self.held and now >= self._due():
            self._report_start(*self.held.pop(next(iter(self.held))))

    @property
    def due(self) -> float | None:
        """The time at which the next delayed start has to be reported, CLOCK_MONOTONIC seconds; None if there is none."""
        return self._due() if self.held else None

    def _due(self) -> float:
        return next(iter(self.held.values()))[1].started + _HELD_S

    def handed(self, runner: int, reply: bytes) -> None:
        job = self._jobs.pop(runner, None)
        self._givers.pop(runner, None)
        if job is not None:
            self._barrier.call(job.handed_over, reply)


def message_templates(degraded: tuple[str, ...]) -> native.MessageTemplates:
    """The constant bytes of the messages, taken from encoded messages with values that can be found in them."""
    request = encode_request(Execute(_MARK_ID, code=_MARK))[4:]
    turn = encode_request(Execute(_MARK_ID, session=_MARK_SESSION, code=_MARK))[4:]
    job, job_turn, shown = (frame[4:].removesuffix(_MARK) for frame in (
        wire.job_frame(Job(code=_MARK)), wire.session_frame(Job(code=_MARK)),
        wire.session_frame(Job(code=_MARK, display=True))))
    duration, cpu_time = _MARK_TIMES
    result = Result(_MARK, _MARK[::-1], 0, Outcome.FINISHED, duration=duration, cpu_time=cpu_time,
                    memory_peak=_MARK_PEAK, degraded=degraded)
    answer = encode_result(_MARK_ID, result)[4:]
    packed = {name: _packed(value) for name, value in {
        "id": _MARK_ID, "session": _MARK_SESSION, "duration": duration, "cpu": cpu_time, "peak": _MARK_PEAK,
        "code": _MARK, "err": _MARK[::-1]}.items()}
    before_id, before_code, end = _split(request, packed["id"], packed["code"])
    assert not end  # the code is the last field of a request
    turn_id, turn_session, turn_code, end = _split(turn, packed["id"], packed["session"], packed["code"])
    assert not end
    answer_id, before_duration, cpu, peak, out, err, end = _split(
        answer, packed["id"], packed["duration"], packed["cpu"], packed["peak"], packed["code"], packed["err"])
    assert not end
    return native.MessageTemplates(before_id, before_code, job, turn_id, turn_session, turn_code, job_turn, shown,
                                   wire.NOTHING_FRAME, answer_id, before_duration, cpu, peak, out, err)


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _split(message: bytes, *values: bytes) -> list[bytes]:
    pieces = []
    for value in values:
        before, found, message = message.partition(value)
        assert found
        pieces.append(before)
    return [*pieces, message]
