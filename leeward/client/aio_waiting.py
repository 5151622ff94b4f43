"""What the asyncio client waits by: waiting.py has the same names for the blocking client."""

from __future__ import annotations

from asyncio import Lock as Lock
from asyncio import shield
from asyncio import sleep as sleep
from asyncio import to_thread as in_thread
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

__all__ = ["Lock", "in_thread", "shielded", "sleep"]


async def shielded(call: Callable[[], Awaitable[T]]) -> T:
    """The result of *call*, which goes on if the task is cancelled."""
    return await shield(call())
