"""
The processor time that a daemon and its workers have used.

Runs in:   the CLI.

/proc leaves most of a job's time out: when a pid namespace ends, its init reaps nobody, the kernel does, and what the
job's processes have used is added to no parent's account. A cgroup's account keeps it.
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
    Processor seconds so far, by who spent them.

    Attributes:
        workers: keepers and runners, those that are gone as well: arming, the job, the end. None where no cgroup
            counts them.
    """

    daemon: float
    zygote: float
    workers: float | None

    def since(self, before: Spent) -> Spent:
        both = None if self.workers is None or before.workers is None else self.workers - before.workers
        return Spent(self.daemon - before.daemon, self.zygote - before.zygote, both)


def spent(daemon: int) -> Spent | None:
    """
    What *daemon* and the processes below it have used; None where /proc doesn't tell.
    """
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
    From the group above all workers' groups, less the *others* that are in it: with version 2 the daemon may be.
    """
    if not keepers:
        return None
    mount = unified(Path("/proc/self/mountinfo").read_text())
    path = group_of(Path(f"/proc/{keepers[0]}/cgroup").read_text())
    top = os.path.dirname(os.path.dirname(path))  # a keeper sits in a leaf of its worker's
    if mount is None or "keeper" != os.path.basename(path) or "/" == top:
        return None
    fields = dict(line.split() for line in Path(f"{mount}{top}/cpu.stat").read_text().splitlines())
    within = sum(time for pid, time in others.items()
                 if group_of(Path(f"/proc/{pid}/cgroup").read_text()).startswith(top + "/"))
    return int(fields["usage_usec"]) / 1e6 - within


def unified(mountinfo: str) -> str | None:
    """
    Where version 2's hierarchy is mounted, whole.
    """
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and "/" == fields.split()[3]:
            return fields.split()[4]
    return None


def group_of(cgroup: str) -> str:
    """
    The group in version 2's hierarchy, from the text of /proc/PID/cgroup; "/" where there is none.
    """
    return next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), "/")


def children(pid: int) -> list[int]:
    """
    The processes that *pid*'s first thread has made.
    """
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def zygotes(daemon: int) -> list[int]:
    """
    Its children but for the opener, which leeward/worker/opener.py starts, and one that hasn't become a program yet, or
    is about to.
    """
    others = (_arguments(daemon), b"")
    return [pid for pid in children(daemon)
            if b"import opener" not in (line := _arguments(pid)) and line not in others]


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def seconds(stat: str) -> float:
    """
    Of the process itself, from the text of /proc/PID/stat; proc(5).
    """
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
