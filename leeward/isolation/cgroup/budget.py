"""
How much memory there is for this daemon: the host's, or less where a cgroup above it has a limit.

Runs in:   the daemon. Pure but for `memory`.
Source:    proc_meminfo(5), Documentation/admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator

from leeward.isolation.cgroup.hierarchy import Hierarchy, here


def memory() -> int:
    """
    Bytes.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        return least(file.read(), _limits(here()))


def least(meminfo: str, limits: Iterable[str]) -> int:
    """
    The smallest of the host's memory and *limits*, the texts of control files; what is no number there is no limit.
    """
    total = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemTotal:"))
    return min([total, *(int(text) for text in map(str.strip, limits) if text.isdecimal())])


def files(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    """
    The control files that may hold a limit: of this process's groups and those above, as far as they are shown.
    """
    for each in hierarchies:
        name = "memory.max" if 2 == each.version else "memory.limit_in_bytes"
        folder = each.own
        while (2 == each.version or "memory" in each.controllers) and folder.startswith(each.mount):
            yield f"{folder}/{name}"
            if folder == each.mount:
                break
            folder = posixpath.dirname(folder)


def _limits(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    for path in files(hierarchies):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # the root of version 2 has none
            yield file.read()
