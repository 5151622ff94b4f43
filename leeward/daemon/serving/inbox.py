"""
Bytes that one client has sent and that aren't served yet: complete requests, and one incomplete frame.

Runs in:   the daemon.
Trust:     none in a client. The bytes of unfinished frames are bounded for all connections together, and for those of
           one guest; how long a frame may take is `FRAME_S`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leeward.daemon.serving.share import GUEST_SHARE, Share
from leeward.errors import Busy, PeerError
from leeward.wire.frames import FrameReader, frame
from leeward.wire.long_frames import LongFrame

if TYPE_CHECKING:
    from leeward.daemon.serving.server import Server

#: Seconds that a frame may take from its first byte to its last; 64 MiB take 0.1 s here.
FRAME_S = 10.0
#: Bytes of unfinished frames of all connections together.
INPUT = 512 << 20
#: Bytes that are searched for requests in one step.
_LOOK = 512
#: Unfinished frames below this size aren't counted against INPUT.
_CHUNK = 1 << 16


class Inbox:
    """
    The unserved input of one connection.

    Attributes:
        held: bytes of the unfinished frame that have been searched.
        pending: payloads of complete requests, the oldest first.
        since: when the unfinished frame began, if there is one.
    """

    __slots__ = ("_reader", "_rest", "_server", "_share", "held", "pending", "since")

    def __init__(self, server: Server, share: Share) -> None:
        self._server, self._share = server, share
        self._reader = FrameReader(store=LongFrame)
        self.held = 0
        self._rest = memoryview(b"")  # received, and not yet looked at
        self.pending: deque[bytes | memoryview] = deque()
        self.since: float | None = None

    def feed(self, data: bytes, now: float) -> None:
        """
        Add received bytes, and look for requests in the first of them.

        Raises:
            PeerError, Busy: as `look`.
        """
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        self.look(now)

    @property
    def more(self) -> bool:
        """Whether there are requests that weren't served, or bytes that weren't searched for requests."""
        return bool(self.pending or self._rest)

    def next(self, now: float) -> bytes | memoryview | None:
        """
        Remove and return the oldest complete request; None if there is none.

        Raises:
            PeerError, Busy: as `look`.
        """
        while not self.pending and self._rest:
            self.look(now)
        return self.pending.popleft() if self.pending else None

    def look(self, now: float) -> None:
        """
        Look for requests in the next bytes: a small number of them, or the rest of the frame that has begun. 64 KiB may
        be 4,000 requests, and to find them all takes as long as to serve many.

        Raises:
            PeerError: the bytes aren't a frame, so the start of the next frame is unknown.
            Busy: too many bytes of unfinished frames are held already, or there is no memory for this one.
        """
        data = self._rest[:max(_LOOK, self._reader.lacks)]
        self._rest = self._rest[len(data):]
        try:
            self.pending += self._reader.feed(data)
        except PeerError:
            self._hold(0)
            raise
        except OSError as error:
            raise Busy(f"no memory for the request: {error.strerror}") from None
        held = self._reader.held
        if held != self.held:
            self._hold(held)
        if not held:
            self.since = None
        elif self.since is None or self.pending:
            self.since = now
        if held > _CHUNK:
            if self._server.held > INPUT:
                raise Busy(f"requests of {INPUT} bytes are on their way already")
            if self._share.guest and self._share.held > INPUT // GUEST_SHARE:
                raise Busy(f"requests of {INPUT // GUEST_SHARE} bytes of yours are on their way already")

    def take(self) -> bytes:
        """Remove and return all bytes that aren't served, as they came."""
        rest = b"".join([*map(frame, self.pending), self._reader.take(), self._rest])
        self.since = None
        self.close()
        return rest

    def late(self, now: float, reading: bool) -> bool:
        """Whether the unfinished frame has exceeded FRAME_S. Time in which the daemon doesn't read isn't counted."""
        if self.since is None:
            return False
        if not reading:
            self.since = now
        return now - self.since > FRAME_S

    def close(self) -> None:
        """Drop everything."""
        self._hold(0)
        self._reader.drop()
        self.pending.clear()
        self._rest = memoryview(b"")

    def _hold(self, held: int) -> None:
        """Count so many bytes of an unfinished frame."""
        more, self.held = held - self.held, held
        self._server.held += more
        self._share.held += more
