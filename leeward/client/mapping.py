"""
`Client.map`: an asyncio client in a thread has one connection for all jobs; the caller's thread sends them and waits.

Theory of operation. The caller's thread takes jobs from its iterable while there is room, and hands each to the loop
of the thread, which puts ends into a queue. The iterable is only ever used in the caller's thread. Whatever ends the
iteration, jobs that run are cancelled, and the thread has ended when the generator has.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from leeward.client.loop_thread import LoopThread
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
    other = client._for_asyncio()
    with LoopThread("leeward map") as loop:
        try:
            while more or running:
                while more and course.has_room:
                    try:
                        job = next(source)
                    except StopIteration:
                        more = False
                    else:
                        future = loop.start(ended(other, options, course.send(), job))
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
            loop.end_tasks()
            loop.result(other.close())


def _ends(ends: queue.SimpleQueue[Future[MapEnd]], until: float | None, course: Course, path: str) -> list[Future[MapEnd]]:
    """The jobs that have ended, of which one at least is waited for; NoAnswer after *until*."""
    try:
        found = [ends.get(timeout=None if until is None else max(0.0, until - time.monotonic()))]
    except queue.Empty:
        raise NoAnswer(f"{course.running} jobs have no answer from {quoted(path)} before the deadline") from None
    while not ends.empty():
        found.append(ends.get())
    return found
