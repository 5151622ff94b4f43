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
THREADS = {"quick": 8, "slow": 8, "sandboxes": 4, "long": 64}

_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, anyio.CapacityLimiter]] = WeakKeyDictionary()


async def _run(kind: str, call: Callable[[], Answer]) -> Answer:
    # A limiter belongs to one event loop.
    of_loop = _limiters.setdefault(asyncio.get_running_loop(), {})
    if kind not in of_loop:
        of_loop[kind] = anyio.CapacityLimiter(THREADS[kind])
    return await anyio.to_thread.run_sync(call, limiter=of_loop[kind])


async def in_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args, **named: Arguments.kwargs) -> Answer:
    """Run a call of the queue, which may block on the disk; returns or raises what *call* does."""
    return await _run("quick", functools.partial(call, *given, **named))


async def in_thread_of(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                       **named: Arguments.kwargs) -> Answer:
    """As `in_thread`, but for a sandbox in the threads of sandboxes' calls."""
    return await _run("sandboxes" if sandbox else "quick", functools.partial(call, *given, **named))


async def in_slow_thread(sandbox: str, call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """Run a call of *sandbox* ("": the operator) that may block on the daemon; returns or raises what *call* does."""
    return await _run("sandboxes" if sandbox else "slow", functools.partial(call, *given, **named))


async def in_long_thread(call: Callable[Arguments, Answer], /, *given: Arguments.args,
                         **named: Arguments.kwargs) -> Answer:
    """Run a call that waits for programs in a sandbox, without a bound of time; returns or raises what *call* does."""
    return await _run("long", functools.partial(call, *given, **named))
