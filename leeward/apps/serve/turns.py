"""
Turns of jobs: as many run as the daemon has workers, the others wait here, the tenants by turns.

Why here:  the daemon sees one user. A tenant with a thousand jobs would have the whole queue; here each gets its turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leeward.apps.serve.problems import ServeProblem

#: Jobs of all tenants that wait, at most.
MOST_WAITING = 1024


def late() -> ServeProblem:
    """Trainers repeat a call after this status alone, and take any other for the end."""
    return ServeProblem(504, "no worker became free in time", 1)


class Turns:
    """
    Args:
        at_once: jobs that run.
        wait_s: seconds that one waits for its turn.
    """

    def __init__(self, at_once: int, wait_s: float) -> None:
        self._free, self.wait_s = at_once, wait_s
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant; the next one first
        self._count = 0

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs. ServeProblem 504 if it didn't come in time."""
        if self._free > 0 and not self._count:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._free += 1
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if self._count >= MOST_WAITING:
            raise late()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._count += 1
        try:
            async with asyncio.timeout(self.wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the turn came at the same moment
                self._free += 1
                self._pass_on()
            else:
                self._forget(tenant, turn)
            raise (late() if isinstance(error, TimeoutError) else error) from None

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant, deque())
        if turn in queue:
            queue.remove(turn)
            self._count -= 1
            if not queue:
                del self._waiting[tenant]

    def _pass_on(self) -> None:
        while self._free > 0 and self._waiting:
            tenant, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not turn.done():  # else its call was cancelled just now
                turn.set_result(None)
                self._free -= 1
