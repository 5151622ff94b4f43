"""
The processor time that a daemon and its workers have used.

Runs in:   the CLI.

/proc doesn't show most of a job's time: when a pid namespace ends, the kernel reaps its processes, not their init, and
adds their time to no parent. A cgroup counts it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: The kernel's unit in /proc/PID/stat.
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spent:
    """
    Processor seconds so far of each kind of process.

    Attributes:
        workers: the time of keepers and runners, also of those that have ended: for arming, jobs and ends. None if no
            cgroup counts it.
    """

    daemon: float
    zygote: float
    workers: float | None

    def since(self, before: Spent) -> Spent:
        both = None if self.workers is None or before.workers is None else self.workers - before.workers
        return Spent(self.daemon - before.daemon, self.zygote - before.zygote, both)


def spent(daemon: int) -> Spent | None:
    """The processor time of the process *daemon* and of those below it; None if /proc can't be read."""
    try:
        own = seconds(Path(f"/proc/{daemon}/stat").read_text())
        found = zygotes(daemon)
        theirs = sum(seconds(Path(f"/proc/{zygote}/stat").read_text()) for zygote in found)
        keepers = [keeper for zygote in found for keeper in children(zygote)]
        return Spent(own, theirs, _workers(keepers, {daemon: own, **dict.fromkeys(found, theirs / len(found))}))
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return None


def _workers(keepers: list[int], others: dict[int, float]) -> float | None:
    """
    The time of all workers, from the group above their groups, minus the time of *others* in that group: with version 2
    the daemon may be in it.
    """
    if not keepers:
        return None
    mount = unified(Path("/proc/self/mountinfo").read_text())
    path = group_of(Path(f"/proc/{keepers[0]}/cgroup").read_text())
    top = os.path.dirname(os.path.dirname(path))  # a keeper is in a child of its worker's group
    if mount is None or os.path.basename(path) != "keeper" or top == "/":
        return None
    fields = dict(line.split() for line in Path(f"{mount}{top}/cpu.stat").read_text().splitlines())
    within = sum(time for pid, time in others.items()
                 if group_of(Path(f"/proc/{pid}/cgroup").read_text()).startswith(top + "/"))
    return int(fields["usage_usec"]) / 1e6 - within


def unified(mountinfo: str) -> str | None:
    """The folder where the root of version 2's hierarchy is mounted; None if it isn't."""
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and fields.split()[3] == "/":
            return fields.split()[4]
    return None


def group_of(cgroup: str) -> str:
    """The group in version 2's hierarchy, from the text of /proc/PID/cgroup; "/" if there is none."""
    return next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), "/")


def children(pid: int) -> list[int]:
    """The processes that *pid*'s first thread has made."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def zygotes(daemon: int) -> list[int]:
    """
    The children of *daemon* without the opener, which leeward/worker/opener.py starts, and without children before or
    during their exec.
    """
    others = (_arguments(daemon), b"")
    return [pid for pid in children(daemon)
            if b"import opener" not in (line := _arguments(pid)) and line not in others]


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def seconds(stat: str) -> float:
    """The processor seconds of a process, from the text of /proc/PID/stat; proc(5)."""
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
