"""
A group below a leaf: one process of a live sandbox, with what descends from it.

Runs in:   the daemon.
Source:    Documentation/admin-guide/cgroup-v2.rst: cgroup.kill, cgroup.freeze

It has no controllers: its memory and tasks count for the leaf. It is there so that one process and all that
descends from it can be ended, without the others of the sandbox. No process in a sandbox can leave its group, because
nothing there shows the hierarchy.
"""

from __future__ import annotations

import contextlib
import os

from leeward._native.loop import Gauge
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.entry import Entry
from leeward.isolation.cgroup.group import Group, field


class Nests:
    """
    Those of one leaf.
    """

    def __init__(self) -> None:
        self._nests: list[GroupNest] = []

    def make(self, parent: Group, name: str, owner_uid: int, attach: tuple[int, ...] = ()) -> GroupNest:
        self._nests = [nest for nest in self._nests if not nest.removed]
        nest = GroupNest(parent, name, owner_uid, attach)
        self._nests.append(nest)
        return nest

    def remove(self) -> bool:
        """
        Remove the empty groups. Returns whether all were removed.
        """
        self._nests = [nest for nest in self._nests if not nest.remove()]
        return not self._nests


class GroupNest:
    """
    Attributes:
        entry: for the process.
    """

    def __init__(self, parent: Group, name: str, owner_uid: int, attach: tuple[int, ...] = ()) -> None:
        """
        Raises:
            KernelRefusal: nothing was made.
        """
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
        """
        Processor seconds of all that was ever in it.
        """
        return field(self._group.read("cpu.stat"), "usage_usec") / 1e6

    def gauge(self) -> Gauge:
        """
        Where `time` stands, in microseconds, until it is removed.

        Raises:
            KernelRefusal: it can't be opened.
        """
        if self._stat < 0:
            self._stat = self._group.open("cpu.stat")
        return Gauge(self._stat, "usage_usec")

    def kill(self) -> None:
        """
        SIGKILL to every process in it. Returns before they are gone.

        Before Linux 5.14 they are frozen (5.2) while they are killed one by one, so that none forks meanwhile.
        """
        self._end(self._group)

    @property
    def folder(self) -> int:
        """
        The descriptor of its folder, which it owns, or -1.
        """
        return self._group.fd

    def kill_by(self, folder: int) -> None:
        """
        The same by a descriptor of the caller's.
        """
        self._end(Group(self._group.path, folder))

    @staticmethod
    def _end(group: Group) -> None:
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
        """
        Give it back; False while a process is in it.
        """
        if not (self.removed or self._group.remove()):
            return False
        stat, self._stat = self._stat, -1
        if stat >= 0:
            os.close(stat)
        return True

    @property
    def removed(self) -> bool:
        return self._group.fd < 0
