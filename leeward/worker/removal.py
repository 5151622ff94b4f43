"""
Removes the cgroups of runners that have ended, as soon as the kernel allows it.

Runs in:   the daemon.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Leaf, WorkerGroup
from leeward.loop.reactor import Reactor
from leeward.run.runner import Runner

#: Failed removals of groups, by errors other than EBUSY, after which a group is given up; and seconds between tries.
_REMOVES, REMOVE_S = 100, 0.05


class Removal:
    """
    The groups of one worker's runners.

    Args:
        emptied: called when a group was removed that couldn't be removed at first.
        failed: called with the reason why a group can't be removed.
        broken: called with an exception that a callback has raised.
    """

    costs = "worker"

    def __init__(self, reactor: Reactor, emptied: Callable[[], None], failed: Callable[[str], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._emptied, self._failed = reactor, emptied, failed
        self._broken = broken
        self._left: list[Runner] = []
        self._refusals = 0

    def __bool__(self) -> bool:
        """Whether any group is left."""
        return bool(self._left)

    def dispose(self, runner: Runner) -> None:
        """Release everything of *runner*, which has no processes left."""
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
        """Try to remove the groups that are left."""
        self._left = [runner for runner in self._left if not self.removed(runner.leaf)]
        if self._left:
            self._reactor.after(REMOVE_S, self.again)
        self._emptied()

    def removed(self, group: Leaf | WorkerGroup) -> bool:
        """Try to remove a group. Returns True when it was removed, or was given up after some tries."""
        try:
            return group.remove()
        except (LeewardError, OSError) as error:
            self._refusals += 1
            if self._refusals < _REMOVES:
                return False
            self._failed(f"a group stays: {error}")
            return True

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has raised *error*, which is reported to the worker."""
        self._broken(error)
