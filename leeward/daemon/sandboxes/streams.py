"""
The streams of a process in a sandbox: output that no client has taken yet, output kept for its report, and input.

No process of a sandbox ever holds the file of kept output, so it can be sealed. memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from leeward._native.memfd import SEALS, memory_file
from leeward.base.dataclass import dataclass
from leeward.daemon.loop.reactor import WRITE, Reactor
from leeward.daemon.run.output import NOTE_ROOM, Ends, ends_of
from leeward.daemon.run.report import INLINE, Arena, Region
from leeward.errors import Busy

if TYPE_CHECKING:
    from leeward.daemon.run.live_process import LiveProcess

#: Bytes of output that may wait for a reader: at this size the daemon stops reading the process's pipes. As much as two
#: pipes hold.
ROOM = 128 << 10
#: Bytes of chunks in one answer to a reader, at most.
MOST_READ = 1 << 20
#: Bytes that each chunk counts beside its data, so that a process that writes single bytes doesn't take more memory
#: than its room.
_EACH = 128
#: Readers of one process's output that the others wait for.
MOST_READERS = 16
#: Seconds that a process waits in its write for a reader that has stopped while others go on; then that one may miss output.
STALE_S = 10.0

#: The streams, as the wire numbers them.
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of a process's output, read at *time* by the host's CLOCK_MONOTONIC. Numbers have no gaps, from 1 on."""

    number: int
    stream: int
    time: float
    data: bytes


class Chunks:
    """A bounded queue of chunks. Each reader tells the number of the last one that it has, and what all have is dropped."""

    def __init__(self) -> None:
        self._waiting: deque[OutputChunk] = deque()
        self._readers: dict[int, tuple[int, float]] = {}  # what each has, and when it said so; who said it last is last
        self.last = 0
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether the room is used up, so that the process has to wait before it writes more."""
        return self.size >= ROOM

    def put(self, stream: int, time: float, data: bytes) -> None:
        """Add *data* as a chunk of its own. Small ones aren't joined, because each has its own time."""
        self.last += 1
        self._waiting.append(OutputChunk(self.last, stream, time, data))
        self.size += len(data) + _EACH

    @property
    def readers(self) -> int:
        return len(self._readers)

    def has(self, reader: int, number: int, time: float) -> None:
        """*reader* has the chunks up to *number*. Of too many readers the one that was silent for longest is forgotten."""
        self._readers.pop(reader, None)
        self._readers[reader] = number, time
        if len(self._readers) > MOST_READERS:
            del self._readers[next(iter(self._readers))]
        self._forget()

    def part(self, since: float) -> None:
        """Forget the readers that have asked for nothing *since*, but for the last one."""
        *others, _ = self._readers or (0,)
        for reader in others:
            if self._readers[reader][1] < since:
                del self._readers[reader]
        self._forget()

    def _forget(self) -> None:
        """Drop the chunks that all readers have."""
        upto = min((number for number, _ in self._readers.values()), default=0)
        while self._waiting and self._waiting[0].number <= upto:
            self.size -= len(self._waiting.popleft().data) + _EACH

    def more(self, number: int) -> bool:
        """Whether there are chunks after the number *number*."""
        return bool(self._waiting) and self.last > number

    def after(self, number: int, most: int = MOST_READ) -> list[OutputChunk]:
        """The chunks after the number *number*, up to *most* bytes together; the first of them also if it is larger."""
        found: list[OutputChunk] = []
        for chunk in self._waiting:
            if chunk.number > number:
                most -= len(chunk.data)
                if found and most < 0:
                    break
                found.append(chunk)
        return found

    def drop(self) -> None:
        self._waiting.clear()
        self.size = 0


_PAGE = 4096


class KeptOutput:
    """
    Both streams of one process, which share a *limit* of bytes: in memory up to INLINE bytes, then in a memory file.
    *cuts*: the beginning and the end of longer output are kept. `exceeded`: the process wrote more, and isn't to go on;
    `omitted`: bytes of stdout and of stderr that `take` has left out.
    """

    def __init__(self, limit: int, *, cuts: bool) -> None:
        self._ends = Ends(ends_of(limit)) if cuts else None
        self._limit = limit - ends_of(limit) if cuts else limit
        self._heads = (bytearray(), bytearray())
        self._sizes = [0, 0]
        self._room = max(_PAGE, -(-(limit + NOTE_ROOM) // _PAGE) * _PAGE)
        self._fd = -1
        self.exceeded = False
        self.omitted = 0, 0

    @property
    def in_excess(self) -> bool:
        """Whether the beginnings are full, so that what comes is kept only if it is the end."""
        return self._ends is not None and sum(self._sizes) >= self._limit

    def put(self, stream: int, data: bytes) -> None:
        """Keep what the process wrote to *stream*, 1 or 2, as far as the limit goes; OSError if there is no file for it."""
        left, at = self._limit - sum(self._sizes), stream - 1
        if len(data) > left:
            if self._ends is not None:
                self._ends.put(at, data[left:])
            else:
                self.exceeded = True
            data = data[:left]
        self._keep(at, data)

    def _keep(self, at: int, data: bytes) -> None:
        if self._fd < 0 and sum(self._sizes) + len(data) > INLINE:
            self._move_out()
        if self._fd < 0:
            self._heads[at].extend(data)
        else:
            self._write(data, at * self._room + self._sizes[at])
        self._sizes[at] += len(data)

    def _move_out(self) -> None:
        self._fd = memory_file("leeward_results")
        os.ftruncate(self._fd, 2 * self._room)
        for at, head in enumerate(self._heads):
            self._write(bytes(head), at * self._room)
            head.clear()

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def take(self) -> tuple[bytes, bytes, Arena | None]:
        """stdout and stderr, or the sealed memory file of both, the caller's now; OSError if it can't be made or sealed."""
        ends, self._ends = self._ends, None
        if ends is not None:
            for at in (0, 1):
                self._keep(at, ends.take(at))
            self.omitted = ends.dropped
        fd, self._fd = self._fd, -1
        if fd < 0:
            stdout, stderr = map(bytes, self._heads)
            self.drop()
            return stdout, stderr, None
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(fd)
            raise
        regions: list[Region | None] = [(at * self._room, size) if size else None for at, size in
                                        enumerate(self._sizes)]
        return b"", b"", Arena(fd, 2 * self._room, *regions)

    def drop(self) -> None:
        for head in self._heads:
            head.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


#: Bytes that may wait to be written to one process.
MOST_INPUT = 4 << 20

#: Bytes that are written in one turn of the loop, about: a process that reads as fast as the daemon writes would
#: otherwise hold the loop until it has all of its input.
TURN = 1 << 20

#: Called with the number of bytes of a write that were taken: fewer than all if the process has closed its stdin, or
#: ended.
Taken = Callable[[int], None]


class Feed:
    """A queue of writes to one process's stdin, done one after the other. The last write may close the stdin."""

    def __init__(self, reactor: Reactor, child: LiveProcess) -> None:
        self._reactor, self._child = reactor, child
        self._waiting: deque[tuple[memoryview, int, Taken]] = deque()
        self._watching = -1
        self._size = 0
        self._ends = False

    @property
    def open(self) -> bool:
        return self._child.stdin >= 0 and not self._ends

    def write(self, data: bytes | memoryview, taken: Taken, *, end: bool = False) -> None:
        """Write *data*, then close the pipe if *end*; *taken* is called once, perhaps at once. Busy if too much waits."""
        if self._waiting and self._size + len(data) > MOST_INPUT:
            raise Busy(f"{self._size} bytes wait to be read by the process already")
        if not self.open:
            taken(0)
            return
        self._ends = end
        self._waiting.append((memoryview(data), len(data), taken))
        self._size += len(data)
        if self._watching < 0:
            self._pump()

    def _pump(self, _events: int = 0) -> None:
        left = TURN
        while self._waiting:
            rest, size, taken = self._waiting[0]
            try:
                while rest and self._child.stdin >= 0:
                    if left <= 0:
                        raise BlockingIOError
                    count = os.write(self._child.stdin, rest[:left])
                    rest, self._size, left = rest[count:], self._size - count, left - count
            except BlockingIOError:
                self._waiting[0] = rest, size, taken
                self._watch()
                return
            except OSError:  # EPIPE: the process has closed its stdin
                self.close()
                return
            if rest:
                self.close()
                return
            self._waiting.popleft()
            taken(size)
        self._forget()
        if self._ends:
            self._child.close_stdin()

    def _watch(self) -> None:
        if self._watching < 0:
            self._watching = self._child.stdin
            self._reactor.watch(self._watching, WRITE, self._pump)

    def _forget(self) -> None:
        fd, self._watching = self._watching, -1
        if fd >= 0:
            self._reactor.forget(fd)

    def close(self) -> None:
        """Close the process's stdin, and complete the waiting writes with the number of bytes that it has taken so far."""
        self._forget()
        self._child.close_stdin()
        waiting, self._waiting, self._size = self._waiting, deque(), 0
        for rest, size, taken in waiting:
            taken(size - len(rest))
