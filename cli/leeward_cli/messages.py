"""
What this command writes: messages on standard error, and output without the characters that a terminal interprets.

The start of an agent imports this module before it does anything else, so it imports little.
"""

from __future__ import annotations

import errno
import os
from codecs import getincrementaldecoder

# Imported in functions: what not every start needs; 7 ms of processor time for all of it.

#: Errors of write(2) to a place that takes nothing more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: What commands about this machine say on another system.
FOR_LINUX = ("this command is for Linux; on this system leeward is a client of a daemon elsewhere: exec, map, sandbox, cp and"
             " others with LEEWARD_HOST (docs/other-systems.md)")

#: Errors of a place that isn't this user's to write to.
_SHUT = (errno.EACCES, errno.EPERM, errno.EROFS)

#: Control characters that a terminal interprets: C0 without newline and tab, DEL, C1.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def escape(content: bytes | memoryview) -> bytes:
    """*content* with control characters as \\xNN, and invisible or reordering characters as \\uNNNN."""
    return _escaped(str(content, "utf-8", "backslashreplace"))


def _escaped(text: str) -> bytes:
    return text.translate(_CONTROLS if text.isascii() else _all()).encode()


def _all() -> dict[int, str]:
    """The escapes of all characters that aren't shown as they are; those outside of ASCII are made when they are needed."""
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
        kept = (os.path.join(os.environ.get("HOME") or "/", "."), "/nonexistent")  # which stands for no home
        below = os.fsdecode(file).startswith(kept) and number in _SHUT
        complain(f"{quoted(file)}: {os.strerror(number).lower() if number else error}"
                 + ("; leeward keeps files of yours there: set HOME to a folder that you may write to" if below else ""))
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
        self._fd = fd
        self._decoder = None if raw or not os.isatty(fd) else getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes | memoryview) -> None:
        """Write *data*. An incomplete character at its end is held back until the next piece."""
        write(self._fd, data if self._decoder is None else _escaped(self._decoder.decode(data)))

    def close(self) -> None:
        """Write the bytes that were held back, at the end of the stream."""
        if self._decoder is not None:
            write(self._fd, _escaped(self._decoder.decode(b"", True)))
