"""
Settings of the heap: when the C library returns memory to the kernel, and where the interpreter puts small objects.

Runs in:   the daemon, at its start.
Source:    mallopt(3); docs/decisions/0145
"""

from __future__ import annotations

import errno

from leeward._native._shim import lib
from leeward.errors import KernelRefusal


def give_back(threshold: int) -> bool:
    """
    Make the C library return blocks of *threshold* bytes and more to the kernel when they are freed.

    Without this, glibc keeps blocks of up to 32 MiB once a block of that size was freed.

    Returns:
        False where the allocator has no such setting.

    Raises:
        KernelRefusal: *threshold* is no int of C.
    """
    error = lib.lw_heap_give_back(threshold)
    if error == -errno.ENOSYS:
        return False
    if error < 0:
        raise KernelRefusal("mallopt", f"M_MMAP_THRESHOLD, {threshold}", -error)
    return True


def huge_arenas(room: int) -> bool:
    """
    Put the arenas that the interpreter takes from now on into huge pages, as far as *room* bytes go. Call it once.

    Args:
        room: bytes of address space to reserve, a multiple of 2 MiB. Memory is taken by 2 MiB, as arenas are used.

    Returns:
        False if the interpreter has no arenas or the address space can't be reserved; then nothing is changed.
    """
    return bool(lib.lw_arenas_gather_huge(room))
