"""
Turns of jobs: as many run as the daemon has workers, the others wait here, the tenants by turns.

Why here:  the daemon sees one user. A tenant with a thousand jobs would have the whole queue; here each gets its turn.
Shares:    a tenant has all turns while it is alone. Of one who had a job within LATELY_S a share is kept free, so that
           its next job doesn't wait for the end of another's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leeward.apps.serve.problems import ServeProblem

#: Jobs of all tenants that wait, at most.
MOST_WAITING = 1024
#: Seconds for which a tenant's share is kept after its last job.
LATELY_S = 1.0


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
        self._at_once, self._free, self.wait_s = at_once, at_once, wait_s
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant; the next one first
        self._count = 0
        self._running: Counter[str] = Counter()
        self._seen: dict[str, float] = {}  # by tenant: when it had a job
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs. ServeProblem 504 if it didn't come in time."""
        self._seen[tenant] = time.monotonic()
        if self._free > 0 and tenant not in self._waiting and self._running[tenant] < self._share():
            self._begin(tenant)
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._end(tenant)

    def _share(self) -> int:
        """The jobs that one tenant may have running beside those of the others."""
        lately = time.monotonic() - LATELY_S
        self._seen = {each: when for each, when in self._seen.items()
                      if when > lately or self._running[each] or each in self._waiting}
        return -(-self._at_once // max(1, len(self._seen)))

    def _begin(self, tenant: str) -> None:
        self._free -= 1
        self._running[tenant] += 1

    def _end(self, tenant: str) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._seen[tenant] = time.monotonic()
        self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if self._count >= MOST_WAITING:
            raise late()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._count += 1
        self._pass_on()
        try:
            async with asyncio.timeout(self.wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the turn came at the same moment
                self._end(tenant)
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        share = self._share()
        while self._free > 0:
            tenant = next((each for each in self._waiting if self._running[each] < share), None)
            if tenant is None:
                if self._waiting:  # a turn is kept for who had one lately
                    self._timer = asyncio.get_running_loop().call_later(LATELY_S, self._pass_on)
                return
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not turn.done():  # else its call was cancelled just now
                turn.set_result(None)
                self._begin(tenant)
