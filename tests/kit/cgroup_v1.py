"""Files of version 1 hierarchies, as a fake cgroup file system has them, for the tests of the version 1 driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leeward.isolation.cgroup import daemon_group
from leeward.isolation.cgroup.hierarchy import Hierarchy

FILES = {
    "memory": {"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9", "memory.max_usage_in_bytes": "0",
               "memory.usage_in_bytes": "0",
               "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"},
    "pids": {"pids.max": "max", "pids.events": "max 0\n", "pids.current": "0\n"},
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
    "cpuacct": {"cpuacct.usage": "0"},
    "unified": {"cpu.stat": "usage_usec 0\n", "cgroup.kill": ""},
}
HOME = daemon_group.name()
HYBRID = ("memory", "pids", "cpu", "cpuacct", "unified")


def kernel(*, without: tuple[str, ...] = ()) -> Callable[[Path], dict[str, str]]:
    """A kernel with a hierarchy per folder of the root, which is named for its controllers."""
    def fill(folder: Path) -> dict[str, str]:
        files = {"cgroup.procs": "", "tasks": ""}
        for name, more in FILES.items():
            if any(name in part.split(",") for part in folder.parts):
                files |= more
        return {name: text for name, text in files.items() if name not in without}
    return fill


def mounted(fake: Any, *names: str) -> tuple[Hierarchy, ...]:
    for name in names:
        fake.populate(fake.root / name)
    return tuple(Hierarchy(2 if "unified" == name else 1,
                           frozenset() if "unified" == name else frozenset(name.split(",")),
                           str(fake.root / name), str(fake.root / name)) for name in names)
