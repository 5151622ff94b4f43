"""
Failures to arm a runner, one after the other: how soon the next one is tried, and when a worker is given up.

Runs in:   the daemon; pure: times are arguments.
"""

from __future__ import annotations

from leeward.errors import SHORT, KernelRefusal
from leeward.isolation.cgroup.group import REMOVED
from leeward.run.runner import Runner

#: A runner that couldn't be armed, for want of descriptors or because somebody removed its group, is tried again
#: after this, doubled each time up to the second figure. For a removed group up to the third: whoever removes groups
#: without end lets a try through now and then, so what counts is how many tries there are.
_AGAIN_S, AGAIN_MOST_S, _REMOVED_MOST_S = 0.02, 1.0, 0.1

#: Seconds after which a worker that couldn't arm a runner, and has none in store, is replaced. Not sooner, because a
#: new worker has more groups that somebody could remove than a runner has.
_STUMBLES_S = 12.0

#: The longest pause before another runner is tried, by what the kernel said; none for what is the worker's own fault.
_PAUSES: dict[int | None, float] = {
    **dict.fromkeys(SHORT, AGAIN_MOST_S), **dict.fromkeys(REMOVED, _REMOVED_MOST_S)}


class Stumbles:
    """
    The failures of one worker.
    """

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def over(self) -> None:
        """
        A runner is armed.
        """
        self._count = 0

    def next(self, now: float, pause: float | None, *, store: bool) -> float | None:
        """
        Seconds until another runner is tried, or None if the worker has to be given up.

        Args:
            pause: the longest pause, or None if the cause is the worker's.
            store: there are armed runners.
        """
        if not self._count:
            self._since = now
        self._count += 1
        if pause is None or (now - self._since > _STUMBLES_S and not store):
            return None
        return min(pause, _AGAIN_S * 2.0 ** min(self._count, 10))


def pause_after(error: Exception) -> float | None:
    """
    The longest pause before another runner is tried, where *error* is none of the worker's doing.
    """
    return _PAUSES.get(getattr(error, "errno", None))


def pause_of(runner: Runner) -> float | None:
    """
    The longest pause before another runner is tried, if the cause of the failure isn't the worker's: lost descriptors,
    or a group that somebody removed. None for all other causes.
    """
    try:
        if runner.cut:
            return AGAIN_MOST_S
        return None if runner.leaf.is_there() else _REMOVED_MOST_S
    except KernelRefusal:
        return None
