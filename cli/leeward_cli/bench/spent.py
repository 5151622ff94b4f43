"""
The processor time that a daemon and its workers have used.

/proc doesn't show most of a job's time: when a pid namespace ends, the kernel reaps its processes, not their init, and
adds their time to no parent. A cgroup counts it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds so far. Workers are keepers and runners, also ended ones; None if no cgroup counts their time."""

    daemon: float
    zygote: float
    workers: float | None

    @property
    def both(self) -> float | None:
        return None if self.workers is None else self.daemon + self.workers

    def since(self, before: Spent) -> Spent:
        both = None if self.workers is None or before.workers is None else self.workers - before.workers
        return Spent(self.daemon - before.daemon, self.zygote - before.zygote, both)


def spent(daemon: int) -> Spent | None:
    """The processor time of the process *daemon* and of those below it; None if /proc can't be read."""
    try:
        found = zygotes(daemon)
        keepers = [keeper for zygote in found for keeper in children(zygote)]
        clocks = {pid: clock(pid) for pid in (daemon, *found)}
        return Spent(clocks[daemon], sum(clocks[pid] for pid in found), _workers(keepers, clocks))
    except (OSError, ValueError, IndexError):
        return None


def _workers(keepers: list[int], others: dict[int, float]) -> float | None:
    """The time of the group above all workers' groups, minus that of *others* in it: with version 2 the daemon may be."""
    if not keepers:
        return None
    mount = unified(Path("/proc/self/mountinfo").read_bytes().decode(errors="replace"))
    path = group_of(Path(f"/proc/{keepers[0]}/cgroup").read_text())
    top = os.path.dirname(os.path.dirname(path))  # a keeper is in a child of its worker's group
    if mount is None or os.path.basename(path) != "keeper" or top == "/":
        return None
    fields = dict(line.split() for line in Path(f"{mount}{top}/cpu.stat").read_text().splitlines())
    within = sum(seconds for pid, seconds in others.items()
                 if group_of(Path(f"/proc/{pid}/cgroup").read_text()).startswith(top + "/"))
    return int(fields["usage_usec"]) / 1e6 - within


def unified(mountinfo: str) -> str | None:
    """The folder where the root of version 2's hierarchy is mounted; None if it isn't."""
    for line in mountinfo.split("\n"):
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and fields.split()[3] == "/":
            return fields.split()[4]
    return None


def group_of(cgroup: str) -> str:
    """The group in version 2's hierarchy, from the text of /proc/PID/cgroup; "/" if there is none."""
    return next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), "/")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def zygotes(daemon: int) -> list[int]:
    """The children of *daemon* but its opener (leeward/daemon/worker/opener.py) and those before or during their exec."""
    others = (_arguments(daemon), b"")
    return [pid for pid in children(daemon)
            if b"import opener" not in (line := _arguments(pid)) and line not in others]


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def threads(pid: int) -> dict[str, float]:
    """The processor seconds of each thread of a process."""
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").iterdir()}


def clock(pid: int) -> float:
    """The processor seconds of all threads of a process: CPUCLOCK_SCHED, which the kernel counts in nanoseconds."""
    return time.clock_gettime(~pid << 3 | 2)
