"""
Messages on standard error, and texts without the characters that a terminal interprets.

Runs in:   the CLI. The start of an agent imports this module before it does anything else, so it imports
           only `errno` and `os`.
"""

from __future__ import annotations

import errno
import os

#: Errors of write(2) to a place that takes nothing more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Control characters that a terminal interprets: C0 without newline and tab, DEL, C1.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
#: Characters that are invisible, or reorder the text around them, so that it reads as another text: soft hyphen,
#: fillers, zero-width characters, marks and overrides of direction, line and paragraph separators, tags, variants.
#: leeward/capi/text.c has the same list.
_HIDING = (0xad, 0x61c, 0x115f, 0x1160, 0x180e, *range(0x200b, 0x2010), *range(0x2028, 0x202f), *range(0x2060, 0x2070),
           0x3164, 0xfeff, 0xffa0, *range(0xfff9, 0xfffc), *range(0xe0000, 0xe1000))


def escape(content: bytes | memoryview) -> bytes:
    """
    *content* with control characters as \\xNN, and invisible or reordering characters as \\uNNNN.
    """
    text = str(content, "utf-8", "backslashreplace")
    return (text.translate(_CONTROLS) if text.isascii() else text.translate(_all())).encode()


def _all() -> dict[int, str]:
    """
    The escapes of all characters that aren't shown as they are. Those of characters outside of ASCII are added when the
    first text needs them: most jobs print ASCII.
    """
    if 0xad not in _CONTROLS:
        _CONTROLS.update((code, f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}") for code in _HIDING)
    return _CONTROLS


def write(fd: int, content: bytes | memoryview) -> None:
    """
    Write all of *content* to *fd*.
    """
    rest = memoryview(content)
    while rest:
        # Some file systems and pipes refuse one write of more than 2 GiB.
        rest = rest[os.write(fd, rest[:1 << 30]):]


def complain(message: str) -> None:
    """
    Write one message to standard error. Failures are ignored.
    """
    try:
        write(2, escape(f"leeward: {message}".replace("\n", " ").encode("utf-8", "backslashreplace")) + b"\n")
    except OSError:
        pass  # standard error is closed


def complain_of_write(error: OSError) -> None:
    """
    Write a message about *error*. A failed write, for example to a full disk, names no file by itself.
    """
    full = error.errno in FULL and error.filename is None
    complain(f"can't write the output: {error.strerror}" if full else str(error))
