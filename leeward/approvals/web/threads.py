"""
Runs calls that block on a disk, the daemon or a sandbox in threads, so that the event loop never blocks.

Bounds:    four separate pools: decisions, the operator's slow calls, sandboxes' calls, and calls that wait for programs
           in a sandbox, which may take minutes. So slow calls can't take the threads of decisions.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

#: Threads of each kind, at most.
QUICK, SLOW, SANDBOXES, LONG = 8, 8, 4, 64

_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, anyio.CapacityLimiter]] = WeakKeyDictionary()


def _limiter(kind: int, threads: int) -> anyio.CapacityLimiter:
    # A limiter belongs to one event loop.
    of_loop = _limiters.setdefault(asyncio.get_running_loop(), {})
    if kind not in of_loop:
        of_loop[kind] = anyio.CapacityLimiter(threads)
    return of_loop[kind]


async def in_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args, **named: Arguments.kwargs) -> Answer:
    """Run a call of the queue, which may block on the disk; returns or raises what *call* does."""
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(0, QUICK))


async def in_thread_of(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                       **named: Arguments.kwargs) -> Answer:
    """As `in_thread`, but for a sandbox in the threads of sandboxes' calls."""
    kind, threads = (2, SANDBOXES) if sandbox else (0, QUICK)
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(kind, threads))


async def in_slow_thread(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """Run a call of *sandbox* ("": the operator) that may block on the daemon; returns or raises what *call* does."""
    kind, threads = (2, SANDBOXES) if sandbox else (1, SLOW)
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(kind, threads))


async def in_long_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """Run a call that waits for programs in a sandbox, without a bound of time; returns or raises what *call* does."""
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(3, LONG))
