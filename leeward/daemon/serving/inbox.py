"""
What one client has sent and isn't served yet: requests, an incomplete frame, and large requests in a memory file.

The bytes of unfinished frames are bounded for all connections, and for those of one guest; a frame has FRAME_S. A
request in the arena may change at any moment: it is copied out once, by read(2), and only the copy is decoded. The
file's size is sealed, and it is never mapped here, so no change of it can kill the daemon. memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
from collections import deque
from typing import TYPE_CHECKING, overload

from leeward._native.memfd import SIZE_SEALS, memory_file
from leeward.daemon.serving.rounds import GUEST_SHARE, Share
from leeward.errors import BadRequest, Busy, PeerError
from leeward.wire.frames import FrameReader
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
    One connection's unserved input: `held` bytes of a frame that began at `since`, and `pending` payloads, oldest
    first.
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
        """Add received bytes, and `look` for requests in the first of them."""
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        self.look(now)

    @property
    def more(self) -> bool:
        """Whether there are requests that weren't served, or bytes that weren't searched for requests."""
        return bool(self.pending or self._rest)

    def next(self, now: float) -> bytes | memoryview | None:
        """Remove and return the oldest complete request; None if there is none. Raises as `look`."""
        while not self.pending and self._rest:
            self.look(now)
        return self.pending.popleft() if self.pending else None

    def look(self, now: float) -> None:
        """
        Look for requests in the next bytes: a small number of them, or the rest of a frame, as 64 KiB may be 4,000
        requests. PeerError if the bytes aren't a frame; Busy if there is no room or memory for one.
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

    def late(self, now: float, reading: bool) -> bool:
        """Whether the unfinished frame has exceeded FRAME_S. Time in which the daemon doesn't read isn't counted."""
        if self.since is None:
            return False
        if not reading:
            self.since = now
        return now - self.since > FRAME_S

    def close(self) -> None:
        self._hold(0)
        self._reader.drop()
        self.pending.clear()
        self._rest = memoryview(b"")

    def _hold(self, held: int) -> None:
        more, self.held = held - self.held, held
        self._server.held += more
        self._share.held += more


#: Slots of an arena, and bytes of each. There are more slots than a client usually has large requests in flight:
#: docs/decisions/0013-shared-memory.md.
SLOTS = 4
SLOT = 16 << 20
#: Bytes of the arenas of all connections together; fewer if the daemon may have few descriptors. Pages are allocated
#: when the client writes, and are charged to the client.
TOTAL = 2 << 30

SEALS = SIZE_SEALS | fcntl.F_SEAL_SEAL


@functools.cache
def _private() -> memoryview:
    """Our buffer, in which copies of requests are decoded in turn: fresh pages for each would cost more than the copy."""
    return memoryview(mmap.mmap(-1, SLOT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _check_slot(slot: int, length: int) -> None:
    if not 0 <= slot < SLOTS:
        raise BadRequest(f"slot {slot} is none of the {SLOTS} that an arena has")
    if not 0 < length <= SLOT:
        raise BadRequest(f"{length} bytes don't lie in a slot of {SLOT}")


class Look:
    """Bytes in a client's slot, read when they are accessed. The client may change them at any time."""

    def __init__(self, fd: int, start: int, length: int) -> None:
        self._fd, self._start, self._length = fd, start, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> bytes: ...
    def __getitem__(self, at: int | slice, /) -> int | bytes:
        """Read one byte (IndexError if there is none), or a slice as far as these bytes go, from the file."""
        if isinstance(at, int):
            return self[at:at + 1][0]
        start, end, _ = at.indices(self._length)
        try:
            return os.pread(self._fd, max(0, end - start), self._start + start)
        except OSError:
            return b""


class RequestArena:
    """The request arena of one connection: a memory file of *size* bytes, into which its client writes large requests."""

    size = SLOTS * SLOT

    def __init__(self, reader: int) -> None:
        self._reader = reader

    @classmethod
    def make(cls) -> tuple[RequestArena, int]:
        """Make an arena. Returns it, and the descriptor for its client, which the caller owns; OSError if there is none."""
        fd = memory_file("leeward_requests")
        try:
            os.ftruncate(fd, cls.size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            # A separate open file description, so that the client doesn't share our flags and offset.
            return cls(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)), fd
        except BaseException:
            os.close(fd)
            raise

    def take(self, slot: int, length: int) -> memoryview:
        """Return a copy of *length* bytes in *slot*, valid until the next call for any arena; BadRequest without them."""
        _check_slot(slot, length)
        copy = _private()[:length]
        try:
            got = os.preadv(self._reader, [copy], slot * SLOT)
        except OSError as error:
            raise BadRequest(f"slot {slot} can't be read: {error.strerror}") from None
        if got != length:
            raise BadRequest(f"slot {slot} can't be read: {got} of {length} bytes")
        return copy

    def look(self, slot: int, length: int) -> Look:
        """Return the bytes in *slot* uncopied, for checks that may be wrong: the client may change them."""
        _check_slot(slot, length)
        return Look(self._reader, slot * SLOT, length)

    def close(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
