"""
Descriptors that are kept for what must work when no other is left: reading and ending processes and groups.

A process that can't be killed or looked at for want of a descriptor would be ended as by a bug, with its sandbox. So an
open that finds none gives one of these up, and the next open takes it back as soon as there is one again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

#: Files that one look at a process has open at once, and one more.
MOST = 4

_kept: list[int] = []


def fill() -> None:
    """Keep descriptors again, as far as there are any."""
    with contextlib.suppress(OSError):
        while len(_kept) < MOST:
            _kept.append(os.open("/", os.O_PATH | os.O_CLOEXEC))


def opened(make: Callable[[], int]) -> int:
    """The descriptor that *make* returns. If there is none left, it is called again with one that was kept."""
    if len(_kept) < MOST:
        fill()
    try:
        return make()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _kept:
            raise
    os.close(_kept.pop())
    return make()
