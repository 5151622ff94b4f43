"""
The event loop in C: epoll or io_uring, and the fast path of short jobs.

Runs in:   the daemon; a loop belongs to the thread that made it.
Needs:     for IO_URING Linux 5.19, and a build with liburing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward.dataclass import dataclass
from leeward.errors import KernelRefusal

EPOLL: int = lib.LW_IO_EPOLL
IO_URING: int = lib.LW_IO_URING

READY: int = lib.LW_EVENT_READY
ACCEPTED: int = lib.LW_EVENT_ACCEPTED
DATA: int = lib.LW_EVENT_DATA
ROOM: int = lib.LW_EVENT_ROOM
SENT: int = lib.LW_EVENT_SENT
STARTED: int = lib.LW_EVENT_STARTED
DONE: int = lib.LW_EVENT_DONE
HANDED: int = lib.LW_EVENT_HANDED
REFUSED: int = lib.LW_EVENT_REFUSED
TRANSPORT: int = lib.LW_EVENT_TRANSPORT

_EAGAIN, _EINPROGRESS = 11, 115
_WITHOUT_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MessageTemplates:
    """
    The bytes that never change of four messages: in front of each value, and at the end. Of a request and a job
    also as they are in a session.
    """

    request_id: bytes
    request_code: bytes
    job_code: bytes
    turn_id: bytes
    turn_session: bytes
    turn_code: bytes
    job_turn: bytes
    job_shown: bytes
    reply: bytes
    answer_id: bytes
    answer_duration: bytes
    answer_cpu: bytes
    answer_peak: bytes
    answer_out: bytes
    answer_err: bytes


#: The key of a gauge that is a clock.
CLOCK = "@clock"


@dataclass(frozen=True, slots=True)
class Gauge:
    """
    A number in an open control file: alone, or behind the word *key* at the start of a line. With CLOCK for *key*:
    nanoseconds of the clock whose id is *fd*.
    """

    fd: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """
    A runner that may have the next job, with all that its answer needs.

    Attributes:
        number: of the runner.
        job, reply, out, err: the daemon's ends of its pipes.
        time, peak, oom, forks: where its use of the processor (in *time_unit* seconds), of memory, and the count of
            limits hit stand, and what stood there before.
        session, stream: 0, or the number under which *stream* alone may have it.
        shows: of a session: its jobs are to show things.
        supervisor, denials: who counts its denied calls, by which slot; and how many there were before.
    """

    number: int
    job: int
    reply: int
    out: int
    err: int
    time: Gauge
    peak: Gauge
    oom: Gauge
    forks: Gauge
    time_unit: float
    time_before: float
    oom_before: int
    forks_before: int
    supervisor: Any
    denials: int
    denials_before: int
    session: int = 0
    stream: int = -1
    shows: bool = False


class Loop:
    """
    One loop. Descriptors stay the caller's; `forget` one before closing it.

    Args:
        io: EPOLL or IO_URING.

    Raises:
        KernelRefusal: ENOSYS, EPERM: no io_uring here.
    """

    def __init__(self, io: int) -> None:
        handle = ffi.new("struct lw_loop **")
        failed = lib.lw_loop_open(io, handle)
        if failed:
            raise KernelRefusal("io_uring_setup" if IO_URING == io else "epoll_create1", "the loop", -failed)
        self._handle: Any = handle[0]
        self.events: Any = ffi.new("struct lw_event[]", lib.LW_LOOP_EVENTS)

    def turn(self, patience_ns: int) -> int:
        """
        Wait, at most so long (without end if negative), and serve; returns how many of `events` there are.
        """
        count: int = lib.lw_loop_turn(self._handle, patience_ns, self.events)
        if count < 0:
            raise KernelRefusal("the loop's turn", "", -count)
        return count

    def pulse(self) -> tuple[int, float]:
        """
        For any thread, while the loop is open: how many waits are over, and until when the present one lasts, in
        CLOCK_MONOTONIC seconds; 0.0 while the loop works.
        """
        turns, until = ffi.new("uint64_t *"), ffi.new("int64_t *")
        lib.lw_loop_pulse(self._handle, turns, until)
        return int(turns[0]), math.inf if until[0] == _WITHOUT_END else until[0] / 1e9

    def watch(self, fd: int, events: int) -> None:
        """
        READY whenever *fd* has one of *events* (EPOLL*), a hang-up or an error.

        Raises:
            OSError: it is used already, or can't be waited for.
        """
        _check(lib.lw_loop_watch(self._handle, fd, events))

    def change(self, fd: int, events: int) -> None:
        _check(lib.lw_loop_change(self._handle, fd, events))

    def forget(self, fd: int) -> None:
        """
        Tell nothing of *fd* any more, whatever it was used for; harmless if it wasn't.
        """
        lib.lw_loop_forget(self._handle, fd)

    def accept(self, fd: int) -> None:
        """
        ACCEPTED for each connection, until one tells an error.
        """
        _check(lib.lw_loop_accept(self._handle, fd))

    def stream(self, fd: int, number: int, *, guarded: bool = False) -> None:
        """
        DATA of a connection; *number* comes with each SENT. Of one that is *guarded*, by which descriptors may come,
        it is -EPERM where there are some with the next bytes, and nothing is taken.
        """
        _check(lib.lw_loop_stream(self._handle, fd, number, guarded))

    def read(self, fd: int, on: bool) -> None:
        """
        Whether input of a stream is wanted. What was under way may still come.
        """
        _check(lib.lw_stream_read(self._handle, fd, on))

    def fast_path(self, fd: int, on: bool) -> None:
        """
        Whether requests of a stream may take the fast path, until its next DATA.
        """
        _check(lib.lw_stream_fast_path(self._handle, fd, on))

    def send(self, fd: int, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        """
        Bytes taken, or None: then SENT tells, and *data* must stay as it is until it does.

        Raises:
            BlockingIOError: ROOM follows.
            OSError: the stream is broken.
        """
        sent: int = lib.lw_stream_send(self._handle, fd, ffi.from_buffer(data), len(data), list(fds), len(fds))
        if -_EINPROGRESS == sent:
            return None
        if -_EAGAIN == sent:
            raise BlockingIOError
        _check(sent)
        return sent

    def backlog(self, fd: int) -> int:
        """
        Bytes of answers on the fast path that the kernel hasn't taken.
        """
        return max(0, int(lib.lw_stream_backlog(self._handle, fd)))

    def set_templates(self, templates: MessageTemplates) -> None:
        """
        Set the templates of the fast path, once.
        """
        kept = {name: ffi.from_buffer(getattr(templates, name)) for name in MessageTemplates.__slots__}
        given = ffi.new("struct lw_templates *")
        for name, data in kept.items():
            piece = getattr(given, name)
            piece.data, piece.size = data, len(data)
        _check(lib.lw_fast_path_set_templates(self._handle, given))

    def linger(self, after_start_ns: int, after_answer_ns: int) -> None:
        """
        Let a turn go on for so many nanoseconds after a job's start, and after its answer, while nothing else happens.
        """
        lib.lw_fast_path_linger(self._handle, after_start_ns, after_answer_ns)

    def offer(self, offer: Offer) -> None:
        """
        Let the next request on the fast path have this runner.

        Raises:
            OSError: it can't be offered.
        """
        _check(lib.lw_fast_path_offer(self._handle, _given(offer)))

    def adopt(self, offer: Offer, fd: int, identity: int, started: float) -> None:
        """
        Let the reply of this runner, which has its job since *started*, take the fast path to stream *fd*.

        Raises:
            OSError: it can't.
        """
        _check(lib.lw_fast_path_adopt(self._handle, _given(offer), fd, identity, started))

    def withdraw(self, number: int) -> bool:
        """
        The runner is the caller's alone. Was it offered, or its reply waited for?
        """
        return bool(lib.lw_fast_path_withdraw(self._handle, number) >= 0)

    def refusal(self, before: bytes, behind: bytes) -> None:
        """
        Set the refusal that `shed` streams get: its bytes before and behind the request's id.

        Raises:
            OSError: they are too long, or there is no memory.
        """
        _check(lib.lw_fast_path_refusal(self._handle, ffi.from_buffer(before), len(before), ffi.from_buffer(behind),
                                        len(behind)))

    def shed(self, fd: int, on: bool) -> None:
        """
        Whether requests of a stream that find no runner on offer are refused on the fast path; REFUSED tells how many.
        """
        _check(lib.lw_stream_shed(self._handle, fd, on))

    def close(self) -> None:
        """
        Nothing else may be called after.
        """
        lib.lw_loop_close(self._handle)


def data_of(event: Any, size: int) -> bytes:
    """
    A copy of what an event points at.
    """
    return bytes(ffi.buffer(event.data, size))


def _given(offer: Offer) -> Any:
    time, peak, oom, forks = offer.time, offer.peak, offer.oom, offer.forks
    return ffi.new("struct lw_offer *", [  # in the order of loop.h, by one call
        offer.number, offer.job, offer.reply, offer.out, offer.err, (time.fd, time.key.encode()),
        (peak.fd, peak.key.encode()), (oom.fd, oom.key.encode()), (forks.fd, forks.key.encode()),
        offer.time_unit, offer.time_before, offer.oom_before, offer.forks_before, offer.supervisor, offer.denials,
        offer.denials_before, offer.session, offer.stream, offer.shows])


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
