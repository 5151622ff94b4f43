"""
The values of a pool's secrets, read from the descriptors that the daemon has opened.

Runs in:   the broker, on its loop.
Holds:     a value is in this process's memory alone: no message and no error contains it, and the process writes no
           core and can't be traced (lockdown.py).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from leeward.egress.tenancy import refusal

#: Bytes of a value, at least and at most. Shorter values could occur in responses by chance.
LEAST, MOST = 8, 4096

_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


class Values:
    """
    The values of a pool's secrets.

    Args:
        names: of the secrets.
        fds: where each value can be read; owned from now on.
    """

    def __init__(self, names: Sequence[str], fds: Sequence[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._values: dict[str, asyncio.Future[bytes | str]] = {}
        self._fds: set[int] = set()
        for name, fd in zip(names, fds, strict=True):
            self._values[name] = self._loop.create_future()
            self._fds.add(fd)
            self._loop.add_reader(fd, self._read, name, fd, bytearray())

    def _read(self, name: str, fd: int, data: bytearray) -> None:
        try:
            piece = os.read(fd, MOST + 3 - len(data))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        data += piece
        if piece and len(data) < MOST + 3:
            return
        self._close_source(fd)
        self._values[name].set_result(checked(bytes(data)))

    def _close_source(self, fd: int) -> None:
        self._fds.discard(fd)
        self._loop.remove_reader(fd)
        os.close(fd)

    async def get(self, name: str, seconds: float) -> bytes | str:
        """
        Return the value of the secret *name* as bytes, or as a text the reason why there is none.

        Args:
            seconds: to wait for the value.
        """
        value = self._values.get(name)
        if value is None:
            return "the broker wasn't told of it"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.shield(value)
        return f"its source has told nothing for {seconds:g} s"

    def close(self) -> None:
        """Forget the values, and close the descriptors."""
        for fd in list(self._fds):
            self._close_source(fd)
        for value in self._values.values():
            value.cancel()
        self._values.clear()


def checked(data: bytes) -> bytes | str:
    """Return the value in a source's output, or the reason why it is invalid, which contains no byte of the value."""
    if not data.endswith(b"\0"):
        return "its source has failed" if len(data) <= MOST + 2 else f"it has more than {MOST} bytes"
    value = data[:-1].rstrip(b"\r\n")
    if not LEAST <= len(value) <= MOST:
        return f"it has {len(value)} bytes, and must have from {LEAST} to {MOST}"
    if not _VALUE.fullmatch(value):
        return "it has other bytes than printable ASCII in one line, or spaces at its ends"
    return value


def unavailable(name: str, why: str) -> Exception:
    """Return the exception that refuses a request which needs the secret *name*."""
    return refusal(f"the secret {name} can't be had: {why}", failed=True, status=502)
