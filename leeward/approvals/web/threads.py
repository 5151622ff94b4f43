"""
Calls that wait for a disk or for the daemon, in threads: the event loop never does.

Runs in:   the operator's program that decides.
Bounds:    decisions have threads of their own, which calls that wait for a sandbox can't use up. Sandboxes' calls have
           their own as well, and so have calls that wait for programs in a sandbox, which may take minutes.
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
    # One belongs to an event loop.
    of_loop = _limiters.setdefault(asyncio.get_running_loop(), {})
    if kind not in of_loop:
        of_loop[kind] = anyio.CapacityLimiter(threads)
    return of_loop[kind]


async def in_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args, **named: Arguments.kwargs) -> Answer:
    """
    What *call* returns or raises: of the queue, which waits for a disk.
    """
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(0, QUICK))


async def in_thread_of(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                       **named: Arguments.kwargs) -> Answer:
    """
    As `in_thread`, but for a sandbox in a thread of those that sandboxes have.
    """
    kind, threads = (2, SANDBOXES) if sandbox else (0, QUICK)
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(kind, threads))


async def in_slow_thread(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """
    What *call* returns or raises: one that may wait for the daemon.

    Args:
        sandbox: which calls; "" for the operator.
        call: the function.
        given: its arguments.
        named: its arguments.
    """
    kind, threads = (2, SANDBOXES) if sandbox else (1, SLOW)
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(kind, threads))


async def in_long_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """
    What *call* returns or raises: one that waits for programs in a sandbox, as long as these like.
    """
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), limiter=_limiter(3, LONG))
