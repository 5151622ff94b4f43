"""The event loop in C: epoll or io_uring (Linux 5.19, and a build with liburing), and the fast path of short jobs."""

from __future__ import annotations

import errno
import math
import operator
import os
import struct
from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.steps import Call, result_of
from leeward.base.dataclass import dataclass
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
    The constant bytes of four messages, a request, a job, a reply and an answer: those before each value, and those at
    the end. Requests and jobs of a session (`turn_*`, `job_turn`, `job_shown`) have bytes of their own.
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


#: The key of a gauge that reads a clock.
CLOCK = "@clock"


@dataclass(frozen=True, slots=True)
class Gauge:
    """
    A number in an open file of a control group: the whole content, or what follows the word *key* at the start of a
    line. If *key* is CLOCK, the number is the time of the clock whose id is *fd*, in nanoseconds.
    """

    fd: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class JobWatch:
    """A job of one process where no controller counts: the fields of `struct lw_watch`, in its order, without its state."""

    job: int
    orphans: int
    children: int
    stat: int
    status: int
    free_sockets: int
    socket: int
    inode: int
    waited: int
    limit: int
    peak: int
    pidfd: int = -1
    files: int = -1
    sockets: int = -1
    tasks: tuple[int, int] = (0, 0)
    data: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Offer:
    """
    A runner to which the fast path may give the next job, and what the fast path needs to make the answer. What ends
    with `_before` is the value before the job.
    """

    number: int
    job: int          # the daemon's ends of the runner's pipes
    reply: int
    out: int
    err: int
    time: Gauge       # its processor time, in units of `time_unit` seconds
    peak: Gauge       # of its memory
    oom: Gauge        # how often it reached the limits on memory,
    forks: Gauge      # and on processes
    time_unit: float
    time_before: float
    oom_before: int
    forks_before: int
    supervisor: Any   # the supervisor's handle,
    denials: int      # and the slot in which it counts the runner's refused calls
    denials_before: int
    session: int = 0  # or the session,
    stream: int = -1  # and the stream, for which the runner is reserved
    shows: bool = False  # jobs of the session may display things
    once: bool = False   # the session's runner takes one job, as a fresh one does
    watch: JobWatch | None = None  # in place of `peak`, `oom` and `forks`, where no controller counts


class Loop:
    """
    An event loop. The caller still owns the descriptors that it passes; it must `forget` one before it closes it.
    KernelRefusal, ENOSYS or EPERM, if io_uring is missing or forbidden.
    """

    def __init__(self, io: int) -> None:
        handle = ffi.new("struct lw_loop **")
        failed = lib.lw_loop_open(io, handle)
        if failed:
            raise KernelRefusal("io_uring_setup" if io == IO_URING else "epoll_create1", "the loop", -failed)
        self._handle: Any = handle[0]
        self.events: Any = ffi.new("struct lw_event[]", lib.LW_LOOP_EVENTS)

    def turn(self, patience_ns: int) -> int:
        """
        Wait at most *patience_ns* nanoseconds (without end if negative), and serve what is ready. Returns the number of
        events, which are in `events`.
        """
        count: int = lib.lw_loop_turn(self._handle, patience_ns, self.events)
        if count < 0:
            raise KernelRefusal("the loop's turn", "", -count)
        return count

    def pulse(self) -> tuple[int, float]:
        """
        How many waits are over; and until when the present wait lasts at most, in seconds of CLOCK_MONOTONIC, 0.0 while
        the loop works. Any thread may call this while the loop is open.
        """
        turns, until = ffi.new("uint64_t *"), ffi.new("int64_t *")
        lib.lw_loop_pulse(self._handle, turns, until)
        return int(turns[0]), math.inf if until[0] == _WITHOUT_END else until[0] / 1e9

    def watch(self, fd: int, events: int) -> None:
        """
        Report READY whenever *fd* has one of *events* (EPOLL*), a hang-up or an error; OSError if it can't be waited
        for.
        """
        _check(lib.lw_loop_watch(self._handle, fd, events))

    def change(self, fd: int, events: int) -> None:
        _check(lib.lw_loop_change(self._handle, fd, events))

    def forget(self, fd: int) -> None:
        """Stop serving *fd*, whatever it was added for. Does nothing if it isn't in the loop."""
        lib.lw_loop_forget(self._handle, fd)

    def accept(self, fd: int) -> None:
        """Report ACCEPTED for each connection to the listener *fd*, until an ACCEPTED reports an error."""
        _check(lib.lw_loop_accept(self._handle, fd))

    def stream(self, fd: int, number: int, *, guarded: bool = False) -> None:
        """
        Serve the connection *fd*: report DATA for input. Each SENT has *number*. If *guarded*, and
        descriptors come with the next bytes, DATA reports -EPERM, and nothing is received.
        """
        _check(lib.lw_loop_stream(self._handle, fd, number, guarded))

    def read(self, fd: int, on: bool) -> None:
        """Turn the reading of a stream on or off. Input that was received before may still be reported."""
        _check(lib.lw_stream_read(self._handle, fd, on))

    def fast_path(self, fd: int, on: bool) -> None:
        """Turn the fast path on or off for a stream's requests. Each DATA of the stream turns it off."""
        _check(lib.lw_stream_fast_path(self._handle, fd, on))

    def send(self, fd: int, data: memoryview, fds: Sequence[int] = ()) -> int | None:
        """
        Send *data* and *fds*. Returns the number of bytes sent; or None: *data* must not change until SENT reports it.
        BlockingIOError: nothing was sent, and ROOM is reported when there is room. OSError: the stream is broken.
        """
        sent: int = lib.lw_stream_send(self._handle, fd, ffi.from_buffer(data), len(data), list(fds), len(fds))
        if sent == -_EINPROGRESS:
            return None
        if sent == -_EAGAIN:
            raise BlockingIOError
        _check(sent)
        return sent

    def backlog(self, fd: int) -> int:
        """Bytes of the fast path's answers on a stream that the kernel hasn't taken yet."""
        return max(0, int(lib.lw_stream_backlog(self._handle, fd)))

    def set_templates(self, templates: MessageTemplates) -> None:
        kept = {name: ffi.from_buffer(getattr(templates, name)) for name in MessageTemplates.__slots__}
        given = ffi.new("struct lw_templates *")
        for name, data in kept.items():
            piece = getattr(given, name)
            piece.data, piece.size = data, len(data)
        _check(lib.lw_fast_path_set_templates(self._handle, given))

    def linger(self, after_start_ns: int, after_answer_ns: int) -> None:
        """Set for how many nanoseconds a turn goes on after a job's start, and after its answer, if nothing else happens."""
        lib.lw_fast_path_linger(self._handle, after_start_ns, after_answer_ns)

    def offer(self, offer: Offer) -> None:
        """Let the fast path give this runner to the next request that fits; OSError if it can't be offered."""
        _check(lib.lw_fast_path_offer(self._handle, _given(offer)))

    def adopt(self, offer: Offer, fd: int, identity: int, started: float) -> None:
        """Let the fast path answer the request *identity* of stream *fd*, whose job this runner has had since *started*."""
        _check(lib.lw_fast_path_adopt(self._handle, _given(offer), fd, identity, started))

    def withdraw(self, number: int) -> bool:
        """Take the runner *number* back from the fast path. Returns whether the fast path still had it."""
        return bool(lib.lw_fast_path_withdraw(self._handle, number) >= 0)

    def refusal(self, before: bytes, behind: bytes) -> None:
        """
        Set the refusal that `shed` streams get: its bytes before and behind the request's id. OSError if they are too
        many.
        """
        _check(lib.lw_fast_path_refusal(self._handle, ffi.from_buffer(before), len(before), ffi.from_buffer(behind),
                                        len(behind)))

    def shed(self, fd: int, on: bool) -> None:
        """
        Turn on or off that the fast path refuses requests of a stream if no runner is on offer. REFUSED reports how
        many.
        """
        _check(lib.lw_stream_shed(self._handle, fd, on))

    def close(self) -> None:
        """Free the loop. Nothing else may be called afterwards."""
        lib.lw_loop_close(self._handle)


def io_uring_refusal() -> int:
    """The errno with which io_uring_setup(2), Linux 5.1, is refused here; 0 where without parameters it says EFAULT."""
    refusal = -result_of(Call.IO_URING_SETUP, 1, 0, optional=True)
    return 0 if refusal == errno.EFAULT else refusal


def data_of(event: Any, size: int) -> bytes:
    return bytes(ffi.buffer(event.data, size))


def _given(offer: Offer) -> Any:
    time, peak, oom, forks = offer.time, offer.peak, offer.oom, offer.forks
    return ffi.new("struct lw_offer *", [  # in the order of loop.h, by one call
        offer.number, offer.job, offer.reply, offer.out, offer.err, (time.fd, time.key.encode()),
        (peak.fd, peak.key.encode()), (oom.fd, oom.key.encode()), (forks.fd, forks.key.encode()),
        offer.time_unit, offer.time_before, offer.oom_before, offer.forks_before, offer.supervisor, offer.denials,
        offer.denials_before, offer.session, offer.stream, offer.shows, offer.once, _watch(offer.watch)])


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What a look of C's has seen of a job, within its limit."""

    memory: int       # bytes now,
    memory_peak: int  # and the most so far
    time: float       # processor seconds
    resident: int     # bytes of its pages when these were looked at last; 0 if that was never,
    faults: int       # its page faults until after that,
    late: int         # and how many of them may have happened after `resident` was read


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What the first look at an armed runner found; the fields are those of `struct lw_first`, in its order."""

    orphans: int  # descriptors, the caller's
    children: int
    stat: int
    status: int
    job: int
    init_started: int
    started: int
    gone: int
    spent: int
    resident: int
    tables: int
    shared: int
    faults: int
    late: int


_FIRST = struct.Struct("@5i9Q")


def first_look(init: int) -> FirstLook | None:
    """Look at the only process of an armed runner with this init; None if it takes a whole look."""
    seen = ffi.new("struct lw_first *")
    return None if lib.lw_watch_first(init, seen) < 0 else FirstLook(*_FIRST.unpack(ffi.buffer(seen)))


#: The fields of `struct lw_process`, in its order; of what follows them Python needs nothing.
_PROCESS = struct.Struct("@2i8Q16x")


class ProcessTree:
    """The looks at the processes of one sandbox, while each has one task and they are few. Not for two threads at once."""

    def __init__(self) -> None:
        self._tree = ffi.new("struct lw_tree *")

    @property
    def gone(self) -> int:
        """Clock ticks of what the init has reaped."""
        return int(self._tree.gone)

    def look(self, roots: Sequence[tuple[int, int]]) -> bool | None:
        """
        Look once more. Returns whether anything differs from the last look; None if it takes a whole look. The *roots* are
        pids and start times in clock ticks, of the init, and of processes beside the sandbox's first one.
        """
        found: int = lib.lw_watch_tree(self._tree, roots, len(roots))
        return None if found < 0 else found == 0

    def processes(self) -> list[tuple[int, ...]]:
        """
        Parents before children: pid; the parent's place in this list, or -1; start time in clock ticks; bytes resident, of
        page tables and of shared files; page faults, and those after `resident` was read, perhaps; nanoseconds; and clock
        ticks of children.
        """
        tree = self._tree
        return list(_PROCESS.iter_unpack(ffi.buffer(tree.processes)[:tree.count * _PROCESS.size]))


class Glance:
    """The look of the fast path, at any time while the job runs."""

    def __init__(self, watch: JobWatch) -> None:
        self._state = ffi.new("struct lw_watch *", _watch(watch))

    def look(self, charged: int) -> JobSeen | None:
        """None if it takes more than a glance. *charged*: bytes, by the supervisor."""
        state = self._state
        if lib.lw_watch_look(state, charged) < 0:
            return None
        return JobSeen(state.memory, state.peak, 1e-9 * state.time, state.resident, state.faults + state.late, state.late)


_fields = operator.attrgetter(*JobWatch.__slots__)


def _watch(watch: JobWatch | None) -> Any:
    if watch is None:
        return ()
    return _fields(watch)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
