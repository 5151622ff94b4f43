"""
Finds the mounted cgroup hierarchies, the group of a process in each, and the memory that they leave to this daemon.

Source:    cgroups(7), proc_pid_mountinfo(5), proc_meminfo(5), admin-guide/cgroup-v2.rst (memory.max)
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Iterable, Iterator

from leeward._native.mounts import mounted
from leeward.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Hierarchy:
    version: int                 # 1 or 2
    controllers: frozenset[str]  # of version 1, e.g. {"cpu", "cpuacct"}; in version 2 each group has its own
    mount: str                   # the folder where it is mounted
    own: str                     # the folder of the process's own group
    writable: bool = True        # the mount isn't read-only; the user may still lack the right to write there


def parse(cgroup: str, mountinfo: str | None = None) -> tuple[Hierarchy, ...]:
    """The hierarchies in which a process can see its own group, by /proc/PID/cgroup and its mountinfo, or this one's."""
    own: dict[frozenset[str], str] = {}
    for line in cgroup.splitlines():
        _, names, path = line.split(":", 2)
        own[frozenset(names.split(",")) if names else frozenset()] = path
    found: dict[frozenset[str], Hierarchy] = {}
    for row in mounted(mountinfo):
        if row.kind not in ("cgroup", "cgroup2"):
            continue
        here = _names(row.own, own) if row.kind == "cgroup" else frozenset()
        if here is None or here not in own:
            continue
        folder = _within(own[here], row.root, row.point)
        if folder is not None:  # of several mounts on one folder the last one is visible
            found[here] = Hierarchy(2 if row.kind == "cgroup2" else 1, here, row.point, folder,
                                    "ro" not in (*row.options, *row.own))
    return tuple(found.values())


def _names(options: Iterable[str], own: Iterable[frozenset[str]]) -> frozenset[str] | None:
    given = set(options)
    return next((names for names in own if names and names <= given), None)


def _within(path: str, root: str, mount: str) -> str | None:
    """The folder of group *path* where *root* of its hierarchy is mounted at *mount*."""
    relative = posixpath.relpath(path, root)
    # The mount of a container doesn't show our group, or belongs to a cgroup namespace that we aren't in.
    if ".." in (relative.split("/")[0], path.split("/")[1]):
        return None
    return posixpath.normpath(posixpath.join(mount, relative))


def here() -> tuple[Hierarchy, ...]:
    with open("/proc/self/cgroup") as groups:
        return parse(groups.read())


def memory() -> int:
    """The memory that this daemon may use, in bytes: the host's, or less if a cgroup above has a limit."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return least(file.read(), _limits(here()))


def least(meminfo: str, limits: Iterable[str]) -> int:
    """
    The smallest of the host's memory (*meminfo* is /proc/meminfo) and *limits*, texts of control files, in bytes. A
    text that isn't a number means no limit.
    """
    return min([_row(meminfo, "MemTotal"), *(int(text) for text in map(str.strip, limits) if text.isdecimal())])


def memory_left() -> tuple[int, int]:
    """
    The memory that this daemon may use, and how much of it is left, in bytes: the host's, or less where a cgroup above
    has a limit. Caches count as left.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        meminfo = file.read()
    total, left = (_row(meminfo, name) for name in ("MemTotal", "MemAvailable"))
    for limit_file in _bounded():
        with contextlib.suppress(OSError, ValueError, StopIteration):  # the group, or its limit, may have gone
            bound, free = _left_in(limit_file)
            total, left = min(total, bound), min(left, free)
    return total, left


def oom_kills() -> int:
    """
    Processes that the OOM killer has ended in this process's group and below, for any reason; of the whole host where no
    group has a count that can be read, and 0 where the kernel has none.
    """
    for path in _counts():
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(f"\n{_text(path)}".partition("\noom_kill ")[2].split()[0])
    return 0


@functools.cache
def _counts() -> tuple[str, ...]:
    names = {1: "memory.oom_control", 2: "memory.events"}
    return *(f"{next(folders)}/{names[each.version]}" for each in here() for folders in [_folders(each, "memory")]
             if each.version == 2 or "memory" in each.controllers), "/proc/vmstat"


def processors() -> float:
    """The processors that this process may use: those that it may run on, or less where a cgroup above has a quota."""
    bounds = [float(len(os.sched_getaffinity(0)))]
    for each in here():
        names = ("cpu.max",) if each.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in _folders(each, "cpu"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # version 2's root has none
                words = [word for name in names for word in _text(f"{folder}/{name}").split()]
                quota, period = int(words[0]), int(words[1])  # "max": no number
                bounds += [quota / period] if quota > 0 else []
    return min(bounds)


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _folders(each: Hierarchy, controller: str) -> Iterator[str]:
    """The folders of this process's group in a hierarchy with *controller*, and of those above, up to the mount."""
    folder = each.own
    while (each.version == 2 or controller in each.controllers) and folder.startswith(each.mount):
        yield folder
        if folder == each.mount:
            break
        folder = posixpath.dirname(folder)


def _row(meminfo: str, name: str) -> int:
    return next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith(f"{name}:"))


@functools.cache
def _bounded() -> tuple[str, ...]:
    """The control files that had a limit below the host's memory when this was first asked."""
    with open("/proc/meminfo", encoding="ascii") as file:
        total = _row(file.read(), "MemTotal")
    found = []
    for path in limit_files(here()):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            if int(file.read()) < total:
                found.append(path)
    return tuple(found)


def _left_in(limit_file: str) -> tuple[int, int]:
    folder, name = posixpath.split(limit_file)
    used, row = (("memory.current", "inactive_file ") if name == "memory.max" else
                 ("memory.usage_in_bytes", "total_inactive_file "))
    with (open(limit_file, encoding="ascii") as limit, open(f"{folder}/{used}", encoding="ascii") as usage,
          open(f"{folder}/memory.stat", encoding="ascii") as stat):
        bound = int(limit.read())
        cached = next(int(line.split()[1]) for line in stat if line.startswith(row))
        return bound, max(0, bound - int(usage.read()) + cached)


def limit_files(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    """The control files that may have a limit: those of this process's groups and of the groups above, up to the mount."""
    for each in hierarchies:
        name = "memory.max" if each.version == 2 else "memory.limit_in_bytes"
        yield from (f"{folder}/{name}" for folder in _folders(each, "memory"))


def _limits(hierarchies: Iterable[Hierarchy]) -> Iterator[str]:
    for path in limit_files(hierarchies):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # version 2's root has none
            yield file.read()
