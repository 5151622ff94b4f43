"""The memory that this daemon may use: the host's, or less if a cgroup above has a limit. proc_meminfo(5)"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator

from leeward.isolation.cgroup.hierarchy import Hierarchy, here


def memory() -> int:
    """The memory that this daemon may use, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return least(file.read(), _limits(here()))


def least(meminfo: str, limits: Iterable[str]) -> int:
    """
    The smallest of the host's memory (*meminfo* is /proc/meminfo) and *limits*, texts of control files, in bytes. A
    text that isn't a number means no limit.
    """
    total = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemTotal:"))
    return min([total, *(int(text) for text in map(str.strip, limits) if text.isdecimal())])


def files(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    """The control files that may have a limit: those of this process's groups and of the groups above, up to the mount."""
    for each in hierarchies:
        name = "memory.max" if each.version == 2 else "memory.limit_in_bytes"
        folder = each.own
        while (each.version == 2 or "memory" in each.controllers) and folder.startswith(each.mount):
            yield f"{folder}/{name}"
            if folder == each.mount:
                break
            folder = posixpath.dirname(folder)


def _limits(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    for path in files(hierarchies):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # version 2's root has none
            yield file.read()
