"""The version 2 driver's files: which groups it makes, what it writes, in which order."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from kit.unclosed import close_garbage
from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import daemon_group
from leeward.isolation.cgroup import v2 as v2_driver
from leeward.isolation.cgroup.entry import Usage
from leeward.isolation.cgroup.group import REMOVED
from leeward.isolation.cgroup.hierarchy import Hierarchy
from leeward.isolation.cgroup.v2 import V2Driver
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit

CORE = {"cgroup.procs": "", "cgroup.events": "populated 0", "cgroup.subtree_control": "", "cpu.stat": "usage_usec 0\n",
        "cgroup.kill": ""}
MEMORY = {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.peak": "0",
          "memory.current": "0", "memory.events": "low 0\noom_kill 0\n"}
PIDS = {"pids.max": "max", "pids.events": "max 0\n"}
CPU = {"cpu.max": "max 100000", "cpu.weight": "100"}

WORKER_UID = 2_000_000_007


def kernel(controllers: str = "cpu memory pids", *, without: tuple[str, ...] = ()):
    """A kernel that gives each group the files of what its parent enables."""
    def fill(folder: Path) -> dict[str, str]:
        parent = folder.parent / "cgroup.subtree_control"
        given = parent.read_text() if parent.exists() else controllers
        files = {**CORE, "cgroup.controllers": given}
        for name, more in (("memory", MEMORY), ("pids", PIDS), ("cpu", CPU)):
            if name in given.split():
                files |= more
        return {name: text for name, text in files.items() if name not in without}
    return fill


def v2(fake, writable: bool = True) -> tuple[Hierarchy, ...]:
    return (Hierarchy(2, frozenset(), str(fake.root), str(fake.root), writable),)


@pytest.fixture
def fake(fake_cgroups):
    return fake_cgroups(kernel())


HOME = daemon_group.name()


def test_the_daemon_leaves_its_group_before_it_enables_controllers(fake):
    """The kernel refuses the other order."""
    V2Driver(v2(fake))

    assert fake.written == [
        (f"{HOME}/daemon/cgroup.procs", "0"),
        ("cgroup.subtree_control", "+cpu +memory +pids"),
        (f"{HOME}/cgroup.subtree_control", "+cpu +memory +pids"),
    ]


def test_closing_leaves_the_group_as_it_was_found(fake):
    """Controllers off again, the daemon back, no group left."""
    close_garbage()
    before = len(os.listdir("/proc/self/fd"))

    V2Driver(v2(fake)).close()

    assert [] == fake.groups()
    assert "" == (fake.root / "cgroup.subtree_control").read_text()
    assert ("cgroup.procs", "0") == fake.written[-1]
    assert len(os.listdir("/proc/self/fd")) == before


def test_controllers_that_were_enabled_stay_enabled(fake):
    """Another program enabled memory and pids: only cpu is leeward's to disable."""
    (fake.root / "cgroup.subtree_control").write_text("memory pids")

    V2Driver(v2(fake)).close()

    assert "memory pids" == (fake.root / "cgroup.subtree_control").read_text()


def test_a_group_that_others_are_in_is_left_as_it_was(fake):
    """EBUSY: a shell in the same scope, say. The message has the cure."""
    fake.refused["cgroup.subtree_control"] = errno.EBUSY

    with pytest.raises(Unsupported, match=r"EBUSY.*systemd-run.*Delegate=yes"):
        V2Driver(v2(fake))

    assert [] == fake.groups()
    assert ("cgroup.procs", "0") == fake.written[-1]


@pytest.mark.parametrize("controllers", ["", "hugetlb", "memory", "pids cpu"])
def test_without_memory_and_pids_it_does_not_serve(fake_cgroups, controllers):
    """And it touches nothing."""
    fake = fake_cgroups(kernel(controllers))

    with pytest.raises(Unsupported, match="need memory and pids"):
        V2Driver(v2(fake))

    assert ([], []) == (fake.groups(), fake.written)


def test_it_does_not_serve_where_cgroups_are_read_only_or_unmounted(fake):
    """As in most containers."""
    with pytest.raises(Unsupported, match="read-only"):
        V2Driver(v2(fake, writable=False))
    with pytest.raises(Unsupported, match="no mount"):
        V2Driver((Hierarchy(1, frozenset({"memory"}), "/x", "/x"),))


def test_it_does_not_serve_without_the_right_to_give_groups_away(fake, monkeypatch):
    """Root of a container that was left but a few capabilities."""
    monkeypatch.setattr("leeward.isolation.cgroup.v2.may_give", lambda: False)

    with pytest.raises(Unsupported, match="root without CAP_CHOWN"):
        V2Driver(v2(fake))
    assert [] == fake.groups() == fake.written


def test_without_cpu_a_processor_is_fixed(fake_cgroups):
    """As a systemd user gets it by default on some hosts."""
    fake = fake_cgroups(kernel("memory pids"))
    driver = V2Driver(v2(fake))
    leaf = driver.worker(0, os.geteuid(), Limits()).leaf(1, Limits())

    assert driver.affinity_fixed
    assert leaf.cpu() in os.sched_getaffinity(0)
    assert "not delegated" in driver.detail["cpu"]
    assert not [path for path, _ in fake.written if "cpu.max" in path]


def test_without_cpu_a_worker_has_as_many_processors_as_its_limit_is_worth(fake_cgroups, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    driver = V2Driver(v2(fake_cgroups(kernel("memory pids"))))
    some, one = driver.worker(0, os.geteuid(), Limits(cpu=250)), driver.worker(1, os.geteuid(), Limits(cpu=199))

    assert (2, True) == (len(some.processors), {*some.processors} < {2, 3, 5, 7})
    assert some.leaf(1, Limits(cpu=250)).cpu() is None
    assert ((), True) == (one.processors, one.leaf(1, Limits(cpu=199)).cpu() in {2, 3, 5, 7})
    assert 4 == len(driver.worker(2, os.geteuid(), Limits(cpu=900)).processors)


def test_a_pinned_worker_keeps_its_controller(fake_cgroups):
    """The limit may be less than a processor."""
    fake = fake_cgroups(kernel())
    driver = V2Driver(v2(fake), pinned=True)
    first, second = (driver.worker(slot, os.geteuid(), Limits()).leaf(1, Limits(cpu=50)) for slot in (0, 1))
    processors = sorted(os.sched_getaffinity(0))

    assert driver.affinity_fixed
    assert first.cpu() in processors
    assert second.cpu() == processors[(processors.index(first.cpu()) + 1) % len(processors)]
    assert "cpu.max" == driver.detail["cpu"]
    assert (f"{HOME}/w0/1/cpu.max", "50000 100000") in fake.written


def test_a_worker_and_a_leaf(fake):
    """The worker's uid gets what clone3 asks for, and no more: not the keeper's group, no limit."""
    driver = V2Driver(v2(fake))
    worker = driver.worker(3, WORKER_UID, Limits())
    before = len(fake.written)
    assert (f"{HOME}/w3/memory.swap.max", "0") in fake.written
    leaf = worker.leaf(8, Limits(memory=64 * MIB, processes=12, cpu=50))

    assert fake.owners == [(f"{HOME}/w3/cgroup.procs", WORKER_UID), (f"{HOME}/w3/8/cgroup.procs", WORKER_UID)]
    assert sorted(fake.written[before:]) == [
        (f"{HOME}/w3/8/cpu.max", "50000 100000"),
        (f"{HOME}/w3/8/memory.max", str(64 * MIB)),
        (f"{HOME}/w3/8/memory.oom.group", "1"),
        (f"{HOME}/w3/8/pids.max", "12"),
    ]
    assert os.readlink(f"/proc/self/fd/{leaf.entry.into}").endswith("/w3/8")
    assert os.readlink(f"/proc/self/fd/{worker.keeper.into}").endswith("/w3/keeper")
    assert leaf.entry.attach == ()


@pytest.mark.parametrize(("idle", "file", "then", "later"), [
    (True, "cpu.idle", "1", "0"), (False, "cpu.weight", "12", "100")])
def test_an_unrequested_runner_runs_at_idle_priority(fake_cgroups, monkeypatch, idle, file, then, later):
    """Until it is armed and once its job was answered, by the best means that the kernel has."""
    if idle:
        monkeypatch.setitem(CPU, "cpu.idle", "0")
    fake = fake_cgroups(kernel())
    worker = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits())
    leaf, hasty = worker.leaf(1, Limits(), patient=True), worker.leaf(2, Limits())
    assert (f"{HOME}/w0/1/{file}", then) in fake.written
    assert f"{HOME}/w0/2/{file}" not in dict(fake.written)
    before = len(fake.written)
    for one in (leaf, leaf, hasty):
        one.armed()
    assert fake.written[before:] == [(f"{HOME}/w0/1/{file}", later)]
    for one in (leaf, leaf, hasty):
        one.lower_priority()
    assert fake.written[before + 1:] == [(f"{HOME}/w0/1/{file}", then), (f"{HOME}/w0/2/{file}", then)]


def test_applying_writes_only_changed_limits(fake):
    """It happens while a request waits."""
    leaf = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    before = len(fake.written)

    leaf.apply(Limits())
    leaf.apply(dataclasses.replace(Limits(), memory=32 * MIB))
    leaf.apply(dataclasses.replace(Limits(), memory=32 * MIB, processes=5))

    assert fake.written[before:] == [(f"{HOME}/w0/1/memory.max", str(32 * MIB)), (f"{HOME}/w0/1/pids.max", "5")]


def test_usage_is_read_and_stays_after_the_end(fake):
    """Seconds, bytes, and counts of this leaf alone."""
    leaf = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    folder = fake.root / HOME / "w0/1"
    (folder / "memory.peak").write_text(f"{5 * MIB}\n")
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\n")
    (folder / "pids.events").write_text("max 4\n")
    (folder / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    used = Usage(1.5, 5 * MIB, 2, 4, 3)

    assert leaf.tick(1) is Limit.MEMORY
    assert leaf.usage() == used
    assert leaf.remove()
    assert leaf.usage() == used
    assert not folder.exists()


def test_an_older_kernel_has_fewer_files(fake_cgroups):
    """5.10: no cgroup.kill, no memory.peak; and without swap accounting no memory.swap.max."""
    fake = fake_cgroups(kernel(without=("cgroup.kill", "memory.peak", "memory.swap.max", "memory.oom.group")))
    leaf = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    folder = fake.root / HOME / "w0/1"
    for now in (3 * MIB, 9 * MIB, MIB):
        (folder / "memory.current").write_text(str(now))
        leaf.tick(1)

    leaf.kill()

    assert (leaf.usage().memory_peak, leaf.usage().limit_hits) == (9 * MIB, 0)
    (folder / "memory.events").write_text("max 0\noom 0\noom_kill 1\n")  # for the host's memory
    assert (leaf.usage().memory_peak, leaf.usage().limit_hits) == (9 * MIB, 0)
    (folder / "memory.events").write_text("max 9\noom 1\noom_kill 2\n")  # for its own
    assert (leaf.usage().memory_peak, leaf.usage().limit_hits) == (Limits().memory, 1)
    assert fake.written[-1] == (f"{HOME}/w0/1/pids.max", "0")  # no fork outruns the killing


def test_killing_is_one_write(fake):
    """To cgroup.kill, which misses nobody."""
    leaf = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())

    leaf.kill()

    assert fake.written[-1] == (f"{HOME}/w0/1/cgroup.kill", "1")


def test_a_leaf_that_cannot_be_made_leaves_no_group_or_descriptor(fake):
    """The worker goes on."""
    worker = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits())
    close_garbage()
    before = len(os.listdir("/proc/self/fd")), fake.groups()
    fake.refused[f"{HOME}/w0/1/pids.max"] = errno.EINVAL

    with pytest.raises(KernelRefusal, match=r"pids\.max"):
        worker.leaf(1, Limits())

    assert (len(os.listdir("/proc/self/fd")), fake.groups()) == before
    assert worker.leaf(2, Limits()).remove()


def test_a_worker_goes_with_its_keeper(fake):
    """Busy as long as a leaf is left."""
    driver = V2Driver(v2(fake))
    worker = driver.worker(0, os.geteuid(), Limits())
    leaf = worker.leaf(1, Limits())

    assert not worker.remove()
    assert leaf.remove()
    assert worker.remove()
    assert worker.remove()  # once more does no harm
    assert fake.groups() == [HOME, f"{HOME}/daemon"]


def test_a_removed_group_costs_no_figures(fake, monkeypatch):
    """Its job was over: what was counted last is told."""
    worker = V2Driver(v2(fake)).worker(0, os.geteuid(), Limits())
    leaf = worker.leaf(1, Limits())
    path = f"{HOME}/w0/1"
    (fake.root / path / "cpu.stat").write_text("usage_usec 2000000\n")
    assert 2.0 == leaf.usage().cpu_time
    assert leaf.is_there()

    def pread(fd: int) -> str:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    fake.tidy(path)
    monkeypatch.setattr(v2_driver, "pread", pread)

    assert not leaf.is_there()
    assert 2.0 == leaf.usage().cpu_time
    assert leaf.tick(0) is None
    assert leaf.remove()
    assert worker.remove()


def test_a_worker_whose_own_group_was_removed_can_have_no_leaf(fake):
    """Another worker is made for it."""
    driver = V2Driver(v2(fake))
    worker = driver.worker(0, os.geteuid(), Limits())
    fake.tidy(f"{HOME}/w0")
    with pytest.raises(KernelRefusal) as refusal:
        worker.leaf(1, Limits())
    assert refusal.value.errno in REMOVED
    assert worker.remove()

    assert driver.worker(0, os.geteuid(), Limits()).leaf(2, Limits()).is_there()


def test_a_leaf_has_as_many_descriptors_as_it_says(fake):
    driver = V2Driver(v2(fake))
    close_garbage()
    before = len(os.listdir("/proc/self/fd"))
    worker = driver.worker(0, os.geteuid(), Limits())
    assert V2Driver.worker_descriptors == len(os.listdir("/proc/self/fd")) - before
    worker.leaf(1, Limits())

    assert V2Driver.worker_descriptors + V2Driver.leaf_descriptors - 1 == len(os.listdir("/proc/self/fd")) - before
