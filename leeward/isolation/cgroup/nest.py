"""
A group below a leaf, for one process of a live sandbox and its descendants. cgroup.kill, cgroup.freeze

It has no controllers: its memory and tasks count for the leaf. It exists so that one process and all its descendants
can be ended without the sandbox's other processes. None can leave it: the hierarchy isn't mounted there.
"""

from __future__ import annotations

import contextlib
import os

from leeward._native.loop import Gauge
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.entry import Entry
from leeward.isolation.cgroup.group import Group, field


class Nests:
    def __init__(self) -> None:
        self._nests: list[GroupNest] = []

    def make(self, parent: Group, name: str, owner_uid: int, attach: tuple[int, ...] = ()) -> GroupNest:
        self._nests = [nest for nest in self._nests if not nest.removed]
        nest = GroupNest(parent, name, owner_uid, attach)
        self._nests.append(nest)
        return nest

    def remove(self) -> bool:
        """Remove the empty groups. Returns whether all were removed."""
        self._nests = [nest for nest in self._nests if not nest.remove()]
        return not self._nests


class GroupNest:
    """A nest, which is a group of its own, and the *entry* for its process. KernelRefusal if nothing was made."""

    def __init__(self, parent: Group, name: str, owner_uid: int, attach: tuple[int, ...] = ()) -> None:
        self._group = parent.make(name)
        try:
            if owner_uid != os.geteuid():
                self._group.give(owner_uid, "cgroup.procs")
        except KernelRefusal:
            with contextlib.suppress(KernelRefusal):
                self._group.remove()
            self._group.close()
            raise
        self.entry = Entry(self._group.fd, attach)
        self._stat = -1

    def time(self) -> float:
        """Processor seconds of all processes that are or were in the group."""
        return field(self._group.read("cpu.stat"), "usage_usec") / 1e6

    def gauge(self) -> Gauge:
        """
        The control file with the figure of `time`, in microseconds, until `remove`; KernelRefusal if it can't be
        opened.
        """
        if self._stat < 0:
            self._stat = self._group.open("cpu.stat")
        return Gauge(self._stat, "usage_usec")

    def kill(self) -> None:
        self.kill_by(self._group.fd)

    @property
    def folder(self) -> int:
        """The descriptor of the group's folder, which this object owns; -1 after `remove`."""
        return self._group.fd

    def kill_by(self, folder: int) -> None:
        """
        Send SIGKILL to every process in the group, by a descriptor of its folder; returns before they have gone. Before
        Linux 5.14 it is frozen meanwhile (Linux 5.2): they are killed one by one, and none must fork.
        """
        group = Group(self._group.path, folder)
        if group.fd < 0:
            return
        if group.has("cgroup.kill") or not group.has("cgroup.freeze"):
            group.kill()
            return
        group.write("cgroup.freeze", "1")
        try:
            group.kill()
        finally:
            group.write("cgroup.freeze", "0")

    def remove(self) -> bool:
        """Remove the group. Returns False while a process is in it."""
        if not (self.removed or self._group.remove()):
            return False
        stat, self._stat = self._stat, -1
        if stat >= 0:
            os.close(stat)
        return True

    @property
    def removed(self) -> bool:
        return self._group.fd < 0
