"""
A seat: how a live sandbox gets a worker, and gives it back.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. Like a session, a sandbox waits in the pool's queue for a worker, and counts as one running job of
its user as long as it has one. It gets a live runner, which takes processes until it ends. A seat that is given back is
forgotten, though its runner takes some time to end. Until then only the user's account counts it, and a callback can be
set for when nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.errors import Busy, LeewardError, Refused
from leeward.loop.barrier import in_any_case
from leeward.run.report import Report
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.pool.pool import Pool
    from leeward.pool.sessions import Cancellable
    from leeward.run.live import LiveRunner


class Seat:
    """
    Made by `Pool.open_seat`.

    Args:
        opened: called once, with the runner or the reason why there is none; perhaps before `acquire` returns.
        lost: called once, with the reason, when the runner has ended before the seat was given back.
        drained: called when the daemon ends.
    """

    costs = "session"

    def __init__(self, pool: Pool, limits: Limits, user: int, opened: Callable[[Any | Refused], None],
                 lost: Callable[[str], None], drained: Callable[[], None]) -> None:
        self._pool, self._limits, self._user = pool, limits, user
        self._opened: Callable[[Any | Refused], None] | None = opened
        self._lost: Callable[[str], None] | None = lost
        self._drained = drained
        self._gone: Callable[[], None] | None = None
        self._wait: Cancellable | None = None
        self._runner: LiveRunner | None = None

    def acquire(self, seconds: float) -> None:
        """
        Wait for a worker, at most so many *seconds*.

        Raises:
            Refused, BadRequest: no worker can be had.
        """
        self._wait = self._pool.await_worker(self._limits, self._user, self._take, self._refused, seconds)

    def _take(self, worker: Any) -> bool:
        try:
            self._runner = worker.leasing.open(self._limits, self._ended)
        except LeewardError:
            return False
        self._wait = None
        self._finish(self._runner)
        return True

    def _ended(self, why: str) -> None:
        lost, self._lost, self._runner = self._lost, None, None
        gone, self._gone = self._gone, None
        in_any_case(partial(self._pool.lease_over, self._user, self._limits), *([partial(lost, why)] if lost else []),
                    *([gone] if gone else []))

    def _refused(self, report: Report) -> None:
        self._wait = None
        error = None if report.result is None else report.result.error
        self._finish(report.refusal or Busy("no worker could be had" + ("" if error is None else f": {error.message}")))

    def _finish(self, what: Any) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened(what)

    def drain(self) -> None:
        """Tell the owner that the daemon ends."""
        self._drained()

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*."""
        lost = self._lost
        in_any_case(self.close, *([partial(lost, f"a bug of the daemon's: {error}")] if lost else []))

    def close(self, gone: Callable[[], None] | None = None) -> None:
        """
        Give the worker back; no further callback of the owner's is called.

        Args:
            gone: called once no process of its runner is left, perhaps before this returns.
        """
        self._opened = self._lost = None
        wait, self._wait = self._wait, None
        runner, self._runner = self._runner, None
        if runner is not None:
            self._gone = gone
        in_any_case(*([wait.cancel] if wait is not None else []),
                    *([partial(runner.end, "its sandbox is over")] if runner is not None else []),
                    partial(self._pool.forget_seat, self), *([gone] if runner is None and gone is not None else []))
