"""The groups of one job on version 1: which files are written and read, and groups that somebody removed."""

from __future__ import annotations

import dataclasses
import errno
import os

import pytest

from kit.cgroup_v1 import HOME, HYBRID, kernel, mounted
from kit.unclosed import close_garbage
from leeward.isolation.cgroup import v1_place
from leeward.isolation.cgroup.entry import Usage
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit


@pytest.fixture
def fake(fake_cgroups):
    return fake_cgroups(kernel())


def test_memory_with_swap_is_never_the_lower(fake):
    """The kernel refuses a limit above the one with swap, and the other way round."""
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits(memory=64 * MIB))
    before = len(fake.written)

    leaf.apply(dataclasses.replace(Limits(), memory=128 * MIB))
    leaf.apply(dataclasses.replace(Limits(), memory=32 * MIB))

    assert [path.rpartition("/")[2] for path, _ in fake.written[before:]] == [
        "memory.memsw.limit_in_bytes", "memory.limit_in_bytes",
        "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]


def test_applying_writes_only_changed_limits(fake):
    """It happens while a request waits."""
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    before = len(fake.written)

    leaf.apply(Limits())
    leaf.apply(dataclasses.replace(Limits(), processes=5))

    assert fake.written[before:] == [(f"pids/{HOME}/w0.1/pids.max", "5")]


def test_usage_and_verdict(fake):
    """A process that was ended for want of memory ends the job: version 1 has no oom.group."""
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    memory = fake.root / f"memory/{HOME}/w0.1"

    assert leaf.tick(1) is None

    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (memory / "memory.max_usage_in_bytes").write_text(f"{7 * MIB}\n")
    (fake.root / f"pids/{HOME}/w0.1/pids.events").write_text("max 3\n")
    (fake.root / f"unified/{HOME}/w0/w0.1/cpu.stat").write_text("usage_usec 250000\n")

    assert leaf.tick(1) is Limit.MEMORY
    assert leaf.remove()
    assert leaf.usage() == Usage(0.25, 7 * MIB, 1, 3)  # far from its own limit: no hit of that
    assert leaf.tick(1) is None  # nothing to look at any more


def refuse_reads(monkeypatch, below: str) -> None:
    """What the kernel says of a file that is open when its group is removed."""
    def pread(fd: int) -> str:
        if below in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(fd)

    real = v1_place.pread
    monkeypatch.setattr(v1_place, "pread", pread)


@pytest.mark.parametrize("hierarchy", ["memory", "pids", "unified"])
def test_a_removed_group_costs_no_figures_and_is_not_used_again(fake, monkeypatch, hierarchy):
    """Its job was over, or it had been empty: what was counted last is told, and the next job has another."""
    worker = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits())
    leaf = worker.leaf(1, Limits())
    unified = f"unified/{HOME}/w0/w0.1"
    (fake.root / unified / "cpu.stat").write_text("usage_usec 2000000\n")
    assert 2.0 == leaf.usage().cpu_time
    assert leaf.is_there()

    removed = unified if "unified" == hierarchy else f"{hierarchy}/{HOME}/w0.1"
    fake.tidy(removed)
    refuse_reads(monkeypatch, removed)

    assert not leaf.is_there()
    assert 2.0 == leaf.usage().cpu_time
    assert leaf.tick(0) is None
    assert leaf.remove()
    second = worker.leaf(2, Limits())
    assert f"memory/{HOME}/w0.2" in fake.groups()
    assert second.remove()
    assert worker.remove()
    assert 0 == worker.places


@pytest.mark.parametrize("hierarchy", ["memory", "pids", "cpu", "unified"])
def test_a_removed_kept_group_is_given_to_one_runner_at_most(fake, monkeypatch, hierarchy):
    """It is seen when it is read, or when that runner couldn't be put there."""
    worker = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits())
    assert worker.leaf(1, Limits()).remove()
    removed = f"unified/{HOME}/w0/w0.1" if "unified" == hierarchy else f"{hierarchy}/{HOME}/w0.1"
    fake.tidy(removed)
    refuse_reads(monkeypatch, removed)

    leaf = worker.leaf(2, Limits())
    assert ("memory" == hierarchy) is leaf.is_there()
    assert leaf.remove()
    again = worker.leaf(3, Limits())
    assert again.is_there()
    assert again.remove()
    assert worker.remove()
    assert 0 == worker.places


def test_a_place_has_as_many_descriptors_as_it_says(fake):
    driver = V1Driver(mounted(fake, *HYBRID))
    close_garbage()
    before = len(os.listdir("/proc/self/fd"))
    worker = driver.worker(0, os.geteuid(), Limits())
    assert V1Driver.worker_descriptors == len(os.listdir("/proc/self/fd")) - before
    worker.leaf(1, Limits())

    assert V1Driver.worker_descriptors + V1Driver.leaf_descriptors == len(os.listdir("/proc/self/fd")) - before
