"""
Successive failures to arm a runner: how soon another runner is tried, and when the worker is given up.

Runs in:   the daemon; pure: times are arguments.
"""

from __future__ import annotations

from leeward.errors import SHORT, KernelRefusal
from leeward.isolation.cgroup.group import REMOVED
from leeward.run.runner import Runner

#: Seconds until another runner is tried after one that couldn't be armed, because descriptors were short or its group
#: was removed from outside; doubled with each failure up to the second figure. After a removed group up to the third:
#: a program that removes groups again and again misses one now and then, so many tries are needed.
_AGAIN_S, AGAIN_MOST_S, _REMOVED_MOST_S = 0.02, 1.0, 0.1

#: Seconds after which a worker that couldn't arm a runner, and has none in store, is replaced. Not sooner, because a
#: new worker has more groups that somebody could remove than a runner has.
_STUMBLES_S = 12.0

#: The longest pause before another runner is tried, by errno; errors that aren't listed are the worker's own fault.
_PAUSES: dict[int | None, float] = {
    **dict.fromkeys(SHORT, AGAIN_MOST_S), **dict.fromkeys(REMOVED, _REMOVED_MOST_S)}


class Stumbles:
    """The failures of one worker."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def over(self) -> None:
        """Forget the failures: a runner is armed."""
        self._count = 0

    def next(self, now: float, pause: float | None, *, store: bool) -> float | None:
        """
        Count a failure. Returns the seconds until another runner is tried, or None if the worker has to be given up.

        Args:
            now: seconds, of the reactor's clock.
            pause: the longest pause, or None if the worker is the cause.
            store: there are armed runners.
        """
        if not self._count:
            self._since = now
        self._count += 1
        if pause is None or (now - self._since > _STUMBLES_S and not store):
            return None
        return min(pause, _AGAIN_S * 2.0 ** min(self._count, 10))


def pause_after(error: Exception) -> float | None:
    """Return the longest pause before another runner is tried after *error*; None if the worker is its cause."""
    return _PAUSES.get(getattr(error, "errno", None))


def pause_of(runner: Runner) -> float | None:
    """
    Return the longest pause before another runner is tried after *runner* has failed because its descriptors were lost
    or its group was removed from outside; None for all other causes, which are the worker's.
    """
    try:
        if runner.cut:
            return AGAIN_MOST_S
        return None if runner.leaf.is_there() else _REMOVED_MOST_S
    except KernelRefusal:
        return None
