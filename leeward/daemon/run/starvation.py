"""
How long a job was starved: runnable, and without the processor that its limit allows.

Theory of operation. The kernel counts for each task how long it has run and how long it waited for a processor. In the
time between two looks the job was active for as long as any task did either, at most for all of it; and with a
processor of its own for each active task, as far as its limit allows, it would have needed its processor time, divided
by their number, for what it did. The rest of the active time it was starved. So tasks that wait for one another, or
that the job's own limit holds back, starve nobody.

A task's waiting is added when it runs next. Until then a look adds it, if the task hasn't run since the look before; so
what is known is *settled* only if each task that is runnable has run in a short time before, or the job had a processor
for half of it. Of processes that
were born and ended between two looks only the processor time is known: they are taken to have waited as the others did.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from leeward.base.dataclass import dataclass

#: Seconds from a job's start to the first look, and the part of its time so far until the next.
FIRST_S, NEXT = 0.05, 0.25
#: Seconds in which each runnable task has run, if what is known of it is exact.
SETTLED_S = 0.05
#: How much longer than a look is the time until the next.
REST = 20
#: Tasks of one job that a look reads.
_MOST_TASKS = 256
#: How often as long as they ran the unseen processes of a job may have waited.
_MOST_RATIO = 100.0


@dataclass(slots=True)
class TaskTimes:
    """What the kernel tells of a task, in seconds, and whether it is runnable; *since*: when *ran* changed last."""

    ran: float
    waited: float
    runnable: bool
    since: float = 0.0


def active_and_starved(before: dict[int, TaskTimes], after: dict[int, TaskTimes], spent: float, seconds: float,
                       processors: float) -> tuple[float, float]:
    """
    Seconds for which a job was active, and starved, in a time of *seconds*, in which all its processes together took
    *spent* seconds of processor time, by the times of its tasks before and after. Pure.
    """
    ran = waited = 0.0
    for task, now in after.items():
        then = before.get(task)
        ran += now.ran - (0.0 if then is None else then.ran)
        waited += max(0.0, now.waited - (0.0 if then is None else then.waited))
    unseen = max(0.0, spent - ran)
    active = ran + waited + unseen * (1.0 + (min(_MOST_RATIO, waited / ran) if ran > 0 else 0.0))
    at_once = min(processors, max(1.0, active / seconds))
    active = min(seconds, active)
    return active, max(0.0, active - max(spent, ran) / at_once)


class Starvation:
    """
    The starvation of the job below *init*, a pid in the daemon's namespace, that may use *processors*; *now* and *used*
    are the time and the job's processor time at each look.
    """

    def __init__(self, init: int, processors: float, now: float, used: float) -> None:
        self._init, self._processors = init, processors
        self._at, self._used = now, used
        self._tasks = dict(self._read())
        for times in self._tasks.values():
            times.since = now
        self.seconds = 0.0  # so far
        self.settled = False  # at the last look
        self.pause = 0.0  # seconds until the next look at least, so that looks at many tasks take no loop's time
        self.unknown = 0.0  # seconds before the last look in which tasks may have waited, of which the kernel tells later

    def look(self, now: float, used: float) -> None:
        """Count the time since the last look."""
        seconds = now - self._at
        if seconds <= 0:
            return
        began = time.monotonic()
        after = dict(self._read())
        for task, times in after.items():
            then = self._tasks.get(task)
            times.since = now if then is None or times.ran > then.ran else then.since
            if times.runnable and times.since < now:
                times.waited = max(times.waited, (0.0 if then is None else then.waited) + now - max(times.since, self._at))
        within = seconds + self.unknown
        active, starved = active_and_starved(self._tasks, after, max(0.0, used - self._used), within, self._processors)
        self.seconds += starved
        runnable = [times for times in after.values() if times.runnable]
        served = used - self._used >= seconds / 2 or all(times.since == now for times in runnable)
        self.settled = not runnable or (seconds <= SETTLED_S and served)
        self.unknown = within - active if runnable else 0.0
        self._tasks, self._at, self._used = after, now, used
        self.pause = REST * (time.monotonic() - began)

    def own_time(self, passed: float, spent: float) -> float:
        """Seconds of its time that a job has used, *passed* seconds after its start, with *spent* seconds of a processor."""
        return max(passed - self.seconds, min(passed, spent / self._processors))

    def surely_used(self, started: float, spent: float) -> float:
        """As `own_time`, of a job that is gone: what it waited for since the last look nobody knows."""
        return max(self._at - started - self.seconds - self.unknown, spent / self._processors)

    def _read(self) -> Iterator[tuple[int, TaskTimes]]:
        """The times of the job's tasks; those that are ending are left out."""
        count = 0
        processes = list(_children(self._init, self._init))
        for process in processes:  # grows
            for task in _tasks(process):
                count += 1
                if count > _MOST_TASKS:
                    return
                processes += _children(process, task)
                with contextlib.suppress(OSError, ValueError, IndexError):
                    yield task, _times(process, task)


def busy() -> float:
    """Seconds for which this thread has run, or waited for a processor."""
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat", "rb") as file:
        waited = int(file.read().split()[1])
    return time.thread_time() + waited / 1e9


def _children(process: int, task: int) -> list[int]:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/task/{task}/children") as file:
        return [int(word) for word in file.read().split()]
    return []


def _tasks(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return []


def _times(process: int, task: int) -> TaskTimes:
    """proc(5), Documentation/scheduler/sched-stats.rst."""
    with open(f"/proc/{process}/task/{task}/schedstat", "rb") as file:
        ran, waited, _ = map(int, file.read().split())
    with open(f"/proc/{process}/task/{task}/stat", "rb") as file:
        runnable = file.read().rpartition(b")")[2][:3] == b" R "
    return TaskTimes(ran / 1e9, waited / 1e9, runnable)
