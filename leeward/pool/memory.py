"""
The memory that a worker has now, with its keeper and armed runners: for metrics.

Runs in:   the daemon, when somebody asks.

With controllers the figure is the kernel's own count. Without controllers it is the sum of the anonymous memory of the
worker's processes. The sum counts a page once for each process that shares it, so it may be more than the processes
have, and is never less.
"""

from __future__ import annotations

import contextlib
import os

from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.v1_worker import V1Worker
from leeward.isolation.cgroup.v2 import V2Worker
from leeward.worker.worker import Worker

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Processes of one worker that are counted, so that a job that keeps forking can't prolong the loop without end.
_MOST = 4096


def memory_of(worker: Worker) -> int:
    """Return the worker's memory in bytes; 0 for a worker that is ending."""
    group = worker.group
    try:
        if isinstance(group, V2Worker):
            return int(group.group.read("memory.current"))
        if isinstance(group, V1Worker):
            memory = group.parents["memory"]
            # The leaves of all workers have the same parent. The keeper is in none of them, but in the daemon's group.
            return _resident(worker.keeper.pid) + sum(int(memory.read(f"{name}/memory.usage_in_bytes"))
                                               for name in memory.children() if name.startswith(f"w{worker.slot}."))
    except (KernelRefusal, OSError, ValueError):  # it retires meanwhile
        return 0
    return sum(map(_resident, _tree(worker.keeper.pid)))


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * _PAGE
    return 0


def _tree(pid: int) -> list[int]:
    found = [pid] if pid > 0 else []
    for one in found:  # grows during the loop by the children of the processes found
        if len(found) > _MOST:
            break
        with contextlib.suppress(OSError), open(f"/proc/{one}/task/{one}/children") as file:
            found += map(int, file.read().split())
    return found
