"""
What a block closes at its end, or undoes if it fails.

Runs in:   anywhere.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self


class Closing:
    """The base of what is a context that closes it."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class AsyncClosing:
    """The same for asyncio."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class OwnedFd:
    """A context whose value is the descriptor *fd*, which is closed at its end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class on_failure:
    """A context that calls *undo* with *given* if its block raises, whatever it raises, which goes on."""

    __slots__ = ("_given", "_undo")

    def __init__(self, undo: Callable[..., object], *given: Any) -> None:
        self._undo, self._given = undo, given

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._undo(*self._given)
