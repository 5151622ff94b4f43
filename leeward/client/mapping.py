"""
`Client.map`: an asyncio client in a thread has one connection for all jobs; the caller's thread sends them and waits.

Theory of operation. The caller's thread takes jobs from its iterable while there is room, and hands each to the loop
of the thread, which puts ends into a queue. The iterable is only ever used in the caller's thread. Whatever ends the
iteration, jobs that run are cancelled, and the thread has ended when the generator has.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from leeward.client.many import Course, MapEnd, MapJobs, MapWatch
from leeward.errors import NoAnswer, quoted

if TYPE_CHECKING:
    from leeward.client.blocking import Client


def mapped(client: Client, jobs: MapJobs, *, ordered: bool, at_once: int | None, deadline: float | None,
           progress: MapWatch | None, options: Mapping[str, Any]) -> Iterator[MapEnd]:
    """Yield the ends of *jobs*; `Client.map` describes the arguments."""
    from leeward.client.aio_mapping import ended  # here: most programs with a blocking client need no asyncio

    course = Course(jobs, ordered=ordered, at_once=at_once, progress=progress)
    until = None if deadline is None else time.monotonic() + deadline
    ends = queue.SimpleQueue[Future[MapEnd]]()
    running = set[Future[MapEnd]]()
    source = iter(jobs)
    more = True
    with _Loop(client) as loop:
        try:
            while more or running:
                while more and course.has_room:
                    try:
                        job = next(source)
                    except StopIteration:
                        more = False
                    else:
                        future = loop.start(ended, options, course.send(), job)
                        running.add(future)
                        future.add_done_callback(ends.put)
                if running:
                    for future in _ends(ends, until, course, client.socket):
                        running.discard(future)
                        course.end(future.result())
                while (one := course.next()) is not None:
                    yield one
        finally:
            for future in running:
                future.cancel()


def _ends(ends: queue.SimpleQueue[Future[MapEnd]], until: float | None, course: Course, path: str) -> list[Future[MapEnd]]:
    """The jobs that have ended, of which one at least is waited for; NoAnswer after *until*."""
    try:
        found = [ends.get(timeout=None if until is None else max(0.0, until - time.monotonic()))]
    except queue.Empty:
        raise NoAnswer(f"{course.running} jobs have no answer from {quoted(path)} before the deadline") from None
    while not ends.empty():
        found.append(ends.get())
    return found


class _Loop:
    """An event loop in a thread, with an asyncio client that is as *client*."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="leeward map", daemon=True)

    def start(self, call: Callable[..., Coroutine[Any, Any, MapEnd]], *args: Any) -> Future[MapEnd]:
        """Call *call* with the asyncio client and *args* in the loop."""
        return asyncio.run_coroutine_threadsafe(call(self._other, *args), self._loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> _Loop:
        self._other = self._client._for_asyncio()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the jobs that run, and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._other.close()
