"""
Moves a job's output from its pipes into memory, or from a certain size on into a sealed memfd. The job never holds the
memfd, so it can't keep the file from being sealed, and the daemon itself has counted every length.

Source: memfd_create(2), splice(2), pipe(7)

The kernel locks a pipe while bytes are copied into or out of it. A splice from the job's pipe into a file copies under
that lock, and the job waits for it. So long output goes through a pipe of our own: from pipe to pipe the kernel only
moves pages, and the copy into the file is made while the job goes on writing.

If a program goes on beyond its limit, a part of the limit is for the ends of the streams; the rest is for their
beginnings, for whichever stream writes first. When that is full, what comes goes into `Ends`, which drop the oldest
bytes, so memory is bounded. Reading is bounded, too: after each read of such output the reader waits, and the longer,
the later the loop comes to it (`pause`), so that programs that write without end leave the loop to all others.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward._native.memfd import SEALS, SIZE_SEALS, memory_file, seal
from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.reactor import READ, Reactor, Timer
from leeward.daemon.run.report import PLACEMENTS, Arena, Region
from leeward.daemon.run.starvation import busy
from leeward.daemon.run.verdict import FAULT, Fault, Stop, read

if TYPE_CHECKING:
    from leeward.daemon.run.execution import Execution


#: Bytes of a limit that are for the ends of both streams, at most. Half of a smaller limit is.
_ENDS = 1 << 20
#: Bytes that the text about what was left out takes, at most, for each stream.
NOTE_ROOM = 64
#: Bytes of excess output that are read at once: as many as a pipe holds.
EXCESS_CHUNK = 64 << 10
#: Seconds between two reads of one stream's excess output: the least, and how many times the delay of the last one.
_PAUSE_S, _PAUSE_SHARE, _PAUSE_MOST_S = 0.001, 8, 0.1


def pause(late: float) -> float:
    """Seconds until the next read of excess output, for which the loop was *late* by so many."""
    return min(_PAUSE_MOST_S, max(_PAUSE_S, _PAUSE_SHARE * late))


def ends_of(limit: int, most: int = _ENDS) -> int:
    """Bytes of *limit* that are for the ends of both streams; *most* at most."""
    return min(limit // 2, most)


class _End:
    """The last bytes of one stream, in blocks: to drop bytes at the front of one large buffer copies the rest."""

    def __init__(self) -> None:
        self._blocks = deque[bytearray]()
        self.size = self.dropped = 0

    def add(self, data: bytes) -> None:
        if self._blocks and len(self._blocks[-1]) + len(data) <= EXCESS_CHUNK:
            self._blocks[-1] += data
        elif data:
            self._blocks.append(bytearray(data))
        self.size += len(data)

    def drop_blocks(self, most: int) -> None:
        """Drop the oldest blocks, *most* bytes at most."""
        while self._blocks and len(self._blocks[0]) <= most:
            most -= len(self._blocks[0])
            self._count(len(self._blocks.popleft()))

    def drop(self, count: int) -> None:
        before = self.dropped
        self.drop_blocks(count)
        rest = count - (self.dropped - before)
        if rest and self._blocks:
            del self._blocks[0][:rest]
            self._count(rest)

    def _count(self, dropped: int) -> None:
        self.size -= dropped
        self.dropped += dropped

    def take(self) -> bytes:
        kept = b"".join(self._blocks)
        self._blocks.clear()
        self.size = 0
        return kept


class Ends:
    """The last bytes of both streams, 0 and 1, in *room* bytes: at least half of it for each, if both need theirs."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._ends = _End(), _End()

    @property
    def dropped(self) -> tuple[int, int]:
        """The bytes of each stream that weren't kept."""
        return self._ends[0].dropped, self._ends[1].dropped

    def put(self, at: int, data: bytes) -> None:
        """Add what was written to stream *at*."""
        own, other = self._ends[at], self._ends[1 - at]
        own.add(data)
        own.drop_blocks(self._excess(own, other))
        other.drop_blocks(self._excess(other, own))

    def _excess(self, one: _End, other: _End) -> int:
        """The bytes of *one* that have no room beside *other*."""
        return min(one.size + other.size - self._room, one.size - self._room // 2)

    def take(self, at: int) -> bytes:
        """What follows the beginning of stream *at*: a note if something was left out, and the end. Take 0 first."""
        own, other = self._ends[at], self._ends[1 - at]
        if not at:
            for one, beside in ((own, other), (other, own)):
                one.drop(max(0, self._excess(one, beside)))
        kept = own.take()
        if not own.dropped:
            return kept
        begun = next((place for place, byte in enumerate(kept[:3]) if byte & 0xC0 != 0x80), min(3, len(kept)))
        own.dropped += begun  # the rest of a character, of UTF-8
        return b"\n[%d bytes left out]\n" % own.dropped + kept[begun:]


_CHUNK = 1 << 20
_READ = 64 << 10
#: Bytes of a job's pipe once it has written much, and of our pipe behind it; every user may have so many by default.
_PIPE = 1 << 20
#: The pages in the pipe count against the job's memory: the pipe is enlarged to at most 1 / _PIPE_SHARE of that.
_PIPE_SHARE = 128
_PAGE = 4096
_TAIL = 16 << 10


@dataclass(slots=True)
class OutputStream:
    """The stdout or the stderr of one job."""

    fd: int  # the daemon's end of the pipe, -1 once it was closed
    offset: int = 0
    length: int = 0
    spilled: bool = False  # the bytes are in the memfd, from `offset` on
    wide: bool = False  # the pipe was enlarged, or can't be
    head: bytearray = field(default_factory=bytearray)  # the bytes, while they are few


class Output:
    """
    Both streams of one job, and the *limit* in bytes that they share; up to *inline* bytes of both stay in memory.
    *memory* is the job's memory limit. *cuts*: keep the beginning and the end of longer output.
    """

    def __init__(self, out: int, err: int, limit: int, *, inline: int = PLACEMENTS["auto"].output,
                 memory: int = 1 << 30, cuts: bool = False) -> None:
        room = -(-(limit + (NOTE_ROOM if cuts else 0)) // _PAGE) * _PAGE
        self.out = OutputStream(out)
        self.err = OutputStream(err, offset=room)
        self._ends = Ends(ends_of(limit)) if cuts else None
        self._heads = limit - ends_of(limit) if cuts else limit
        self.exceeded = False  # the job wrote more than *limit*, and isn't to go on
        self.omitted = 0, 0  # bytes of stdout and of stderr that `join` has left out
        self.listener: Callable[[], None] | None = None  # called when more bytes were read
        self.seen = False  # the client got some of it while the job ran
        self.memfd = -1
        self._room = room
        self._inline = inline
        self._pipe = max(_READ, min(_PIPE, memory // _PIPE_SHARE))
        self._behind = -1, -1  # the pipe of our own: read end, write end

    @property
    def truncated(self) -> bool:
        return self.exceeded or any(self.omitted)

    @property
    def in_excess(self) -> bool:
        """Whether the beginnings are full, so that what comes is kept only if it is the end."""
        return self._ends is not None and self.out.length + self.err.length >= self._heads

    def drain(self, stream: OutputStream) -> bool:
        """Read a bounded piece of the pipe's content, so that a flood takes turns. False when the writers are gone."""
        taken = 0
        while taken < (EXCESS_CHUNK if self.in_excess else _CHUNK) and not self.exceeded:
            try:
                count = self._step(stream)
            except BlockingIOError:
                return True
            if count == 0:
                return False
            taken += count
        return True

    def take_rest(self) -> None:
        """Read the present content of both pipes, and nothing that is written later, because the job is over."""
        for stream in (self.out, self.err):
            if stream.fd < 0:
                continue
            held = unread(stream.fd)
            try:
                while held > 0 and not self.exceeded:
                    held -= self._step(stream) or held
            except BlockingIOError:
                continue  # a job may read its own pipe

    def _step(self, stream: OutputStream) -> int:
        left = self._heads - self.out.length - self.err.length
        if left <= 0 and self._ends is not None:
            data = os.read(stream.fd, EXCESS_CHUNK)
            self._ends.put(int(stream is self.err), data)
            return len(data)
        if left <= 0:
            over = len(os.read(stream.fd, 1))
            self.exceeded = over > 0
            return over
        count = self._spill(stream, left) if stream.spilled else self._keep(stream, left)
        stream.length += count
        return count

    def _keep(self, stream: OutputStream, left: int) -> int:
        data = os.read(stream.fd, min(left, _READ))
        stream.head += data
        if len(self.out.head) + len(self.err.head) > self._inline:
            self._move_out(stream)
        return len(data)

    def _move_out(self, stream: OutputStream) -> None:
        if self.memfd < 0:
            self.memfd = self._made()
        self._write(bytes(stream.head), stream.offset)
        stream.head.clear()
        stream.spilled = True

    def _made(self) -> int:
        """Make a memory file with room for both streams, and seal its size."""
        memfd = memory_file("leeward_results")
        try:
            os.ftruncate(memfd, 2 * self._room)
            seal(memfd, SIZE_SEALS)
        except BaseException:
            os.close(memfd)
            raise
        return memfd

    def _widen(self, stream: OutputStream) -> None:
        """Enlarge the pipe for a flood. If the kernel refuses, the pipe keeps its size."""
        stream.wide = True
        widen(stream.fd, self._pipe)
        if self._behind[0] < 0:
            with contextlib.suppress(OSError):
                self._behind = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                widen(self._behind[1], self._pipe)

    def _spill(self, stream: OutputStream, left: int) -> int:
        end = stream.offset + stream.length
        if not stream.wide and stream.length > 2 * _READ:
            self._widen(stream)
        read, write = self._behind
        if read < 0:
            return os.splice(stream.fd, self.memfd, min(left, _CHUNK), offset_dst=end, flags=os.SPLICE_F_NONBLOCK)
        count = os.splice(stream.fd, write, min(left, _CHUNK), flags=os.SPLICE_F_NONBLOCK)
        done = 0
        try:
            while done < count:
                done += os.splice(read, self.memfd, count - done, offset_dst=end + done)
        except OSError:
            self._close_behind()  # drops bytes that can't be stored; the job is ended for this error
            raise
        return count

    def join(self) -> None:
        """Put the ends of both streams behind their beginnings. Nothing may be read afterwards."""
        ends, self._ends = self._ends, None
        if ends is None:
            return
        for at, stream in enumerate((self.out, self.err)):
            end = ends.take(at)
            if stream.spilled:
                self._write(end, stream.offset + stream.length)
            else:
                stream.head += end
            stream.length += len(end)
            if not stream.spilled and len(self.out.head) + len(self.err.head) > self._inline:
                self._move_out(stream)
        self.omitted = ends.dropped

    def since(self, stream: OutputStream, start: int) -> bytes:
        """
        The bytes of *stream* from *start* on that were read so far, 64 KiB at most, without those that may be left out
        of the result: of stderr from the first text of faulthandler on. Call before `seal`.
        """
        size = min(_READ, stream.length - start)
        if size <= 0:
            return b""
        if not stream.spilled:
            data = bytes(stream.head[start:start + size])
        else:
            data = os.pread(self.memfd, size, stream.offset + start)
        return data.partition(FAULT)[0] if stream is self.err else data

    def tail(self, stream: OutputStream) -> bytes:
        """The last 16 KiB of *stream* that were read. Call before `seal`."""
        if not stream.spilled:
            return bytes(stream.head[-_TAIL:])
        size = min(_TAIL, stream.length)
        return os.pread(self.memfd, size, stream.offset + stream.length - size)

    def take_fault(self) -> Fault:
        """Remove leeward's frames from faulthandler's text at the end of stderr. Returns that text. Call before `seal`."""
        words = self.tail(self.err)
        fault = read(words)
        self._replace_tail(self.err, len(words), fault.words)
        return fault

    def _replace_tail(self, stream: OutputStream, size: int, data: bytes) -> None:
        """Replace the last *size* bytes by *data*, which isn't longer."""
        if len(data) == size:
            return
        if stream.spilled:  # the bytes behind the new end belong to neither stream
            self._write(data + bytes(size - len(data)), stream.offset + stream.length - size)
        else:
            stream.head[-size:] = data
        stream.length += len(data) - size

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.memfd, view, at)
            view, at = view[written:], at + written

    def seal(self) -> int:
        """Seal the memfd, and give it to the caller; -1 if there is none. The pipes stay for `close_pipes`."""
        memfd, self.memfd = self.memfd, -1
        self._close_behind()
        if memfd >= 0:
            try:
                seal(memfd, SEALS)
            except OSError:
                os.close(memfd)
                raise
        return memfd

    def arena(self, memfd: int) -> Arena:
        """The arena of *memfd*, which `seal` has returned, with the places of both streams."""
        return Arena(memfd, 2 * self._room, _region(self.out), _region(self.err))

    def close_pipes(self) -> None:
        """Close the pipes. A process that still writes gets SIGPIPE from now on."""
        for stream in (self.out, self.err):
            if stream.fd >= 0:
                os.close(stream.fd)
                stream.fd = -1

    def drop(self) -> None:
        self._close_behind()
        if self.memfd >= 0:
            os.close(self.memfd)
            self.memfd = -1

    def close(self) -> None:
        self.close_pipes()
        self.drop()

    def _close_behind(self) -> None:
        ends, self._behind = self._behind, (-1, -1)
        for fd in ends:
            if fd >= 0:
                os.close(fd)


def widen(pipe: int, room: int) -> None:
    """Give a pipe room for *room* bytes, unless its user's pipes have too many already: pipe(7)."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, room)


def unread(pipe: int) -> int:
    """The number of bytes in a pipe, of which *pipe* is either end."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _region(stream: OutputStream) -> Region | None:
    return (stream.offset, stream.length) if stream.spilled else None


#: Seconds for which output is first left in the pipes. A pipe holds 64 KiB.
_FIRST_LOOK_S = 0.005
#: Bytes in a pipe from which on it is read earlier, because a job that writes more than a pipe holds waits.
_FLOOD, _FLOOD_LOOK_S = 32 << 10, 0.001
#: Bytes in a pipe with which a job that writes more may wait for the daemon.
FULL = 60 << 10
#: Seconds between reads. Waking the daemon for each line of a job would cost both more than the lines themselves.
_NEXT_LOOK_S = 0.002


class OutputWatch:
    """
    Decides when the output of a job that began at *started* is read from its pipes while it runs.

    A short job's output is read at once at its end, and the daemon isn't woken for each line. At first the pipes are
    checked every millisecond, so that a flood doesn't wait, and from _FIRST_LOOK_S on the loop waits for them. After
    some output the daemon reads again only after _NEXT_LOOK_S; a flood it goes on reading at once, up to the limit on
    output, and what is beyond that with pauses.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, output: Output, execution: Execution, started: float) -> None:
        self._reactor, self._output, self._execution, self._started = reactor, output, execution, started
        self.broken = execution.broken
        self._watched: set[int] = set()
        self._looks: dict[int, Timer] = {}  # by the pipe's descriptor
        self._rest: dict[int, float] = {}  # seconds from its last read to the next look, likewise
        self._unread: dict[int, tuple[float, float]] = {}  # since when it wasn't, and how busy this thread was, likewise
        if execution.counts_waiting:
            self._unread = {stream.fd: (started, busy()) for stream in (output.out, output.err)}
        self._first: Timer
        self._look_for_flood(started + _FLOOD_LOOK_S)

    def _look_for_flood(self, when: float) -> None:
        """Check for a flood every millisecond from *when* on, until there is one or the first look at any output is due."""
        due = when >= self._started + _FIRST_LOOK_S
        self._first = self._reactor.at(when, self._begin if due else partial(self._look, when))

    def _look(self, when: float) -> None:
        if max(unread(self._output.out.fd), unread(self._output.err.fd)) >= _FLOOD:
            self._begin()
        else:
            self._look_for_flood(when + _FLOOD_LOOK_S)

    def _begin(self) -> None:
        self._execution.take_back()
        for stream in (self._output.out, self._output.err):
            self._watch(stream)

    def _take(self, stream: OutputStream, _events: int = 0, late: float = 0.0) -> None:
        before = stream.length
        if self._execution.counts_waiting:
            self._count_waiting(stream.fd)
        try:
            more = self._output.drain(stream)
        except OSError:
            self._execution.stop(Stop.STORE)
        else:
            if self._output.exceeded:
                self._execution.stop(Stop.OUTPUT)
            elif not more:
                self._forget(stream.fd)
            elif self._output.in_excess:
                self._look_later(stream, pause(late))
            elif stream.length - before < _FLOOD:
                self._look_later(stream, _NEXT_LOOK_S)
            elif stream.fd not in self._watched:
                self._watch(stream)
        if self._output.listener is not None and stream.length > before:
            self._output.listener()
        if self._execution.stopped:  # a pipe that stays full would wake the loop again and again
            self._forget(self._output.out.fd)
            self._forget(self._output.err.fd)

    def _count_waiting(self, pipe: int) -> None:
        """
        Count for how long the job may have waited to write. While this thread sleeps nobody waits for it, but until a
        look: so a job that leaves its pipe empty for long and then fills it gains what the daemon was late, and no more.
        """
        now, used = self._reactor.now(), busy()
        since, before = self._unread[pipe]
        late = min(now - since, used - before + self._rest.pop(pipe, 0.0))
        if unread(pipe) >= FULL:
            self._execution.waited_for_us(late)
        self._unread[pipe] = now, used

    def take_full(self) -> bool:
        """Read the pipes that are full, at which the job may wait, and count for how long. Returns whether it goes on."""
        for stream in (self._output.out, self._output.err):
            if stream.fd >= 0 and not self._execution.stopped and unread(stream.fd) >= FULL:
                if (look := self._looks.pop(stream.fd, None)) is not None:
                    look.cancel()
                self._take(stream)
        return not (self._execution.over or self._execution.stopped)

    def _look_later(self, stream: OutputStream, seconds: float) -> None:
        self._forget(stream.fd)
        self._rest[stream.fd] = seconds
        when = self._reactor.now() + seconds
        self._looks[stream.fd] = self._reactor.at(when, partial(self._look_again, stream, when))

    def _look_again(self, stream: OutputStream, when: float) -> None:
        if self._execution.over or self._execution.stopped:
            return
        if unread(stream.fd):
            self._take(stream, late=self._reactor.now() - when)
        else:
            self._watch(stream)

    def _watch(self, stream: OutputStream) -> None:
        if stream.fd >= 0 and not self._execution.over:
            self._reactor.watch(stream.fd, READ, partial(self._take, stream))
            self._watched.add(stream.fd)

    def _forget(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            self._reactor.forget(fd)

    def close(self) -> None:
        """Stop watching. The content of the pipes stays there."""
        for timer in (self._first, *self._looks.values()):
            timer.cancel()
        for fd in tuple(self._watched):
            self._forget(fd)
