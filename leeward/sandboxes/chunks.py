"""
Output of a process that no client has taken yet: numbered chunks, in the order in which they were read.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections import deque

from leeward.dataclass import dataclass

#: Bytes that wait for a reader before the process's pipes are left alone. Two pipes' worth.
ROOM = 128 << 10
#: Bytes of one answer.
MOST = 1 << 20
#: What a chunk costs beside its bytes: a process that writes byte by byte must not take more than its room.
_EACH = 128

#: The streams, as the wire numbers them.
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """
    Attributes:
        number: from 1 on, without gaps.
        stream: STDOUT or STDERR.
        time: when it was read, CLOCK_MONOTONIC seconds of the daemon's host.
    """

    number: int
    stream: int
    time: float
    data: bytes


class Chunks:
    """
    A bounded queue of chunks. A reader says up to which number it has them.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._waiting: deque[OutputChunk] = deque()
        self._last = 0
        self.size = 0

    @property
    def full(self) -> bool:
        """
        Whether the writer has to wait.
        """
        return self.size >= self._room

    @property
    def last(self) -> int:
        """
        The number of the newest chunk, 0 before there is one.
        """
        return self._last

    def put(self, stream: int, time: float, data: bytes) -> None:
        """
        Add what was read. Small pieces of one stream that nobody waits for stay apart: each has its time.
        """
        self._last += 1
        self._waiting.append(OutputChunk(self._last, stream, time, data))
        self.size += len(data) + _EACH

    def forget(self, upto: int) -> None:
        """
        The reader has the chunks up to this number.
        """
        while self._waiting and self._waiting[0].number <= upto:
            self.size -= len(self._waiting.popleft().data) + _EACH

    def after(self, number: int, most: int = MOST) -> list[OutputChunk]:
        """
        Chunks behind *number*, of *most* bytes together, or one that is larger.
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
        """
        Give up what waits.
        """
        self._waiting.clear()
        self.size = 0
