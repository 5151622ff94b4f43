"""
How much memory a worker has now, its keeper and armed runners included: for metrics.

Runs in:   the daemon, when somebody asks.

With controllers it is the kernel's own count. Without, it is the sum of the anonymous memory of the worker's processes.
That counts a page once for each process that shares it, so it is more than they have, never less.
"""

from __future__ import annotations

import contextlib
import os

from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.v1_worker import V1Worker
from leeward.isolation.cgroup.v2 import V2Worker
from leeward.worker.worker import Worker

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Processes of one worker that are looked at: a job that forks all the time could else go on without end.
_MOST = 4096


def memory_of(worker: Worker) -> int:
    """
    Bytes; 0 for a worker that is going.
    """
    group = worker.group
    try:
        if isinstance(group, V2Worker):
            return int(group.group.read("memory.current"))
        if isinstance(group, V1Worker):
            memory = group.parents["memory"]
            # Leaves of all workers lie side by side there. The keeper is in none: it is the daemon's.
            return _resident(worker.pid) + sum(int(memory.read(f"{name}/memory.usage_in_bytes"))
                                               for name in memory.children() if name.startswith(f"w{worker.slot}."))
    except (KernelRefusal, OSError, ValueError):  # it retires meanwhile
        return 0
    return sum(map(_resident, _tree(worker.pid)))


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * _PAGE
    return 0


def _tree(pid: int) -> list[int]:
    found = [pid] if pid > 0 else []
    for one in found:  # grows meanwhile: by the children of those that were found
        if len(found) > _MOST:
            break
        with contextlib.suppress(OSError), open(f"/proc/{one}/task/{one}/children") as file:
            found += map(int, file.read().split())
    return found
