"""Tells when nobody has a file any more: no name, no descriptor, no mapping. inotify(7)"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterator

from leeward._native._shim import lib

_EVENT = struct.Struct("iIII")
_IN_IGNORED = 0x8000  # the last event of a watch
_IN_Q_OVERFLOW = 0x4000  # there were more events than the queue holds (fs.inotify.max_queued_events)


def new_queue() -> int:
    """Make a queue of last uses; the caller owns its close-on-exec descriptor. OSError without one."""
    return _checked(lib.lw_last_uses())


def watch(queue: int, fd: int) -> int:
    """Have *queue* tell of the last use of a file, by the number returned, one for all descriptors of it. OSError."""
    return _checked(lib.lw_last_use(queue, fd))


def told(queue: int, watched: Collection[int]) -> Iterator[int]:
    """The numbers, of those that are *watched*, of files that nobody has any more; some perhaps twice."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data = os.read(queue, 1 << 14)
            while data:
                number, what, _, length = _EVENT.unpack_from(data)
                if what & _IN_IGNORED:
                    yield number
                elif what & _IN_Q_OVERFLOW:
                    yield from set(watched) - _left(queue)
                data = data[_EVENT.size + length:]


def most() -> int:
    """The number of files that all queues of a user may watch; the smallest of the kernel's defaults if it isn't told."""
    try:
        with open("/proc/sys/fs/inotify/max_user_watches") as file:
            return int(file.read())
    except OSError:
        return 8192


def _left(queue: int) -> set[int]:
    """The numbers of files that *queue* still watches. proc_pid_fdinfo(5)"""
    with open(f"/proc/self/fdinfo/{queue}") as file:
        return {int(line.split()[1].removeprefix("wd:"), 16) for line in file if line.startswith("inotify ")}


def _checked(found: int) -> int:
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    return found
