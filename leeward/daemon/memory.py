"""
The daemon's own memory: where the interpreter has its small objects.

Runs in:   the daemon, before it imports the rest of itself, since what it imports stays. docs/decisions/0152
"""

from __future__ import annotations

from leeward._native.heap import huge_arenas

#: Bytes of address space, of which a daemon with four workers uses 8 MiB, and more for each sandbox.
ARENAS = 64 << 20


def prepare() -> None:
    """
    Take huge pages from now on, where there are any.
    """
    huge_arenas(ARENAS)
