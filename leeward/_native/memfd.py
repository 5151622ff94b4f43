"""Memory files, which nobody can ever run as a program. memfd_create(2)"""

from __future__ import annotations

import errno
import fcntl
import os

from leeward._native._shim import lib
from leeward.base.points import point

#: Linux 6.3, <linux/memfd.h>; Python has it from 3.14 on.
_NOEXEC_SEAL = 0x8

#: Of a file whose size stays, and of one in which nothing changes any more.
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SEALS = SIZE_SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def memory_file(name: str) -> int:
    """
    Make an empty memory file that can be sealed; the caller owns its close-on-exec descriptor. It has no execute
    permission and is sealed against getting it, from Linux 6.3 on: a host may require that (vm.memfd_noexec=2).
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # older than Linux 6.3


def huge_pages(fd: int, start: int, size: int) -> bool:
    """
    Make huge pages of *size* bytes of a memory file from *start* on, a multiple of 2 MiB, as far as they fill such; there is
    no content yet. Returns whether the kernel gives them; else nothing is made for certain. Linux 6.1.
    """
    made: int = lib.lw_huge_pages(fd, start, size)
    return not made


def free_huge_pages() -> int:
    """The bytes of memory that are free in pieces of 2 MiB, so that no others need be moved; 0 if that isn't told."""
    try:
        with open("/proc/buddyinfo", encoding="ascii") as file:
            rows = [line.split()[4:] for line in file]  # by order: pieces of so many pages as 2 to the power of that
    except OSError:
        return 0
    return sum(int(count) << order - 9 for row in rows for order, count in enumerate(row) if order >= 9) << 21


@point("results.seal")
def seal(fd: int, seals: int) -> None:
    """
    Add *seals* (F_SEAL_...) to those of a memory file. OSError if it is sealed against that, or mapped writable
    (EBUSY).
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
