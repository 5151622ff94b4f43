"""A worker's leaves on version 1: which groups are kept for the next job, and which are not."""

from __future__ import annotations

import os

import pytest

from kit.cgroup_v1 import FILES, HOME, HYBRID, kernel, mounted
from kit.unclosed import close_garbage
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.entry import Usage
from leeward.isolation.cgroup.group import REMOVED
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit


@pytest.fixture
def fake(fake_cgroups):
    return fake_cgroups(kernel())


@pytest.mark.parametrize(("idle", "file", "then", "later"), [
    (True, "cpu.idle", "1", "0"), (False, "cpu.shares", "128", "1024")])
def test_an_unrequested_runner_runs_at_idle_priority(fake_cgroups, monkeypatch, idle, file, then, later):
    """Until it is armed and once its job was answered, by the best means that the kernel has."""
    monkeypatch.setitem(FILES, "cpu", FILES["cpu"] | ({"cpu.idle": "0"} if idle else {}))
    fake = fake_cgroups(kernel())
    worker = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits())
    leaf, hasty = worker.leaf(1, Limits(), patient=True), worker.leaf(2, Limits())
    text = (fake.root / f"cpu/{HOME}/w0.1/{file}").read_text
    assert text().startswith(then)
    for one in (leaf, leaf, hasty):
        one.armed()
    assert text().startswith(later)
    assert (fake.root / f"cpu/{HOME}/w0.2/{file}").read_text() == FILES["cpu"].get(file, "0")
    leaf.lower_priority()
    assert text().startswith(then)
    assert leaf.remove()
    worker.leaf(3, Limits())  # the same place, for one that somebody waits for
    assert text().startswith(later)


def put(fake, name: str, text: str) -> None:
    """Write *text* to the file *name* of runner 1's groups."""
    (fake.root / f"{name.split('.')[0]}/{HOME}/w0.1/{name}").write_text(text)


def test_an_empty_place_is_given_to_the_next_job(fake):
    """Nothing is made, and only what differs is written; what the first one used isn't the second one's."""
    worker = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct")).worker(0, os.geteuid(), Limits())
    first = worker.leaf(1, Limits())
    put(fake, "cpuacct.usage", "3000000000\n")
    put(fake, "memory.max_usage_in_bytes", "7")
    put(fake, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    put(fake, "pids.events", "max 5\n")
    assert first.usage() == Usage(3.0, 7, 2, 5)
    assert first.remove()
    before = len(fake.written)

    second = worker.leaf(2, Limits(processes=3))

    assert fake.written[before:] == [(f"pids/{HOME}/w0.1/pids.max", "3")]
    assert not [name for name in fake.groups() if name.endswith("w0.2")]
    assert second.usage() == Usage(0.0, 0, 0, 0)
    assert second.tick(1) is None
    put(fake, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    put(fake, "cpuacct.usage", "3500000000\n")
    assert Limit.MEMORY == second.tick(1)
    assert second.usage() == Usage(0.5, 0, 1, 0, 1)  # no peak is known that speaks against its own limit
    assert first.usage() == Usage(3.0, 7, 2, 5)
    first.armed()
    first.apply(Limits(processes=9))
    first.kill()
    assert len(fake.written) == before + 1  # the first has no say in it any more


def test_a_place_that_still_holds_memory_is_not_given_to_the_next_job(fake):
    """Page cache that the first job brought in. It is when that has gone."""
    worker = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct")).worker(0, os.geteuid(), Limits())
    first = worker.leaf(1, Limits())
    put(fake, "memory.usage_in_bytes", f"{1 << 20}\n")
    assert first.remove()

    second = worker.leaf(2, Limits())

    assert f"pids/{HOME}/w0.2" in fake.groups()
    put(fake, "memory.usage_in_bytes", "0\n")
    assert worker.leaf(3, Limits()).entry != second.entry
    assert f"pids/{HOME}/w0.3" not in fake.groups()


def test_a_place_where_all_were_killed_is_not_given_to_the_next_job(fake):
    worker = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct")).worker(0, os.geteuid(), Limits())
    first = worker.leaf(1, Limits())
    first.kill()
    assert first.remove()
    assert f"pids/{HOME}/w0.1" not in fake.groups()


def test_a_place_that_a_process_is_in_is_removed_when_it_can_be(fake):
    worker = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct")).worker(0, os.geteuid(), Limits())
    first = worker.leaf(1, Limits())
    put(fake, "pids.current", "1\n")
    assert first.remove()
    assert f"pids/{HOME}/w0.1" not in fake.groups()


def test_few_groups_are_kept_and_none_outlives_the_worker(fake):
    driver = V1Driver(mounted(fake, *HYBRID))
    worker = driver.worker(0, os.geteuid(), Limits())
    for leaf in [worker.leaf(number, Limits()) for number in range(6)]:
        assert leaf.remove()
    assert 3 == sum(name.startswith(f"pids/{HOME}/w0.") for name in fake.groups())
    assert worker.remove()
    driver.close()
    assert sorted(fake.groups()) == sorted(HYBRID)


def test_a_worker_whose_own_group_was_removed_can_have_no_leaf(fake):
    """Another worker is made for it."""
    driver = V1Driver(mounted(fake, *HYBRID))
    worker = driver.worker(0, os.geteuid(), Limits())
    fake.tidy(f"unified/{HOME}/w0")
    close_garbage()
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(KernelRefusal) as refusal:
        worker.leaf(1, Limits())
    assert refusal.value.errno in REMOVED
    assert before == len(os.listdir("/proc/self/fd"))
    assert worker.remove()
    assert driver.worker(0, os.geteuid(), Limits()).leaf(2, Limits()).is_there()


def test_kept_groups_are_closed_first_where_descriptors_are_scarce(fake):
    """A group whose memory isn't freed yet would be kept for later, beside a new one."""
    driver = V1Driver(mounted(fake, *HYBRID))
    driver.limit_leaves(2)
    worker = driver.worker(0, os.geteuid(), Limits())
    for number in range(1, 6):
        leaf = worker.leaf(number, Limits())
        (fake.root / f"memory/{HOME}/w0.{number}/memory.usage_in_bytes").write_text(str(64 * MIB))
        assert leaf.remove()
        assert worker.places <= 2
    assert 2 == sum("/w0." in path and path.startswith("memory") for path in fake.groups())


@pytest.mark.parametrize("hierarchies", [HYBRID, ("memory", "pids", "cpu", "cpuacct")])
def test_a_leaf_at_rest_holds_no_descriptor(fake, hierarchies):
    """And its worker keeps no place for later, until there is a job."""
    worker = V1Driver(mounted(fake, *hierarchies)).worker(0, os.geteuid(), Limits())
    leaf, other = worker.leaf(1, Limits()), worker.leaf(2, Limits())
    close_garbage()
    held = len(os.listdir("/proc/self/fd"))
    assert other.remove()
    worker.rest()
    keeper = int("unified" in hierarchies)  # the keeper is in its group already
    without = held - 11 - keeper
    assert without == len(os.listdir("/proc/self/fd"))
    before = leaf.usage()
    for _ in range(2):
        leaf.rest()
        assert without - 11 == len(os.listdir("/proc/self/fd"))
    put(fake, "pids.events", "max 7\n")
    assert 7 == leaf.usage().forks_refused - before.forks_refused
    assert without == len(os.listdir("/proc/self/fd"))
    leaf.rest()
    entry = leaf.entry
    assert all("tasks" in os.readlink(f"/proc/self/fd/{fd}") for fd in entry.attach)
    assert bool(keeper) is (entry.into >= 0)
    leaf.rest()
    third = worker.leaf(3, Limits())
    assert third.remove()  # kept again
    assert leaf.remove()
    assert worker.remove()


def test_a_leaf_at_rest_without_room_for_its_descriptors_has_its_last_figures(fake, monkeypatch):
    """It is removed all the same."""
    worker = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits())
    leaf = worker.leaf(1, Limits())
    put(fake, "pids.events", "max 7\n")
    last = leaf.usage()
    leaf.rest()

    def refuse(*_, **__):
        raise OSError(24, "no room")

    monkeypatch.setattr("leeward.isolation.cgroup.group.os.open", refuse)
    assert last == leaf.usage()
    assert leaf.remove()
    assert worker.remove()
