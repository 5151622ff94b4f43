"""Version 1: the groups of one job, one in each hierarchy. When they are empty, another job gets them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from leeward._native.loop import Gauge
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.entry import Entry, Gauges, Usage, is_near
from leeward.isolation.cgroup.group import PERIOD_US, REMOVED, Group, Refusing, field, pread
from leeward.isolation.cgroup.nest import Nests
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.isolation.cgroup.nest import GroupNest

#: Errors that mean that no descriptor is free.
NO_ROOM = (errno.EMFILE, errno.ENFILE)

#: The greatest number of bytes, page cache for example, that a group may still count when another job gets it.
RESIDUE_BYTES = 512 << 10

#: The greatest number of descriptors of a place: seven control files; `tasks` of memory, pids and cpu; and either
#: `tasks` of cpuacct or the folder on the unified hierarchy.
DESCRIPTORS = 7 + 4


class V1Place:
    """
    One group in each hierarchy, with open control files, for one job after the other: to make and remove them took half
    of the daemon's system calls for a job. The counters go on, so a leaf subtracts their values at its start.
    """

    def __init__(self, parents: Mapping[str, Group], name: str, owner_uid: int, memsw: bool, patience: str) -> None:
        self.groups: dict[str, Group] = {}
        self.limits: Limits | None = None  # those in force
        self.patient = False  # its processes get only a small share of the processor if others compete for it
        self.last = Usage()   # the figures of the last `count`
        self.spoiled = False  # no other job may get this place
        self._entry = Entry()
        self._held: dict[str, int] = {}
        self._resting = False
        self._patience = patience
        self._memsw, self._owner_uid = memsw, owner_uid
        self._nests = Nests()
        try:
            made: dict[str, Group] = {}  # cpu and cpuacct may be one hierarchy
            for controller, parent in parents.items():
                if parent.path not in made:
                    made[parent.path] = parent.make(name)
                self.groups[controller] = made[parent.path]
            self._open()
            if "unified" in self.groups and owner_uid != os.geteuid():
                self.groups["unified"].give(owner_uid, "cgroup.procs")
            for group in made.values():
                if group is not self.groups.get("unified"):  # CLONE_INTO_CGROUP needs the unified group's folder
                    group.let_go()
        except KernelRefusal:
            self.abandon()
            raise

    def _open(self) -> None:
        groups, files = self.groups, self._held
        into = -1
        files["peak"] = groups["memory"].open("memory.max_usage_in_bytes", os.O_RDWR)
        files["memory"] = groups["memory"].open("memory.usage_in_bytes")
        files["oom"] = groups["memory"].open("memory.oom_control")
        files["forks"] = groups["pids"].open("pids.events")
        files["tasks"] = groups["pids"].open("pids.current")
        files["patience"] = groups["cpu"].open(self._patience, os.O_WRONLY)
        if "unified" in groups:
            into = groups["unified"].fd
            files["time"] = groups["unified"].open("cpu.stat")
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
        """The entry for the job's first process."""
        self._wake()
        return self._entry

    @property
    def _files(self) -> dict[str, int]:
        self._wake()
        return self._held

    def rest(self) -> None:
        """Close the descriptors until one is needed. A process has to be in the groups, so that no program removes them."""
        if not self._resting and self._held:
            self._close_files()
            self._resting = True

    def _wake(self) -> None:
        if not self._resting:
            return
        try:
            if "unified" in self.groups:
                self.groups["unified"].hold()
            self._open()
        except KernelRefusal as refusal:
            self._close_files()
            raise OSError(refusal.errno, str(refusal)) from refusal
        self._resting = False

    def _close_files(self) -> None:
        files, self._held = self._held, {}
        for fd in files.values():
            os.close(fd)
        if "unified" in self.groups:
            self.groups["unified"].let_go()

    def vacant(self) -> bool:
        """Whether no process is in the place any more, and another job may get it."""
        try:
            return not self.spoiled and int(pread(self._files["tasks"])) == 0 and self._nests.remove()
        except OSError as error:
            self._missing(error)
            return False

    def memory(self, unknown: int = 0) -> int:
        """The bytes of memory that it has now; *unknown* if a group or a descriptor is missing."""
        try:
            return int(pread(self._files["memory"]))
        except OSError as error:
            self._missing(error)
            return unknown

    def clean(self) -> bool:
        """Whether no more than RESIDUE_BYTES of its memory is left."""
        return self.memory(RESIDUE_BYTES + 1) <= RESIDUE_BYTES

    def _missing(self, error: OSError) -> None:
        """
        Handle an error of a control file: no descriptor is free now, or another program has removed one of the groups,
        which was empty then, and no other job gets this place. KernelRefusal for any other error.
        """
        if error.errno in NO_ROOM:
            return
        if error.errno not in REMOVED:
            raise KernelRefusal("pread", self.groups["memory"].path, error.errno or 0) from error
        self.spoiled = True

    def is_there(self) -> bool:
        """Whether all groups of the place still exist. If one was removed, no other job gets this place."""
        self.spoiled = self.spoiled or not all(group.is_there() for group in set(self.groups.values()))
        return not self.spoiled

    def forget_peak(self) -> None:
        """Measure the peak of memory from now on; OSError if the kernel refuses."""
        os.pwrite(self._files["peak"], b"0", 0)

    def write_patience(self, value: str) -> None:
        """Write *value* to the worker's file of `group.patience`."""
        with Refusing("write", f"{self.groups['cpu'].path}, {value!r}"):
            os.pwrite(self._files["patience"], value.encode(), 0)

    def hold(self, limits: Limits) -> None:
        before, memory = self.limits, self.groups["memory"]
        if before is None or before.memory != limits.memory:
            files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"][: 2 if self._memsw else 1]
            # The kernel refuses a limit on memory with swap that is lower than the one on memory.
            for name in files if before is None or limits.memory < before.memory else reversed(files):
                memory.write(name, str(limits.memory))
        if before is None or before.processes != limits.processes:
            self.groups["pids"].write("pids.max", str(limits.processes))
        if before is None or before.cpu != limits.cpu:
            self.groups["cpu"].write("cpu.cfs_quota_us", str(limits.cpu * PERIOD_US // 100))
        self.limits = limits

    def count(self) -> Usage:
        """The resources used since the groups were made; the peak since the last `forget_peak`."""
        try:
            files = self._files
            self.last = Usage(self._time(), int(pread(files["peak"])), field(pread(files["oom"]), "oom_kill"),
                              field(pread(files["forks"]), "max"))
        except OSError as error:
            self._missing(error)  # its job is over, and the last count holds
        return self.last

    def cpu_time(self) -> float:
        """The `cpu_time` of `count`, by one read instead of four."""
        try:
            return self._time()
        except OSError as error:
            self._missing(error)
            return self.last.cpu_time

    def _time(self) -> float:
        time = pread(self._files["time"])
        return field(time, "usage_usec") / 1e6 if "unified" in self.groups else int(time) / 1e9

    def gauges(self, before: Usage) -> Gauges:
        files = self._files
        unified = "unified" in self.groups
        return Gauges(Gauge(files["time"], "usage_usec" if unified else ""), 1e-6 if unified else 1e-9,
                      Gauge(files["peak"]), Gauge(files["oom"], "oom_kill"), Gauge(files["forks"], "max"), before)

    def at_limit(self) -> bool:
        """Whether the peak of the last `count` was at the limit."""
        return self.limits is None or is_near(self.last.memory_peak, self.limits.memory)

    def oom_kills(self) -> int:
        try:
            return field(pread(self._files["oom"]), "oom_kill")
        except OSError as error:
            self._missing(error)
            return self.last.oom_kills

    def nest(self, name: str) -> GroupNest | None:
        """Make a nest on the unified hierarchy; on the others one group has all processes of the sandbox."""
        if "unified" not in self.groups:
            return None
        return self._nests.make(self.groups["unified"], name, self._owner_uid, self.entry.attach)

    def kill(self) -> None:
        self.spoiled = True
        if "unified" in self.groups:
            self.groups["unified"].kill()
        elif "pids" in self.groups:
            pids = self.groups["pids"]
            pids.write("pids.max", "0")  # else new processes could appear faster than they are killed
            pids.kill()

    def remove(self) -> bool:
        """Close the descriptors and remove the groups. Returns False while a process is in one of them."""
        self._close()
        if not self._nests.remove():
            return False
        for group in set(self.groups.values()):
            if group.remove():
                self.groups = {name: other for name, other in self.groups.items() if other is not group}
        return not self.groups

    def abandon(self) -> None:
        """Remove the groups that can be removed, and close all descriptors."""
        self._close()
        for group in set(self.groups.values()):
            with contextlib.suppress(KernelRefusal):
                group.remove()
            group.close()
        self.groups.clear()

    def _close(self) -> None:
        self.spoiled = True
        self._resting = False
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()
