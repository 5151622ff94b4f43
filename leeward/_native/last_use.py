"""Tells when nobody has a file any more: no name, no descriptor, no mapping. inotify(7)"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

from leeward._native._shim import lib

_EVENT = struct.Struct("iIII")
_IN_IGNORED = 0x8000  # the last event of a watch


def new_queue() -> int:
    """Make a queue of last uses; the caller owns its close-on-exec descriptor. OSError without one."""
    return _checked(lib.lw_last_uses())


def watch(queue: int, fd: int) -> int:
    """Have *queue* tell of the last use of a file, by the number returned, one for all descriptors of it. OSError."""
    return _checked(lib.lw_last_use(queue, fd))


def told(queue: int) -> Iterator[int]:
    """The numbers of files that nobody has any more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data = os.read(queue, 1 << 14)
            while data:
                number, what, _, length = _EVENT.unpack_from(data)
                if what & _IN_IGNORED:
                    yield number
                data = data[_EVENT.size + length:]


def _checked(found: int) -> int:
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    return found
