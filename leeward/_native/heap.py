"""When the C library returns memory to the kernel, and where the interpreter puts small objects. mallopt(3); decision 0145"""

from __future__ import annotations

import errno

from leeward._native._shim import lib
from leeward.errors import KernelRefusal


def give_back(threshold: int) -> bool:
    """
    Make the C library return blocks of *threshold* bytes and more to the kernel when they are freed; False where the
    allocator has no such setting. Otherwise glibc keeps blocks of up to 32 MiB once a block of that size was freed.
    """
    error = lib.lw_heap_give_back(threshold)
    if error == -errno.ENOSYS:
        return False
    if error < 0:
        raise KernelRefusal("mallopt", f"M_MMAP_THRESHOLD, {threshold}", -error)
    return True


def huge_arenas(room: int) -> bool:
    """
    Put the arenas that the interpreter takes from now on into *room* bytes of huge pages, a multiple of 2 MiB. False,
    and nothing is changed, if it has no arenas or the space can't be reserved. Call it once.
    """
    return bool(lib.lw_arenas_gather_huge(room))
