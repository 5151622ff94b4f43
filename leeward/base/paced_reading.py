"""A transport whose protocol takes a piece at a time of what has come: asyncio gives 256 KiB, which may be 100,000 frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

#: Bytes that are taken without a turn for others.
PIECE = 1 << 14


class PacedTransport:
    """As *whole*. Its protocol passes what it is given to `received`, which calls *take* with each piece."""

    def __init__(self, whole: asyncio.Transport, take: Callable[[bytes], object], loop: asyncio.AbstractEventLoop) -> None:
        self.whole, self._take, self._loop = whole, take, loop
        self._waiting, self._is_wanted = b"", True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def pause_reading(self) -> None:
        self._is_wanted = False
        self.whole.pause_reading()

    def resume_reading(self) -> None:
        self._is_wanted = True
        if not self._waiting:
            self.whole.resume_reading()

    def received(self, data: bytes) -> None:
        is_first = not self._waiting
        self._waiting += data
        if len(self._waiting) > PIECE:
            self.whole.pause_reading()
        if is_first:
            self._go_on()

    def _go_on(self) -> None:
        if self.whole.is_closing():
            self._waiting = b""
            return
        piece, self._waiting = self._waiting[:PIECE], self._waiting[PIECE:]
        if self._waiting:
            self._loop.call_soon(self._go_on)
        elif self._is_wanted:
            self.whole.resume_reading()
        self._take(piece)
