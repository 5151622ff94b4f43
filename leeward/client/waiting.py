"""What the blocking client waits by: its modules are made from those of the asyncio client, which waits by aio_waiting.py."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock as Lock
from time import sleep as sleep
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(call: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Call *call*. Here it may wait, and needs no thread of its own."""
    return call(*args, **more)


def shielded(call: Callable[[], T]) -> T:
    """The result of *call*, which no cancellation ends."""
    return call()
