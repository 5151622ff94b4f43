"""
A descriptor that ends with a block.

Runs in:   anywhere.
"""

from __future__ import annotations

import os


class OwnedFd:
    """A context whose value is the descriptor *fd*, which is closed at its end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
