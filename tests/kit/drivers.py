"""
Cgroup drivers of the tests: one that limits nothing, as the control of every test of a limit; and one that borrows the
driver of another engine.

Runs in:   the tests. The product has no such drivers, and no way to choose one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from leeward.isolation.cgroup.entry import Driver, Entry, Leaf, Sockets, Usage, WorkerGroup, no_sockets
from leeward.spec.limits import Limits

#: Every driver of the product's; each is tested where this machine can have it.
DRIVERS = [
    pytest.param("v2", marks=pytest.mark.needs("cgroup-v2-controllers")),
    pytest.param("v1", marks=pytest.mark.needs("cgroup-v1-controllers", "root")),
    pytest.param("none"),
]


class UnlimitedLeaf(Leaf):
    """The leaf of a job that has no limit but the one on time. The job ends as any other, with its init."""

    tick_interval = 1.0
    needs_ticks = False
    entry = Entry()

    def apply(self, limits: Limits) -> None:
        return

    def usage(self) -> Usage:
        return Usage()

    def memory(self) -> int:
        return 0

    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets, charged: int = 0) -> None:
        return

    def kill(self) -> None:
        return


class UnlimitedWorker:
    """The group of a worker that is in no cgroup."""

    keeper = Entry()
    processors = ()

    def leaf(self, sequence: int, limits: Limits, *, patient: bool = False) -> UnlimitedLeaf:
        return UnlimitedLeaf()

    def remove(self) -> bool:
        return True


class UnlimitedDriver:
    """A driver as on a host where everything is counted, and nothing is limited."""

    name = "unlimited"
    degraded = False
    memory_counted = True
    affinity_fixed = False
    passed_over: tuple[tuple[str, str], ...] = ()
    worker_descriptors = leaf_descriptors = kept_leaves = 0

    @property
    def detail(self) -> Mapping[str, str]:
        return {}

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> UnlimitedWorker:
        return UnlimitedWorker()

    def limit_leaves(self, most: int) -> None:
        return

    def sweep(self) -> int:
        return 0

    def close(self) -> None:
        return


class BorrowedDriver:
    """The driver of another engine in this process, because on version 2 a process can have only one."""

    _borrowers = itertools.count(1)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._slots = 1000 * next(self._borrowers)  # its workers' groups stand beside the owner's

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def worker(self, slot: int, owner_uid: int, limits: Limits) -> WorkerGroup:
        return self._driver.worker(self._slots + slot, owner_uid, limits)

    def sweep(self) -> int:
        return 0

    def close(self) -> None:
        return
