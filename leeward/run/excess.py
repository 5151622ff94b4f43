"""
What becomes of output beyond its limit, if the program goes on: the last bytes of both streams are kept.

Runs in:   the daemon, and `leeward run`.

Theory of operation. A part of the limit is for the ends of the streams; the rest is for their beginnings, for whichever
stream writes first. When that is full, what comes goes into `Ends`, which drop the oldest bytes. So memory is bounded
however much is written. Reading is bounded, too: after each read of such output the reader waits, and the longer, the
later the loop comes to it (`pause`), so that programs that write without end leave the loop to all others.
"""

from __future__ import annotations

from collections import deque

#: Bytes of a limit that are for the ends of both streams, at most. Half of a smaller limit is.
_ENDS = 1 << 20

#: Bytes that the text about what was left out takes, at most, for each stream.
NOTE_ROOM = 64

#: Bytes of excess output that are read at once: as many as a pipe holds.
EXCESS_CHUNK = 64 << 10

#: Seconds between two reads of one stream's excess output: the least, and how many times the delay of the last one.
_PAUSE_S, _PAUSE_SHARE, _PAUSE_MOST_S = 0.001, 8, 0.1


def pause(late: float) -> float:
    """
    Seconds until the next read of excess output.

    Args:
        late: seconds by which the loop was late for this read.
    """
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
        """Drop the oldest *count* bytes."""
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
    """
    The last bytes of both streams, which are numbered 0 and 1.

    Args:
        room: bytes of both together. Each has at least half of it, if the other one needs its half.
    """

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
        """
        What follows the beginning of stream *at*: a note if something was left out, and the end. Take stream 0 first,
        and add nothing then.
        """
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
