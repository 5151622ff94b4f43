"""Passes bytes from one socket to another by splice(2), in C: src/splice.c."""

from __future__ import annotations

import os

from leeward._native._shim import ffi, lib

#: Bytes that are taken at a time, at most.
PIECE: int = lib.LW_SPLICE_PIECE
ENDED: int = lib.LW_SPLICE_ENDED
SOURCE_WAITS: int = lib.LW_SPLICE_SOURCE_WAITS
GOAL_WAITS: int = lib.LW_SPLICE_GOAL_WAITS


class Direction:
    """
    The way from *source* to *goal* through the ends *out* and *into* of a pipe: descriptors of the caller's, which don't
    block. If more than *most* bytes come, those of the last piece don't pass.
    """

    def __init__(self, source: int, goal: int, out: int, into: int, most: int) -> None:
        self._made = ffi.new("struct lw_splice *", {"source": source, "goal": goal, "out": out, "into": into, "most": most})

    @property
    def took(self) -> int:
        """The bytes that have come so far."""
        return int(self._made.took)

    @property
    def passed(self) -> int:
        """Those of them that were passed on."""
        return int(self._made.passed)

    def go_on(self) -> int:
        """Pass on what there is, for a turn. Returns what is waited for, else there may be more. OSError."""
        why = int(lib.lw_splice(self._made))
        if why < 0:
            raise OSError(-why, os.strerror(-why))
        return why
