"""Replaces private memory by a private mapping of a memory file with the same content, in a zygote with one thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.memfd import memory_file
from leeward.errors import KernelRefusal

#: The memory file's name, which jobs see in /proc/self/maps.
_NAME = "leeward_zygote"
#: Bytes of address space that are reserved for arenas. No memory is taken by that.
_ROOM = 1 << 30


def gather_arenas() -> None:
    """Have the interpreter put its next arenas, the memory for small objects, side by side. Does nothing if it has none."""
    lib.lw_arenas_gather(_ROOM)


def gathered_arenas() -> tuple[int, int]:
    """Stop gathering arenas, and return the address and the bytes of the gathered ones."""
    gathered = lib.lw_arenas_gathered()
    return int(gathered.start), int(gathered.size)


def thread_storage() -> int:
    return int(lib.lw_thread_storage())


class MemorySnapshot:
    """
    A snapshot of parts of this process's memory, *pages* (address, bytes and PROT_*), without stacks and threads'
    storage. It is laid out when it is made, since memory that is allocated while it is taken would be lost.
    """

    def __init__(self, pages: Sequence[tuple[int, int, int]]) -> None:
        self._parts: Any = ffi.new("struct lw_snapshot_part[]",
                                   [((start, size), protection) for start, size, protection in pages])
        self.file = -1  # the memory file, once it is taken; whoever takes it closes it
        self.taken: Any = ffi.new("struct lw_snapshot_parts *", {"parts": self._parts, "count": len(pages), "map": -1})

    def take(self, *, huge: bool = True) -> bool:
        """
        Replace the parts by mappings of a memory file, in *huge* pages as far as the kernel gives them. False, and
        nothing is changed, if no such file can be made; KernelRefusal if a part couldn't be mapped and may be lost.
        """
        try:
            file = memory_file(_NAME)
        except OSError:
            return False
        done = int(lib.lw_snapshot_take(file, self._parts, self.taken.count, huge))
        if done == 0:
            self.file = file
            return True
        os.close(file)
        if done < 0:
            raise KernelRefusal("mmap", "a snapshot", -done)
        return False

    def look(self) -> None:
        """
        In a keeper: open its page map while it may still do so. The map shows which pages of the snapshot the keeper
        has only read, so that it needs no page table entries for them.
        """
        try:
            self.taken.map = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.taken.map = -1
