"""
Memory for the payload of one long frame, in which it is received, decoded and kept without a copy.

Trust:     none in the length that a peer claims: the memory is at most twice what has arrived, and its pages are taken
           as bytes arrive.

Why:       a copy of 80 MiB takes the event loop 40 ms and more, with the faults of new pages (decision 0013).
"""

from __future__ import annotations

import mmap

#: Bytes of the first mapping.
_FIRST = 1 << 20


class LongFrame:
    """A store for a payload of *length* bytes. OSError if there is no memory, here or in `fill`."""

    __slots__ = ("_at", "_length", "_memory")

    def __init__(self, length: int) -> None:
        self._length, self._at = length, 0
        self._memory = mmap.mmap(-1, min(length, _FIRST), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    @property
    def held(self) -> int:
        return self._at

    @property
    def lacks(self) -> int:
        return self._length - self._at

    def fill(self, data: memoryview) -> int:
        """Take the next bytes, as far as they belong to this frame. Returns how many these are."""
        end = min(self._length, self._at + len(data))
        size = len(self._memory)
        if end > size:  # mremap(2) moves page tables, and no byte
            self._memory.resize(min(self._length, max(end, 2 * size)))
        taken = end - self._at
        self._memory[self._at:end] = data[:taken]
        self._at = end
        return taken

    def payload(self) -> memoryview:
        """What has arrived. It lives as long as a view of it; nothing can be added any more."""
        return memoryview(self._memory)[:self._at]
