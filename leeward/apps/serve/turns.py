"""
Turns of jobs: as many run as the daemon has workers, the others wait here, the tenants by turns.

Why here:  the daemon sees one user. A tenant with a thousand jobs would have the whole queue; here each gets its turn.
Shares:    a tenant has all turns while it is alone. Of one who had a job within LATELY_S a share is kept free, so that
           its next job doesn't wait for the end of another's.
Floods:    more jobs than processors make each other's slower. So beside others a tenant begins no more within BRIEF_S
           than its share of the processors: many short ones take no more than that, while those that last (they may
           sleep) get the whole share of the turns. What comes after a job (its process is cleared away, the next one is
           made ready) takes as long again: one that waited begins only then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leeward.apps.serve.problems import ServeProblem

#: Jobs of all tenants that wait, at most.
MOST_WAITING = 1024
#: Seconds for which a tenant's share is kept after its last job.
LATELY_S = 1.0
#: Seconds in which a job is a new one. A program of a few lines has ended by then, on a busy machine, too.
BRIEF_S = 0.1


def late() -> ServeProblem:
    """Trainers repeat a call after this status alone, and take any other for the end."""
    return ServeProblem(504, "no worker became free in time", 1)


class Turns:
    """
    Args:
        at_once: jobs that run.
        wait_s: seconds that one waits for its turn.
        processors: of the machine; as many as jobs, if they aren't known.
    """

    def __init__(self, at_once: int, wait_s: float, processors: int | None = None) -> None:
        self._at_once, self._free, self.wait_s = at_once, at_once, wait_s
        self._processors = processors
        self._waiting: OrderedDict[str, deque[asyncio.Future[float]]] = OrderedDict()  # by tenant; the next one first
        self._count = 0
        self._running: defaultdict[str, list[float]] = defaultdict(list)  # by tenant: when its jobs began
        self._cleared: defaultdict[str, list[float]] = defaultdict(list)  # by tenant: when the short ones are cleared away
        self._seen: dict[str, float] = {}  # by tenant: when it had a job
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return self._count

    def resize(self, at_once: int) -> None:
        """From now on *at_once* jobs run; those that run beyond it do so to their end."""
        self._free += at_once - self._at_once
        self._at_once = at_once
        self._pass_on()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs. ServeProblem 504 if it didn't come in time."""
        self._seen[tenant] = time.monotonic()
        if self._free > 0 and tenant not in self._waiting and self._may_begin(tenant):
            began = self._begin(tenant)
        else:
            began = await self._wait(tenant)
        try:
            yield
        finally:
            self._end(tenant, began)

    def _may_begin(self, tenant: str, waited: bool = False) -> bool:
        """Whether one more job, which perhaps *waited*, leaves the others their shares."""
        now = time.monotonic()
        self._seen = {each: when for each, when in self._seen.items()
                      if when > now - LATELY_S or each in self._running or each in self._waiting}
        running, tenants = self._running.get(tenant, ()), len(self._seen)
        if tenants <= 1:
            return len(running) < self._at_once
        new = sum(began > now - BRIEF_S for began in running)
        if waited:
            new += sum(until > now for until in self._cleared.get(tenant, ()))
        return (len(running) < math.ceil(self._at_once / tenants)
                and new < math.ceil((self._processors or self._at_once) / tenants))

    def _begin(self, tenant: str) -> float:
        self._free -= 1
        began = time.monotonic()
        self._running[tenant].append(began)
        return began

    def _end(self, tenant: str, began: float) -> None:
        self._free += 1
        self._running[tenant].remove(began)
        if not self._running[tenant]:
            del self._running[tenant]
        now = self._seen[tenant] = time.monotonic()
        self._cleared[tenant] = [until for until in self._cleared[tenant] if until > now]
        if now - began < BRIEF_S:
            self._cleared[tenant].append(now + (now - began))
        self._pass_on()

    async def _wait(self, tenant: str) -> float:
        if self._count >= MOST_WAITING:
            raise late()
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._count += 1
        self._pass_on()
        try:
            async with asyncio.timeout(self.wait_s):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the turn came at the same moment
                self._end(tenant, turn.result())
            else:
                self._forget(tenant, turn)
            raise (late() if isinstance(error, TimeoutError) else error) from None

    def _forget(self, tenant: str, turn: asyncio.Future[float]) -> None:
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
        while self._free > 0:
            tenant = next((each for each in self._waiting if self._may_begin(each, waited=True)), None)
            if tenant is None:
                if self._waiting:  # a turn is kept for who had one lately
                    now = time.monotonic()
                    ends = (until for each in self._waiting for until in self._cleared.get(each, ()) if until > now)
                    self._timer = asyncio.get_running_loop().call_later(min(ends, default=now + BRIEF_S) - now, self._pass_on)
                return
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not turn.done():  # else its call was cancelled just now
                turn.set_result(self._begin(tenant))
