"""
Private memory becomes a private mapping of a memory file with the same content; and where CPython's arenas are.

Runs in:   the zygote.
Needs:     one thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.memfd import memory_file
from leeward.errors import KernelRefusal

#: What jobs see of it in /proc/self/maps.
_NAME = "leeward_zygote"
#: Reserved addresses, not memory.
_ROOM = 1 << 30


def gather_arenas() -> None:
    """
    Have the interpreter put memory for small objects side by side from now on, where it has arenas.
    """
    lib.lw_arenas_gather(_ROOM)


def gathered_arenas() -> tuple[int, int]:
    """
    Where these are, address and bytes. No more are gathered.
    """
    gathered = lib.lw_arenas_gathered()
    return int(gathered.start), int(gathered.size)


def thread_storage() -> int:
    """
    An address in this thread's storage.
    """
    return int(lib.lw_thread_storage())


class Snapshot:
    """
    Laid out beforehand, since what is allocated while it is taken would be lost.

    Args:
        pages: address, bytes and PROT_* of whole pages; neither of a stack nor of a thread's storage.
    """

    def __init__(self, pages: Sequence[tuple[int, int, int]]) -> None:
        self._parts: Any = ffi.new("struct lw_snapshot_part[]",
                                   [((start, size), protection) for start, size, protection in pages])
        self.taken: Any = ffi.new("struct lw_snapshot_parts *", {"parts": self._parts, "count": len(pages), "map": -1})

    def take(self, *, huge: bool = True) -> bool:
        """
        False where there is no file for it; nothing is changed then.

        Args:
            huge: in huge pages, as far as the kernel gives them.

        Raises:
            KernelRefusal: a part couldn't be mapped, and may be gone.
        """
        try:
            file = memory_file(_NAME)
        except OSError:
            return False
        try:
            done = int(lib.lw_snapshot_take(file, self._parts, self.taken.count, huge))
        finally:
            os.close(file)
        if done < 0:
            raise KernelRefusal("mmap", "a snapshot", -done)
        return 0 == done

    def look(self) -> None:
        """
        In a keeper, as long as it can: get its page map, which tells what it has read of the snapshot and needn't keep.
        """
        try:
            self.taken.map = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.taken.map = -1
