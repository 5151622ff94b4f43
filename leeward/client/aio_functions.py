"""
The caller's functions that a job may call, for the asyncio client: a task for each call; see `functions`. Coroutine
functions run in the loop, and are cancelled when the job ends. Each call of another function runs in a thread of its
own, which goes on when the job ends.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.client.functions import answered, calls_of, raised, returned
from leeward.client.options import Given
from leeward.errors import DaemonError, PeerError
from leeward.wire import function_frames as wire

if TYPE_CHECKING:
    from leeward.wire.replies import Reply

#: Sends a request over the connection of the job, and waits for the reply.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[tuple["Reply", list[int]]]]


class AwaitedFunctions:
    """The functions that the job of one call of the asyncio client may call."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, ask: Ask, number: int) -> None:
        """Start to serve the job of request *number*, which has been sent."""
        self.end()
        self._start(self._take(ask, number))

    def _start(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, ask: Ask, number: int) -> None:
        over = False
        while not over:
            try:
                reply, _ = await ask("function_take", {"target": number})
                if reply.ok is None:
                    return
                calls, over = calls_of(reply)
            except DaemonError:
                return  # the call that waits for the job's result raises the error
            for call in calls:
                self._start(self._serve(ask, number, *call))

    async def _serve(self, ask: Ask, number: int, call: int, name: str, body: bytes) -> None:
        answer = await self._run(call, name, body)
        try:
            await ask("function_answer", {"target": number, **answer})
        except DaemonError:
            pass  # the call that waits for the job's result raises the error

    async def _run(self, call: int, name: str, body: bytes) -> dict[str, Any]:
        try:
            args, named = wire.unpack_arguments(body)
        except PeerError:
            return answered(call, "broken")
        try:
            function = self._given[name]
            if not inspect.iscoroutinefunction(function):
                function = partial(_in_thread, function)
            return returned(call, await function(*args, **named))
        except asyncio.CancelledError:
            if self._tasks:  # otherwise this task itself is cancelled
                return raised(call, asyncio.CancelledError())
            raise
        except Exception as error:
            return raised(call, error)

    def end(self) -> None:
        """Cancel the tasks, at the end of the job."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()


async def _in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            # A future accepts no other exceptions.
            accepted = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if accepted else RuntimeError(repr(error)))

    def run() -> None:
        value, failed = None, None
        try:
            value = function(*args, **named)
        except BaseException as error:  # any exception goes to the job
            failed = error
        try:
            loop.call_soon_threadsafe(resolve, value, failed)
        except RuntimeError:
            pass  # the loop is closed

    threading.Thread(target=run, name="leeward function", daemon=True).start()
    value = await future
    return await value if inspect.isawaitable(value) else value
