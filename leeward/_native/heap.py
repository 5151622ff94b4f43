"""
When the C library gives memory back to the kernel, and where the interpreter has its small objects.

Runs in:   the daemon, at its start.
Source:    mallopt(3); docs/decisions/0152
"""

from __future__ import annotations

import errno

from leeward._native._shim import lib
from leeward.errors import KernelRefusal


def give_back(threshold: int) -> bool:
    """
    Have blocks from *threshold* bytes on go back to the kernel when they are freed.

    By itself glibc keeps blocks of up to 32 MiB once one of that size was freed.

    Returns:
        False where the allocator has no such setting.

    Raises:
        KernelRefusal: *threshold* is no int of C.
    """
    error = lib.lw_heap_give_back(threshold)
    if -errno.ENOSYS == error:
        return False
    if error < 0:
        raise KernelRefusal("mallopt", f"M_MMAP_THRESHOLD, {threshold}", -error)
    return True


def huge_arenas(room: int) -> bool:
    """
    Put the arenas that the interpreter takes from now on into huge pages, as far as *room* bytes go. Call it once.

    Args:
        room: of address space; memory is taken by 2 MiB, as arenas are used. An even number of MiB.

    Returns:
        False where the interpreter has no arenas, or there is no room; nothing is changed then.
    """
    return bool(lib.lw_arenas_gather_huge(room))
