"""
The driver for controllers on version 1 hierarchies, with the unified one beside them or not.

Runs in:   the daemon, with the right to make groups: in practice as root.
Source:    Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, Documentation/scheduler/sched-bwc.rst

Limits stand in the hierarchies of memory, pids and cpu. The unified hierarchy, where there is
one (hybrid), gives CLONE_INTO_CGROUP, cgroup.kill and the time used; without it those are done
by hand and by cpuacct.

Version 1 places nobody at birth. The job's first process writes "0", itself, to files that the
daemon has opened: the kernel judges by who opened them, so a process without any right may. Two
things are missing for good: memory.oom.group, so `tick` asks for the job's end when the kernel
has ended one of its processes; and a peak that is of the leaf alone, to the page.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import home
from leeward.isolation.cgroup.entry import Entry, Sockets, Usage, no_sockets
from leeward.isolation.cgroup.group import Group, field, pread
from leeward.isolation.cgroup.hierarchy import Hierarchy
from leeward.outcome import Limit
from leeward.spec.limits import Limits

#: The controllers without which limits don't hold.
NEEDED = ("memory", "pids", "cpu")

#: Microseconds; the kernel's default. A job that used up its share waits at most this long.
PERIOD_US = 100_000

#: Seconds between looks at the kernel's count of ended processes. A job one of whose processes
#: was ended runs on that long at most; a look is one read of an open file, some 3 us.
TICK_S = 0.02


#: Of a runner that is being armed while others are in store: file, value then, value later. Linux 5.15 can say
#: that it goes on only while nobody else would; before, it has an eighth of the default.
PATIENT = (("cpu.idle", "1", "0"), ("cpu.shares", "128", "1024"))


class V1Leaf:
    """
    A group per hierarchy for one job.
    """

    tick_interval = TICK_S
    needs_ticks = False

    def __init__(self, worker: V1Worker, name: str, limits: Limits, *, patient: bool) -> None:
        self._patience: tuple[str, str, str] | None = worker.patience if patient else None
        self._groups: dict[str, Group] = {}
        self._files: dict[str, int] = {}
        self._limits: Limits | None = None
        self._memsw = worker.memsw
        self._entry = Entry()
        self._usage = Usage()
        try:
            made: dict[str, Group] = {}  # cpu and cpuacct may be one hierarchy
            for controller, parent in worker.parents.items():
                if parent.path not in made:
                    made[parent.path] = parent.make(name)
                self._groups[controller] = made[parent.path]
            self._open(worker.owner_uid)
            self.apply(limits)
            if self._patience is not None:
                self._groups["cpu"].write(*self._patience[:2])
        except KernelRefusal:
            self._abandon()
            raise

    def _open(self, owner_uid: int) -> None:
        """
        Open now, while nobody waits, what is needed when a job starts and when it has ended.
        """
        groups, files = self._groups, self._files
        into = -1
        files["peak"] = groups["memory"].open("memory.max_usage_in_bytes")
        files["oom"] = groups["memory"].open("memory.oom_control")
        files["forks"] = groups["pids"].open("pids.events")
        if "unified" in groups:
            into = groups["unified"].fd
            files["time"] = groups["unified"].open("cpu.stat")
            if owner_uid != os.geteuid():
                groups["unified"].give(owner_uid, "cgroup.procs")
        else:
            files["time"] = groups["cpuacct"].open("cpuacct.usage")
        placed = {group.path: group for name, group in groups.items() if name != "unified"}
        attach = []
        for group in placed.values():
            files[group.path] = group.open("tasks", os.O_WRONLY)
            attach.append(files[group.path])
        self._entry = Entry(into, tuple(attach))

    @property
    def entry(self) -> Entry:
        return self._entry

    def armed(self) -> None:
        if self._patience is not None:
            file, _, value = self._patience
            self._patience = None
            self._groups["cpu"].write(file, value)

    def apply(self, limits: Limits) -> None:
        before, memory = self._limits, self._groups["memory"]
        if before is None or before.memory != limits.memory:
            files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][: 2 if self._memsw else 1]
            # Memory with swap may never be the lower of the two.
            for name in files if before is None or limits.memory < before.memory else reversed(files):
                memory.write(name, str(limits.memory))
        if before is None or before.processes != limits.processes:
            self._groups["pids"].write("pids.max", str(limits.processes))
        if before is None or before.cpu != limits.cpu:
            self._groups["cpu"].write("cpu.cfs_quota_us", str(limits.cpu * PERIOD_US // 100))
        self._limits = limits

    def rlimits(self) -> Mapping[int, int]:
        return {}

    def cpu(self) -> int | None:
        return None

    def usage(self) -> Usage:
        files = self._files
        if files:
            time = pread(files["time"])
            self._usage = Usage(
                field(time, "usage_usec") / 1e6 if "unified" in self._groups else int(time) / 1e9,
                int(pread(files["peak"])), field(pread(files["oom"]), "oom_kill"), field(pread(files["forks"]), "max"))
        return self._usage

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets) -> Limit | None:
        killed = "oom" in self._files and field(pread(self._files["oom"]), "oom_kill")
        return Limit.MEMORY if killed else None

    def kill(self) -> None:
        if "unified" in self._groups:
            self._groups["unified"].kill()
        elif "pids" in self._groups:
            pids = self._groups["pids"]
            pids.write("pids.max", "0")  # else a fork could outrun us
            pids.kill()

    def remove(self) -> bool:
        if self._files:
            self.usage()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        for group in set(self._groups.values()):
            if group.remove():
                self._groups = {name: other for name, other in self._groups.items() if other is not group}
        return not self._groups

    def _abandon(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        for group in set(self._groups.values()):
            with contextlib.suppress(KernelRefusal):
                group.remove()
            group.close()
        self._groups.clear()


class V1Worker:
    """
    A worker's place: a group on the unified hierarchy, and a prefix of names on the others.

    On the others leaves lie side by side in the daemon's home: each level costs at every page.
    """

    def __init__(self, homes: Mapping[str, Group], slot: int, owner_uid: int, memsw: bool) -> None:
        self.owner_uid, self.memsw = owner_uid, memsw
        self.parents = dict(homes)
        self.patience = next(row for row in PATIENT if row is PATIENT[-1] or homes["cpu"].has(row[0]))
        self._prefix = f"w{slot}"
        self._keeper: Group | None = None
        if "unified" in homes:
            group = homes["unified"].make(self._prefix)
            self._keeper = group.make("keeper")
            if owner_uid != os.geteuid():
                # The init moves the job from here to its leaf: the group above both must be its own.
                group.give(owner_uid, "cgroup.procs")
            self.parents["unified"] = group

    @property
    def keeper(self) -> Entry:
        return Entry(self._keeper.fd) if self._keeper is not None else Entry()

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> V1Leaf:
        return V1Leaf(self, f"{self._prefix}.{sequence}", limits, patient=patient)

    def remove(self) -> bool:
        if self._keeper is not None:
            if not self._keeper.remove():
                return False
            self._keeper = None
        return "unified" not in self.parents or self.parents["unified"].remove()


class V1Driver:
    """
    Limits by version 1 controllers.
    """

    name = "v1"
    degraded = False
    memory_counted = True
    affinity_fixed = False
    huge_pages = True

    def __init__(self, hierarchies: tuple[Hierarchy, ...], passed_over: tuple[tuple[str, str], ...] = ()) -> None:
        """
        Make this daemon's homes.

        Raises:
            Unsupported: a needed controller isn't on version 1, or no group can be made there.
        """
        self.passed_over = passed_over
        self._hierarchies = hierarchies
        self._homes: dict[str, Group] = {}
        used = _used(hierarchies)
        made: dict[str, Group] = {}  # by folder: one hierarchy may hold several controllers
        try:
            for controller, hierarchy in used.items():
                if hierarchy.own not in made:
                    with Group.at(hierarchy.own) as parent:
                        made[hierarchy.own] = home.make(parent)
                self._homes[controller] = made[hierarchy.own]
        except KernelRefusal as refusal:
            self.close()
            raise Unsupported("cgroup v1", have=str(refusal), need="the right to make groups",
                              cure="run leeward as root") from refusal
        self._memsw = self._homes["memory"].has("memory.memsw.limit_in_bytes")

    @property
    def detail(self) -> Mapping[str, str]:
        return {"home": self._homes["memory"].path,
                "unified": "yes" if "unified" in self._homes else "no",
                "swap": "limited" if self._memsw else "not limited: no swap accounting"}

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> V1Worker:
        return V1Worker(self._homes, slot, owner_uid, self._memsw)

    def sweep(self) -> int:
        return home.sweep(self._hierarchies)

    def close(self) -> None:
        for group in set(self._homes.values()):
            with contextlib.suppress(KernelRefusal):
                group.remove()
            group.close()
        self._homes.clear()


def _used(hierarchies: tuple[Hierarchy, ...]) -> dict[str, Hierarchy]:
    """
    The hierarchies to make groups in, by the controller that they are used for.
    """
    by_name = {name: each for each in hierarchies if each.version == 1 for name in each.controllers}
    unified = next((each for each in hierarchies if each.version == 2 and each.writable), None)
    missing = [name for name in NEEDED if name not in by_name or not by_name[name].writable]
    if unified is None and "cpuacct" not in by_name:
        missing.append("cpuacct")
    if missing:
        raise Unsupported("cgroup v1", have=f"no writable hierarchy of {', '.join(missing)}",
                          need="memory, pids and cpu on version 1")
    used = {name: by_name[name] for name in NEEDED}
    if unified is not None:
        used["unified"] = unified
    else:
        used["cpuacct"] = by_name["cpuacct"]
    return used
