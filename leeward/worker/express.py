"""
The short way of a short job: what Python has to say before and after it.

Runs in:   the daemon.

A request for code and nothing else, answered within milliseconds and without anything to tell, goes from its
client's connection to a runner and back by the shim (express.c). Here is what that needs: the bytes of the four
messages, the runners on offer, and who is told when one of them has a job and when it is over.

What a session's job needs of us is next to nothing if it is over when we hear of it. So that it has begun is held back
for the moment that a short job takes, unless anything else happens: whoever acts finds the books complete.
"""

from __future__ import annotations

import contextlib
import math
from typing import Protocol

import msgpack

from leeward._native import loop as native
from leeward.dataclass import dataclass
from leeward.outcome import Outcome, Result
from leeward.spec.job import Job
from leeward.wire import job as wire
from leeward.wire.messages import Execute, encode_request, encode_result
from leeward.worker.stream import Begun, Ran, Receiver

#: Values that no message has by chance: the bytes around them are the terms.
_MARK_ID, _MARK = (1 << 53) - 2, b"\0mark of a value\0"
_MARK_TIMES = 1.0 / 3, 2.0 / 7
_MARK_SESSION = (1 << 53) - 3
_MARK_PEAK = (1 << 60) + 12345


class Told(Protocol):
    """
    Whose job it is: the execution.
    """

    def told(self, ended: float, cpu_time: float, memory_peak: int) -> None:
        """
        Its client has the answer.
        """

    def handed(self, reply: bytes) -> None:
        """
        There is something to tell: it goes on from here, with what was read of the reply.
        """


@dataclass(frozen=True, slots=True)
class Client:
    """
    Where an answer goes.
    """

    fd: int
    request: int


#: Seconds after its start for which a session's job may be held back.
_HELD_S = 0.001


class Express:
    """
    The runners on offer, and the jobs on their way.
    """

    def __init__(self, loop: native.Loop) -> None:
        self._loop = loop
        self._told: dict[int, Told] = {}
        self._held: dict[int, tuple[Receiver, Begun]] = {}  # by the runner's number, the eldest first
        self._agreed = False

    def agree(self, degraded: tuple[str, ...]) -> None:
        """
        Set the bytes of the messages; until then there is no short way.
        """
        if not self._agreed:
            self._loop.agree(terms(degraded))
            self._agreed = True

    def offer(self, offer: native.Offer) -> bool:
        """
        Let the next plain request have this runner; or all of its session, one after the other, until `withdraw`.
        """
        if not self._agreed:
            return False
        with contextlib.suppress(OSError):
            self._loop.offer(offer)
            return True
        return False

    def adopt(self, offer: native.Offer, client: Client, started: float) -> bool:
        """
        Let the answer of this runner, which has its job, go the short way; `expect` comes next.
        """
        if not self._agreed:
            return False
        with contextlib.suppress(OSError):
            self._loop.adopt(offer, client.fd, client.request, started)
            return True
        return False

    def expect(self, runner: int, told: Told) -> None:
        """
        Whom to tell of this runner's job.
        """
        self._told[runner] = told

    def withdraw(self, runner: int) -> None:
        """
        The runner, and its job, are the caller's alone.
        """
        self._told.pop(runner, None)
        self._loop.withdraw(runner)

    def begun(self, receiver: Receiver, begun: Begun) -> None:
        if begun.session and not begun.unsent:
            self._held[begun.runner] = receiver, begun
        else:
            receiver.begun(begun)

    def done(self, runner: int, ended: float, cpu_time: float, memory_peak: int) -> None:
        if runner in self._held:
            receiver, begun = self._held.pop(runner)
            receiver.ran(Ran(begun.request, runner, begun.session, begun.started, ended, cpu_time, memory_peak))
            return
        told = self._told.pop(runner, None)
        if told is not None:
            told.told(ended, cpu_time, memory_peak)

    def settle(self, now: float = math.inf) -> None:
        """
        Tell what was held back and is due *now*, or all: that, before anything is done to a job, a runner or a
        connection.
        """
        while self._held and now >= self._due():
            receiver, begun = self._held.pop(next(iter(self._held)))
            receiver.begun(begun)

    @property
    def due(self) -> float | None:
        """
        When something is, CLOCK_MONOTONIC seconds.
        """
        return self._due() if self._held else None

    def _due(self) -> float:
        return next(iter(self._held.values()))[1].started + _HELD_S

    def handed(self, runner: int, reply: bytes) -> None:
        told = self._told.pop(runner, None)
        if told is not None:
            told.handed(reply)


def terms(degraded: tuple[str, ...]) -> native.Terms:
    """
    The messages' bytes, cut out of what the reference says for values that can be found again.
    """
    request = encode_request(Execute(_MARK_ID, code=_MARK))[4:]
    turn = encode_request(Execute(_MARK_ID, session=_MARK_SESSION, code=_MARK))[4:]
    job, job_turn = (frame(Job(code=_MARK))[4:].removesuffix(_MARK) for frame in (wire.job_frame, wire.session_frame))
    duration, cpu_time = _MARK_TIMES
    result = Result(_MARK, _MARK[::-1], 0, Outcome.FINISHED, duration=duration, cpu_time=cpu_time,
                    memory_peak=_MARK_PEAK, degraded=degraded)
    answer = encode_result(_MARK_ID, result)[4:]
    packed = {name: _packed(value) for name, value in {
        "id": _MARK_ID, "session": _MARK_SESSION, "duration": duration, "cpu": cpu_time, "peak": _MARK_PEAK,
        "code": _MARK, "err": _MARK[::-1]}.items()}
    before_id, before_code, end = _split(request, packed["id"], packed["code"])
    assert not end  # the code is the last of a request's fields
    turn_id, turn_session, turn_code, end = _split(turn, packed["id"], packed["session"], packed["code"])
    assert not end
    answer_id, before_duration, cpu, peak, out, err, end = _split(
        answer, packed["id"], packed["duration"], packed["cpu"], packed["peak"], packed["code"], packed["err"])
    assert not end
    return native.Terms(before_id, before_code, job, turn_id, turn_session, turn_code, job_turn, wire.NOTHING_FRAME,
                        answer_id, before_duration, cpu, peak, out, err)


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
