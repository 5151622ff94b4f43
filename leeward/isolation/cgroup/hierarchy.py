"""Finds the mounted cgroup hierarchies, and the group of a process in each. cgroups(7), proc_pid_mountinfo(5)"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from leeward.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Hierarchy:
    version: int                 # 1 or 2
    controllers: frozenset[str]  # of version 1, e.g. {"cpu", "cpuacct"}; in version 2 each group has its own
    mount: str                   # the folder where it is mounted
    own: str                     # the folder of the process's own group
    writable: bool = True        # the mount isn't read-only; the user may still lack the right to write there


def parse(cgroup: str, mountinfo: str) -> tuple[Hierarchy, ...]:
    """The hierarchies in which a process can see its own group, by the texts of /proc/PID/cgroup and mountinfo."""
    own: dict[frozenset[str], str] = {}
    for line in cgroup.splitlines():
        _, names, path = line.split(":", 2)
        own[frozenset(names.split(",")) if names else frozenset()] = path
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(" "), after.split(" ")[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = _unescape(fields[3]), _unescape(fields[4])
        here = _names(options.split(","), own) if kind == "cgroup" else frozenset()
        if here is None or here not in own:
            continue
        folder = _within(own[here], root, mount)
        if folder is not None:  # of several mounts on one folder the last one is visible
            found[here] = Hierarchy(2 if kind == "cgroup2" else 1, here, mount, folder,
                                    "ro" not in fields[5].split(",") + options.split(","))
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


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def here() -> tuple[Hierarchy, ...]:
    with open("/proc/self/cgroup") as groups, open("/proc/self/mountinfo") as mounts:
        return parse(groups.read(), mounts.read())
