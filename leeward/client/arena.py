"""
Results in memory files: checked, then mapped. On a system that isn't Linux no daemon runs, and each file is of this process,
which remote.py makes of another machine's answer: an ordinary one whose name is gone.

Trust:     none in the descriptor. A file that can shrink could end the client by SIGBUS, and one that can be written
           could change while it is read. So the seals and the size are read from the kernel: memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import sys

from leeward.errors import BadReply

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence

if sys.platform == "linux":
    SHRINK = fcntl.F_SEAL_SHRINK
    #: The seals without which the bytes could change.
    SEALS = SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

    def seals_of(fd: int) -> int:
        """OSError if it is no memory file."""
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)

    def _unnamed() -> int:
        return os.memfd_create("leeward-result", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def seal(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
else:
    from tempfile import TemporaryFile

    SHRINK = SEALS = 0

    def seals_of(fd: int) -> int:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink:
            raise OSError("a file that others can open")
        return SEALS

    def _unnamed() -> int:
        with TemporaryFile(buffering=0) as file:
            return os.dup(file.fileno())

    def seal(fd: int) -> None: ...


def new_file(size: int) -> int:
    """A file of zeros that can be sealed; the caller owns its close-on-exec descriptor."""
    fd = _unnamed()
    try:
        os.truncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_arena(fd: int, size: int) -> memoryview:
    """Map *fd*, which stays the caller's, read-only; BadReply if it isn't a sealed memory file of *size* bytes."""
    try:
        seals = seals_of(fd)
    except OSError:
        raise BadReply("the daemon sent a descriptor that isn't a memory file") from None
    if seals & SEALS != SEALS:
        raise BadReply(f"the daemon sent a memory file that isn't sealed: seals {seals:#x}, want {SEALS:#x}")
    if os.fstat(fd).st_size != size:
        raise BadReply(f"the daemon sent a memory file of {os.fstat(fd).st_size} bytes, and announced {size}")
    try:
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    except (OSError, ValueError, OverflowError) as error:
        raise BadReply(f"a result of {size} bytes can't be mapped: {error}") from None


def map_arenas(fds: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
    try:
        return [map_arena(fd, size) for fd, size in zip(fds, sizes, strict=True)]
    finally:
        for fd in fds:
            os.close(fd)


def piece(value: bytes | tuple[int, int, int], arenas: Sequence[memoryview]) -> bytes | memoryview:
    """The content of a field: *value* itself, or the part of a mapping that it names as (arena, offset, length)."""
    if isinstance(value, bytes):
        return value
    arena, offset, length = value
    return arenas[arena][offset:offset + length]
