"""Passes the output of a job on while it runs, for the asyncio client: a task; see live_output.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from leeward.client.live_output import LOOK_S, Arrivals, taken_output
from leeward.errors import DaemonError

if TYPE_CHECKING:
    from leeward.client.aio_functions import Ask, AwaitedFunctions

    #: Serves the job of a call until its answer arrives.
    AwaitedBesideJob: TypeAlias = "AwaitedFunctions | AwaitedOutput"


class AwaitedOutput:
    """Passes on the output of the job of one call, which may call *functions*."""

    def __init__(self, arrivals: Arrivals, functions: AwaitedFunctions | None) -> None:
        self._arrivals, self._functions = arrivals, functions
        self._task: asyncio.Task[None] | None = None

    def begin(self, ask: Ask, number: int) -> None:
        """Start to serve the job of request *number*, which has been sent."""
        self.end()
        if self._functions is not None:
            self._functions.begin(ask, number)
        self._task = asyncio.get_running_loop().create_task(self._take(ask, number))

    async def _take(self, ask: Ask, number: int) -> None:
        running = over = False
        try:
            while not over:
                if not running:
                    await asyncio.sleep(LOOK_S)
                out, err = self._arrivals.sizes
                reply, _ = await ask("output_take", {"target": number, "stdout": out, "stderr": err})
                running = reply.ok is not None  # else the connection has as many requests in flight as it may, say
                if running:
                    out_now, err_now, running, over = taken_output(reply)
                    self._arrivals.add(out_now, err_now)
        except DaemonError:
            pass  # the call that waits for the job's result raises the error

    def end(self) -> None:
        """Pass nothing on any more, at the end of the job."""
        if self._functions is not None:
            self._functions.end()
        if self._task is not None:
            self._task.cancel()
