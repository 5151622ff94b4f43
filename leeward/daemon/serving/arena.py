"""
The request arena: a memory file of one connection, whose client writes large requests into it.

Runs in:   the daemon.
Trust:     none in the content, which the client may rewrite at any moment: a request is copied out once,
           by read(2), and only the copy is decoded. None in the file: its size is sealed before the
           client gets it, and it is never mapped here, so no change of the file can kill the daemon.
Source:    memfd_create(2), fcntl(2) on file sealing
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
from typing import overload

from leeward._native.memfd import memory_file
from leeward.errors import BadRequest

#: Slots of an arena, and bytes of each. There are more slots than a client usually has large requests in flight:
#: docs/decisions/0013-shared-memory.md.
SLOTS = 4
SLOT = 16 << 20
#: Bytes of the arenas of all connections together; fewer if the daemon may have few descriptors. Pages are allocated
#: when the client writes, and are charged to the client.
TOTAL = 2 << 30

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@functools.cache
def _private() -> memoryview:
    """
    A buffer of the daemon's own, in which copies of requests are decoded one after the other. It is reused, because
        fresh pages for each request would cost more than the copy.
    """
    return memoryview(mmap.mmap(-1, SLOT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _check(slot: int, length: int) -> None:
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
        """
        Read one byte, or the bytes of a slice, from the file. A slice that exceeds these bytes is shortened.

        Raises:
            IndexError: there is no such byte.
        """
        if isinstance(at, int):
            return self[at:at + 1][0]
        start, end, _ = at.indices(self._length)
        try:
            return os.pread(self._fd, max(0, end - start), self._start + start)
        except OSError:
            return b""


class RequestArena:
    """
    The request arena of one connection.

    Attributes:
        size: bytes of the file.
    """

    size = SLOTS * SLOT

    def __init__(self, reader: int) -> None:
        self._reader = reader

    @classmethod
    def make(cls) -> tuple[RequestArena, int]:
        """
        Make an arena. Returns it, and the descriptor for its client, which the caller owns.

        Raises:
            OSError: no descriptor or no memory is left.
        """
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
        """
        Return a copy of *length* bytes in *slot*, valid until the next call for any arena.

        Raises:
            BadRequest: there is no such slot, or it has fewer bytes.
        """
        _check(slot, length)
        copy = _private()[:length]
        try:
            got = os.preadv(self._reader, [copy], slot * SLOT)
        except OSError as error:
            raise BadRequest(f"slot {slot} can't be read: {error.strerror}") from None
        if got != length:
            raise BadRequest(f"slot {slot} can't be read: {got} of {length} bytes")
        return copy

    def look(self, slot: int, length: int) -> Look:
        """
        Return the bytes in *slot*, without a copy: only for checks whose result may be wrong, because the client may
        change the bytes.

        Raises:
            BadRequest: there is no such slot, or a slot can't have so many bytes.
        """
        _check(slot, length)
        return Look(self._reader, slot * SLOT, length)

    def close(self) -> None:
        """Close our descriptor; the client keeps its own."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
