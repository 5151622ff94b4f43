"""
The driver for controllers on version 1 hierarchies, with the unified hierarchy beside them or without it.

Runs in:   the daemon, with the right to make groups: in practice as root.
Source:    Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, Documentation/scheduler/sched-bwc.rst

The hierarchies of memory, pids and cpu hold the limits. The unified hierarchy, where there is one (a hybrid host),
offers CLONE_INTO_CGROUP, cgroup.kill and the processor time used. Without it the driver kills process by process and
reads the time from cpuacct.

Version 1 can't place a process at its birth. The job's first process writes "0" to `tasks` files that the daemon has
opened: the kernel checks the rights of the opener. It also lacks memory.oom.group (see `v1_worker`), and a peak of the
leaf alone that is exact to the page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import daemon_group
from leeward.isolation.cgroup.entry import Driver, processors_in_turn
from leeward.isolation.cgroup.group import Group, may_give
from leeward.isolation.cgroup.hierarchy import Hierarchy
from leeward.isolation.cgroup.v1_place import DESCRIPTORS
from leeward.isolation.cgroup.v1_worker import MOST_KEPT, V1Worker
from leeward.spec.limits import Limits

#: The controllers that enforce the limits.
NEEDED = ("memory", "pids", "cpu")


class V1Driver(Driver):
    name = "v1"
    degraded = False
    memory_counted = True
    worker_descriptors = 2
    leaf_descriptors = DESCRIPTORS
    resting_descriptors = 1  # the worker's folder
    kept_leaves = MOST_KEPT

    def __init__(self, hierarchies: tuple[Hierarchy, ...], passed_over: tuple[tuple[str, str], ...] = (), *,
                 pinned: bool = False) -> None:
        """
        Make this daemon's homes. Unsupported if a controller of NEEDED isn't on version 1, or no group can be made
        there.
        """
        self.passed_over = passed_over
        self.affinity_fixed = pinned
        self._cpus = processors_in_turn()
        self._hierarchies = hierarchies
        self._homes: dict[str, Group] = {}
        self._most_leaves = 0
        self._used = _used(hierarchies)
        try:
            self._make_homes()
        except KernelRefusal as refusal:
            self.close()
            raise Unsupported("cgroup v1", have=str(refusal), need="the right to make groups",
                              cure="run leeward as root") from refusal
        self._memsw = self._homes["memory"].has("memory.memsw.limit_in_bytes")

    def _make_homes(self) -> None:
        """
        Make the homes that don't exist: at the start all, later those that another program has removed while they were
        empty. KernelRefusal if one can't be made; the others stay.
        """
        made: dict[str, Group] = {}  # by folder, because one hierarchy may have several controllers
        for controller, hierarchy in self._used.items():
            before = self._homes.get(controller)
            if hierarchy.own in made:
                self._homes[controller] = made[hierarchy.own]
            elif before is not None and before.is_there():
                made[hierarchy.own] = before
            else:
                with Group.at(hierarchy.own) as parent:
                    self._homes[controller] = made[hierarchy.own] = daemon_group.make(parent)
            if before is not None and before not in self._homes.values():
                before.close()

    def limit_leaves(self, most: int) -> None:
        self._most_leaves = most

    @property
    def detail(self) -> Mapping[str, str]:
        return {"home": self._homes["memory"].path,
                "unified": "yes" if "unified" in self._homes else "no",
                "swap": "limited" if self._memsw else "not limited: no swap accounting"}

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> V1Worker:
        self._make_homes()
        return V1Worker(self._homes, slot, owner_uid, self._memsw, self._mend, self._most_leaves,
                        self._cpus[slot % len(self._cpus)] if self.affinity_fixed else None)

    def _mend(self) -> bool:
        """Make the homes again that another program has removed. Returns whether there was one."""
        before = dict(self._homes)
        self._make_homes()
        return before != self._homes

    def sweep(self) -> int:
        return daemon_group.sweep(self._hierarchies)

    def close(self) -> None:
        for group in set(self._homes.values()):
            with contextlib.suppress(KernelRefusal):
                group.remove()
            group.close()
        self._homes.clear()


def _used(hierarchies: tuple[Hierarchy, ...]) -> dict[str, Hierarchy]:
    """The writable hierarchies in which groups are made, by the controller for which each is used; or Unsupported."""
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
