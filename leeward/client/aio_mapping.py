"""
`AsyncClient.map`: each job is a task that calls `execute`. The client's connection bounds how many the daemon has. A fleet
runs its many jobs by `ends_of` as well.

The blocking client does the same in mapping.py, by an asyncio client in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.client.many import AsyncMapJobs, Course, MapEnd, MapJob, MapWatch, options_of
from leeward.errors import NoAnswer, Refused, quoted

if TYPE_CHECKING:
    from leeward.client.aio import AsyncClient


def mapped(client: AsyncClient, jobs: AsyncMapJobs, *, ordered: bool, at_once: int | None, deadline: float | None,
           progress: MapWatch | None, options: Mapping[str, Any]) -> AsyncIterator[MapEnd]:
    """Yield the ends of *jobs*; `AsyncClient.map` describes the arguments."""
    course = Course(jobs, ordered=ordered, at_once=at_once, progress=progress)
    return ends_of(jobs, course, partial(ended, client, options), deadline, client.socket)


async def ends_of(jobs: AsyncMapJobs, course: Course, run: Callable[[int, MapJob], Coroutine[Any, Any, MapEnd]],
                  deadline: float | None = None, path: str = "") -> AsyncGenerator[MapEnd, None]:
    """
    Yield the ends of *jobs*, each of which *run* makes by its number, as *course* has it. NoAnswer of the daemon on *path*
    after *deadline* seconds.
    """
    running, ends, room = set[asyncio.Task[MapEnd]](), asyncio.Queue[asyncio.Task[Any]](), asyncio.Event()

    async def send() -> None:
        async for job in jobs if isinstance(jobs, AsyncIterable) else _each(jobs):
            task = asyncio.create_task(run(course.send(), job))
            running.add(task)
            task.add_done_callback(ends.put_nowait)
            while not course.has_room:
                room.clear()
                await room.wait()

    sending = asyncio.create_task(send())
    sending.add_done_callback(ends.put_nowait)
    try:
        until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        while running or not sending.done():
            try:
                async with asyncio.timeout_at(until):
                    task = await ends.get()
            except TimeoutError:
                raise NoAnswer(f"{course.running} jobs have no answer from {quoted(path)} before the deadline"
                               ) from None
            if task is sending:
                sending.result()  # raises at once what the iterable has
            else:
                running.discard(task)
                course.end(task.result())
            while (one := course.next()) is not None:
                yield one
            room.set()
        sending.result()
    finally:
        for each in (sending, *running):
            each.cancel()
        await asyncio.gather(sending, *running, return_exceptions=True)


async def ended(client: AsyncClient, options: Mapping[str, Any], number: int, job: MapJob) -> MapEnd:
    """Run *job*, and return its end. Errors that are no refusal of this job are raised."""
    try:
        return MapEnd(number, job, await client.execute(**options_of(job, options)))
    except Refused as error:
        return MapEnd(number, job, error=error)


async def _each(jobs: Iterable[MapJob]) -> AsyncIterator[MapJob]:
    for job in jobs:
        yield job
