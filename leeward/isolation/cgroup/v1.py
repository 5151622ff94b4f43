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
from collections import deque
from collections.abc import Mapping

from leeward._native.loop import Gauge
from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import home
from leeward.isolation.cgroup.entry import Entry, Gauges, Sockets, Usage, no_sockets
from leeward.isolation.cgroup.group import Group, field, may_give, pread
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


#: A group that still counts more when its job is gone, page cache say, isn't given to another.
RESIDUE_BYTES = 512 << 10

#: So many groups without a job are kept for the next ones.
MOST_KEPT = 3


class Place:
    """
    A group per hierarchy, with what is read and written of them open: for one job after the other.

    Making and removing the four groups of a job, with their files, was half of the daemon's system calls
    for it. A place that is empty is as good as new but for its counters, which start where
    they stand.

    Attributes:
        entry: for its job.
        limits: in force.
        patient: it takes what others leave of the processors.
        last: what was counted when it was last asked.
        spoiled: not for another job any more.
    """

    def __init__(self, parents: Mapping[str, Group], name: str, owner_uid: int, memsw: bool, patience: str) -> None:
        self.groups: dict[str, Group] = {}
        self.limits: Limits | None = None
        self.patient = False
        self.last = Usage()
        self.spoiled = False
        self.entry = Entry()
        self._files: dict[str, int] = {}
        self._memsw = memsw
        try:
            made: dict[str, Group] = {}  # cpu and cpuacct may be one hierarchy
            for controller, parent in parents.items():
                if parent.path not in made:
                    made[parent.path] = parent.make(name)
                self.groups[controller] = made[parent.path]
            self._open(owner_uid, patience)
        except KernelRefusal:
            self.abandon()
            raise

    def _open(self, owner_uid: int, patience: str) -> None:
        groups, files = self.groups, self._files
        into = -1
        files["peak"] = groups["memory"].open("memory.max_usage_in_bytes", os.O_RDWR)
        files["memory"] = groups["memory"].open("memory.usage_in_bytes")
        files["oom"] = groups["memory"].open("memory.oom_control")
        files["forks"] = groups["pids"].open("pids.events")
        files["tasks"] = groups["pids"].open("pids.current")
        files["patience"] = groups["cpu"].open(patience, os.O_WRONLY)
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
        self.entry = Entry(into, tuple(attach))

    def vacant(self) -> bool:
        """
        Has every process gone, and nothing been out of order?
        """
        return not self.spoiled and 0 == int(pread(self._files["tasks"]))

    def clean(self) -> bool:
        """
        Has its memory gone, too?
        """
        return int(pread(self._files["memory"])) <= RESIDUE_BYTES

    def forget_peak(self) -> None:
        """
        The highest use of memory is from now on.

        Raises:
            OSError: the kernel doesn't let it be written.
        """
        os.pwrite(self._files["peak"], b"0", 0)

    def be_patient(self, value: str) -> None:
        """
        Write *value* to the file that `PATIENT` names.
        """
        try:
            os.pwrite(self._files["patience"], value.encode(), 0)
        except OSError as error:
            raise KernelRefusal("write", f"{self.groups['cpu'].path}, {value!r}", error.errno or 0) from error

    def hold(self, limits: Limits) -> None:
        """
        Set what differs from the limits in force.
        """
        before, memory = self.limits, self.groups["memory"]
        if before is None or before.memory != limits.memory:
            files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][: 2 if self._memsw else 1]
            # Memory with swap may never be the lower of the two.
            for name in files if before is None or limits.memory < before.memory else reversed(files):
                memory.write(name, str(limits.memory))
        if before is None or before.processes != limits.processes:
            self.groups["pids"].write("pids.max", str(limits.processes))
        if before is None or before.cpu != limits.cpu:
            self.groups["cpu"].write("cpu.cfs_quota_us", str(limits.cpu * PERIOD_US // 100))
        self.limits = limits

    def count(self) -> Usage:
        """
        Since the groups were made; the peak since it was last forgotten.
        """
        files = self._files
        time = pread(files["time"])
        self.last = Usage(field(time, "usage_usec") / 1e6 if "unified" in self.groups else int(time) / 1e9,
                          int(pread(files["peak"])), self.oom_kills(), field(pread(files["forks"]), "max"))
        return self.last

    def gauges(self, before: Usage) -> Gauges:
        files = self._files
        unified = "unified" in self.groups
        return Gauges(Gauge(files["time"], "usage_usec" if unified else ""), 1e-6 if unified else 1e-9,
                      Gauge(files["peak"]), Gauge(files["oom"], "oom_kill"), Gauge(files["forks"], "max"), before)

    def oom_kills(self) -> int:
        return field(pread(self._files["oom"]), "oom_kill")

    def kill(self) -> None:
        self.spoiled = True
        if "unified" in self.groups:
            self.groups["unified"].kill()
        elif "pids" in self.groups:
            pids = self.groups["pids"]
            pids.write("pids.max", "0")  # else a fork could outrun us
            pids.kill()

    def remove(self) -> bool:
        """
        Remove the groups and close what is open; False while a process is in one of them.
        """
        self._close()
        for group in set(self.groups.values()):
            if group.remove():
                self.groups = {name: other for name, other in self.groups.items() if other is not group}
        return not self.groups

    def abandon(self) -> None:
        """
        Remove what can be removed, and close all.
        """
        self._close()
        for group in set(self.groups.values()):
            with contextlib.suppress(KernelRefusal):
                group.remove()
            group.close()
        self.groups.clear()

    def _close(self) -> None:
        self.spoiled = True
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


class V1Leaf:
    """
    A place for one job, and what it used there.
    """

    tick_interval = TICK_S
    needs_ticks = False

    def __init__(self, worker: V1Worker, place: Place, limits: Limits, *, patient: bool) -> None:
        self._worker = worker
        self._place: Place | None = place
        self._usage = Usage()
        place.hold(limits)
        self._go_easy(patient)
        self._before = place.last

    @property
    def entry(self) -> Entry:
        return Entry() if self._place is None else self._place.entry

    def armed(self) -> None:
        self._go_easy(False)

    def leaves(self) -> None:
        self._go_easy(True)

    def _go_easy(self, patient: bool) -> None:
        if self._place is not None and self._place.patient is not patient:
            self._place.be_patient(self._worker.patience[1 if patient else 2])
            self._place.patient = patient

    def apply(self, limits: Limits) -> None:
        if self._place is not None:
            self._place.hold(limits)

    def rlimits(self) -> Mapping[int, int]:
        return {}

    def cpu(self) -> int | None:
        return None

    def usage(self) -> Usage:
        if self._place is not None:
            now, before = self._place.count(), self._before
            self._usage = Usage(now.cpu_time - before.cpu_time, now.memory_peak, now.oom_kills - before.oom_kills,
                                now.forks_refused - before.forks_refused)
        return self._usage

    def gauges(self) -> Gauges | None:
        return None if self._place is None else self._place.gauges(self._before)

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets) -> Limit | None:
        killed = self._place is not None and self._place.oom_kills() > self._before.oom_kills
        return Limit.MEMORY if killed else None

    def kill(self) -> None:
        if self._place is not None:
            self._place.kill()

    def remove(self) -> bool:
        """
        As the protocol says.
        """
        if self._place is None:
            return True
        if self._place.vacant():
            self.usage()
            if self._worker.keep(self._place):
                self._place = None
                return True
        if not self._place.remove():
            return False
        self._place = None
        return True


class V1Worker:
    """
    A worker's place: a group on the unified hierarchy, and a prefix of names on the others.

    On the others leaves lie side by side in the daemon's home: each level costs at every page.
    """

    def __init__(self, homes: Mapping[str, Group], slot: int, owner_uid: int, memsw: bool) -> None:
        self.parents = dict(homes)
        self.patience = next(row for row in PATIENT if row is PATIENT[-1] or homes["cpu"].has(row[0]))
        self._owner_uid, self._memsw = owner_uid, memsw
        self._prefix = f"w{slot}"
        self._keeper: Group | None = None
        self._kept: deque[Place] = deque()
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
        place = self._clean_place()
        if place is None:
            place = Place(self.parents, f"{self._prefix}.{sequence}", self._owner_uid, self._memsw, self.patience[0])
        try:
            return V1Leaf(self, place, limits, patient=patient)
        except KernelRefusal:
            place.abandon()
            raise

    def _clean_place(self) -> Place | None:
        for place in self._kept:
            if place.clean():
                self._kept.remove(place)
                with contextlib.suppress(OSError):
                    place.forget_peak()
                    return place
                place.abandon()
                return None
        return None

    def keep(self, place: Place) -> bool:
        """
        Have *place* for another job, or not.
        """
        if len(self._kept) >= MOST_KEPT and self._kept[0].remove():
            self._kept.popleft()
        if len(self._kept) >= MOST_KEPT:
            return False
        self._kept.append(place)
        return True

    def remove(self) -> bool:
        while self._kept:
            if not self._kept[0].remove():
                return False
            self._kept.popleft()
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
    unified = next((each for each in hierarchies if each.version == 2 and each.writable and may_give()), None)
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
