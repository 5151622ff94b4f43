"""
The cgroups of runners that have ended, until the kernel allows their removal.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Leaf, WorkerGroup
from leeward.loop.reactor import Reactor
from leeward.run.runner import Runner

#: A group that the kernel doesn't let us remove, and doesn't call busy either, is given up after so many tries.
_REMOVES, REMOVE_S = 100, 0.05


class Removal:
    """
    Of one worker.

    Args:
        emptied: is called when one was removed that couldn't be at first.
        failed: is told of a group that stays.
        broken: hears what a callback of ours has raised.
    """

    costs = "worker"

    def __init__(self, reactor: Reactor, emptied: Callable[[], None], failed: Callable[[str], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._emptied, self._failed = reactor, emptied, failed
        self._broken = broken
        self._left: list[Runner] = []
        self._refusals = 0

    def __bool__(self) -> bool:
        """
        Is any left?
        """
        return bool(self._left)

    def dispose(self, runner: Runner) -> None:
        """
        Give back all that *runner* had, of which no process is left.
        """
        removed = False
        try:
            if runner.pidfd >= 0:
                self._reactor.forget(runner.pidfd)
            runner.dispose()
            removed = self.removed(runner.leaf)
        finally:
            if not removed:
                self._left.append(runner)
                self._reactor.after(REMOVE_S, self.again)

    def again(self) -> None:
        """
        Try those that are left.
        """
        self._left = [runner for runner in self._left if not self.removed(runner.leaf)]
        if self._left:
            self._reactor.after(REMOVE_S, self.again)
        self._emptied()

    def removed(self, group: Leaf | WorkerGroup) -> bool:
        """
        Remove it, or find after some tries that nobody can.
        """
        try:
            return group.remove()
        except (LeewardError, OSError) as error:
            self._refusals += 1
            if self._refusals < _REMOVES:
                return False
            self._failed(f"a group stays: {error}")
            return True

    def broken(self, error: Exception) -> None:
        """
        For the barrier: the worker hears of it.
        """
        self._broken(error)
