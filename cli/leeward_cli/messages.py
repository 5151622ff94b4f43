"""
What this command writes: messages on standard error, and output without the characters that a terminal interprets.

The start of an agent imports this module before it does anything else, so it imports only `errno` and `os`.
"""

from __future__ import annotations

import errno
import os

# Imported in functions: what not every start needs; 7 ms of processor time for all of it.

#: Errors of write(2) to a place that takes nothing more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Control characters that a terminal interprets: C0 without newline and tab, DEL, C1.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def escape(content: bytes | memoryview) -> bytes:
    """*content* with control characters as \\xNN, and invisible or reordering characters as \\uNNNN."""
    text = str(content, "utf-8", "backslashreplace")
    return (text.translate(_CONTROLS) if text.isascii() else text.translate(_all())).encode()


def _all() -> dict[int, str]:
    """
    The escapes of all characters that aren't shown as they are; those outside of ASCII are made for the first such
    text.
    """
    if 0xad not in _CONTROLS:
        from leeward.errors import HIDING

        _CONTROLS.update((code, f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
                         for first, last in HIDING for code in range(first, last + 1))
    return _CONTROLS


def encoded(text: str) -> bytes:
    r"""
    *text* in UTF-8. Bytes that aren't UTF-8, as words of the command line may have them, are these bytes again, and
    \xNN where repr() has shown them as halves of surrogate pairs.
    """
    if "\\udc" in text:
        import re

        text = re.sub(r"(\\\\)|\\udc([89a-f][0-9a-f])", lambda found: found[1] or f"\\x{found[2]}", text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def write(fd: int, content: bytes | memoryview) -> None:
    """Write all of *content* to *fd*. Waits also if *fd* doesn't block: another program may have opened it so."""
    rest = memoryview(content)
    while rest:
        try:
            # Some file systems and pipes refuse one write of more than 2 GiB.
            rest = rest[os.write(fd, rest[:1 << 30]):]
        except BlockingIOError:  # whoever started this command has made its output non-blocking
            import select

            select.select([], [fd], [])


def complain(message: str) -> None:
    """Write one message to standard error. Failures are ignored."""
    try:
        write(2, escape(encoded(f"leeward: {message}".replace("\n", " "))) + b"\n")
    except OSError:
        pass  # standard error is closed


def complain_of_system(error: OSError | MemoryError) -> None:
    """Write a message about *error*, with the limit to raise, if one was reached. A failed write names no file by itself."""
    from leeward.errors import LIMITS, quoted

    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno
    file = None if isinstance(error, MemoryError) else error.filename
    if number in FULL and file is None:
        complain(f"can't write the output: {os.strerror(number)}")
    elif number in LIMITS:
        complain(LIMITS[number])
    elif isinstance(file, (str, bytes)):
        complain(f"{quoted(file)}: {os.strerror(number).lower() if number else error}")
    else:
        complain(str(error))


def keep_standard_descriptors() -> None:
    """Open /dev/null for each closed one of descriptors 0, 1 and 2, so that no socket gets the number of stdout."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


class EscapedStream:
    """Writes a stream to *fd*, piece by piece; *raw*: without escapes for a terminal."""

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
