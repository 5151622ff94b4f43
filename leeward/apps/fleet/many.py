"""
The jobs of one `execute_many`.

Runs in:   a client's process.

Theory of operation. One task reads jobs and starts a task for each, as long as fewer are under way, or wait to be taken by
the caller, than there is room for; so a caller that is slow stops the reading. The jobs' tasks put their answers into a
queue. A client's own execute_many can take this module's place when there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from leeward.errors import DaemonError
from leeward.spec.outcome import Result

#: A job: its code, or all its options with `code` among them.
Job = str | bytes | Mapping[str, Any]
#: A job's number and its answer.
Numbered = tuple[int, Result | DaemonError]


class Many:
    """
    Runs *jobs*.

    Args:
        run: runs one.
        room: how many may be under way now.
    """

    def __init__(self, run: Callable[[int, Job], Coroutine[Any, Any, Numbered]], jobs: Iterable[Job] | AsyncIterable[Job],
                 room: Callable[[], int]) -> None:
        self._run, self._jobs, self._room = run, jobs, room
        self._tasks = set[asyncio.Task[None]]()
        self._came: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._started = self._yielded = 0
        self._read_all = False

    async def answers(self, in_order: bool) -> AsyncIterator[Numbered]:
        """The answer of each job, once: as they come, or *in_order*."""
        early = dict[int, Result | DaemonError]()
        self._begin(self._read())
        while not self._read_all or self._yielded < self._started:
            came = await self._came.get()
            if isinstance(came, BaseException):
                raise came
            if came is None:
                continue
            early[came[0]] = came[1]
            number = self._yielded if in_order else came[0]
            while number in early:
                self._yielded += 1
                self._taken.set()
                yield number, early.pop(number)
                number = self._yielded if in_order else number

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self) -> None:
        try:
            async for job in _each(self._jobs):
                while self._started - self._yielded >= self._room():
                    self._taken.clear()
                    await self._taken.wait()
                self._begin(self._put(self._started, job))
                self._started += 1
            self._read_all = True
            self._came.put_nowait(None)
        except Exception as error:  # of the caller's own iterable
            self._came.put_nowait(error)

    async def _put(self, number: int, job: Job) -> None:
        try:
            self._came.put_nowait(await self._run(number, job))
        except Exception as error:  # a mistake in the job's options
            self._came.put_nowait(error)

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _each(jobs: Iterable[Job] | AsyncIterable[Job]) -> AsyncIterator[Job]:
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
    else:
        for job in jobs:
            yield job
