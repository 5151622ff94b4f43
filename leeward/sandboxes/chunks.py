"""
Output of a process that no client has taken yet: numbered chunks, in the order in which they were read.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections import deque

from leeward.dataclass import dataclass

#: Bytes of output that may wait for a reader: at this size the daemon stops reading the process's pipes. As much as two
#: pipes hold.
ROOM = 128 << 10
#: Bytes of chunks in one answer to a reader, at most.
MOST = 1 << 20
#: Bytes that each chunk counts beside its data, so that a process that writes single bytes doesn't take more memory
#: than its room.
_EACH = 128

#: The streams, as the wire numbers them.
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """
    A piece of a process's output, as it was read.

    Attributes:
        number: from 1 on, without gaps.
        stream: STDOUT or STDERR.
        time: when the daemon read it, in seconds of its host's CLOCK_MONOTONIC.
    """

    number: int
    stream: int
    time: float
    data: bytes


class Chunks:
    """
    A bounded queue of chunks. A reader reports the number of the last chunk that it has, and the chunks up to that
    number are dropped.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._waiting: deque[OutputChunk] = deque()
        self._last = 0
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether the room is used up, so that the process has to wait before it writes more."""
        return self.size >= self._room

    @property
    def last(self) -> int:
        """The number of the newest chunk, 0 before there is one."""
        return self._last

    def put(self, stream: int, time: float, data: bytes) -> None:
        """
        Add *data*, which was read from *stream* at *time*, as a chunk of its own. Small chunks aren't joined, because
        each has its own time.
        """
        self._last += 1
        self._waiting.append(OutputChunk(self._last, stream, time, data))
        self.size += len(data) + _EACH

    def forget(self, upto: int) -> None:
        """Drop the chunks up to the number *upto*: the reader has them."""
        while self._waiting and self._waiting[0].number <= upto:
            self.size -= len(self._waiting.popleft().data) + _EACH

    def after(self, number: int, most: int = MOST) -> list[OutputChunk]:
        """
        The chunks after the number *number*, up to *most* bytes together. The first of them is returned even if it is
        larger.
        """
        found: list[OutputChunk] = []
        for chunk in self._waiting:
            if chunk.number > number:
                most -= len(chunk.data)
                if found and most < 0:
                    break
                found.append(chunk)
        return found

    def drop(self) -> None:
        """Drop all chunks that wait for a reader."""
        self._waiting.clear()
        self.size = 0
