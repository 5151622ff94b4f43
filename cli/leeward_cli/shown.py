"""
Writes a stream of a job as it arrives, with control characters escaped on a terminal.

Runs in:   the CLI.
Trust:     none in the stream.
"""

from __future__ import annotations

import os

from leeward_cli.messages import escape, write


class EscapedStream:
    """
    Writes a stream, piece by piece.

    Args:
        fd: the descriptor to which the stream is written.
        raw: don't escape control characters on a terminal.
    """

    def __init__(self, fd: int, raw: bool) -> None:
        self._fd, self._escaped = fd, not raw and os.isatty(fd)
        self._cut = b""

    def write(self, data: bytes | memoryview) -> None:
        """Write *data*. An incomplete character at its end is held back until the next piece."""
        if not self._escaped:
            write(self._fd, data)
            return
        data = self._cut + bytes(data)
        whole = len(data) - cut(data)
        self._cut = data[whole:]
        write(self._fd, escape(data[:whole]))

    def close(self) -> None:
        """Write the bytes that were held back, at the end of the stream."""
        rest, self._cut = self._cut, b""
        write(self._fd, escape(rest))


def cut(data: bytes) -> int:
    """The number of bytes at the end of *data* that may be an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xc0:
            need = 2 if byte < 0xe0 else 3 if byte < 0xf0 else 4 if byte < 0xf8 else 0
            return back if back < need else 0
        if byte < 0x80:
            return 0
    return 0
