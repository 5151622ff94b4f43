"""
The daemon's own memory: huge pages for the interpreter's small objects, before it imports its modules.
docs/decisions/0145
"""

from __future__ import annotations

from leeward._native.heap import huge_arenas

#: Bytes of address space. A daemon with four workers uses 8 MiB of them, and more for each sandbox.
ARENAS = 64 << 20


def prepare() -> None:
    """Let the interpreter's allocator use huge pages from now on, if the kernel has any."""
    huge_arenas(ARENAS)
