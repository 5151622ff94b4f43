"""
Which worker may arm a runner: few at a time, so that arming doesn't delay requests.

Runs in:   the daemon.

Arming a runner costs some milliseconds of processor time; a request costs a fraction of one. A request that comes while
as many runners are being armed as there are processors waits for one of them. So while there is a runner in store for
every worker, one is armed at a time, with idle processor time alone; when the store runs low, as many as there are
processors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from leeward.loop.reactor import Reactor, Timer
from leeward.worker.worker import Worker

#: An arming that takes longer (its keeper may be stopped) no longer delays the others; and it gets a full share of
#: processor time, so that it ends on a busy host, too.
PATIENCE_S = 0.1


class Refill:
    """
    The queue of workers that want to arm a runner, each at most once.

    Args:
        most: armings at once when the store is low.
        stocked: returns whether every worker has a runner in store.
    """

    def __init__(self, reactor: Reactor, most: int, stocked: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._most = most
        self._stocked = stocked
        self._waiting: deque[Worker] = deque()
        self._arming: dict[int, Timer] = {}  # by the runner's number: when others don't wait for it any more

    def want(self, worker: Worker) -> None:
        """*worker* needs a runner; its `arm` is called when its turn has come."""
        self._waiting.append(worker)
        self._go_on()

    def over(self, runner: int) -> None:
        """This runner is armed, or has failed. May be called repeatedly."""
        timer = self._arming.pop(runner, None)
        if timer is not None:
            timer.cancel()
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._arming) < self._most:
            stocked = self._stocked()
            if stocked and self._arming:
                return
            worker = self._waiting.popleft()
            try:
                runner = worker.arm(patient=stocked)
            except Exception as error:  # its own loss: others wait behind it
                self._reactor.barrier.caught(worker.arm, error)
                continue
            if runner is not None:
                self._arming[runner] = self._reactor.after(PATIENCE_S, partial(self._lose_patience, worker, runner))

    def _lose_patience(self, worker: Worker, runner: int) -> None:
        worker.hurry(runner)
        self.over(runner)
