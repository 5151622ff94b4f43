"""
An event loop in a thread of its own, to which other threads and loops hand coroutines.

Runs in:   a client's process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from leeward.base.closing import Closing, on_failure

T = TypeVar("T")


class LoopThread(Closing):
    """A loop whose thread, called *name*, ends with the program or by `close`. Any thread may call."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def result(self, what: Coroutine[Any, Any, T]) -> T:
        """The result of *what*, which is cancelled if an exception such as KeyboardInterrupt ends the wait."""
        waiting = self.start(what)
        with on_failure(waiting.cancel):
            return waiting.result()

    async def awaited(self, what: Coroutine[Any, Any, T]) -> T:
        """The result of *what* in another loop, which goes on meanwhile; *what* is cancelled with the caller."""
        return await asyncio.wrap_future(self.start(what))

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the loop's, which can't wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def end_tasks(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        self.result(_end_others())

    def close(self) -> None:
        """End the tasks, and then the thread."""
        self.end_tasks()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
