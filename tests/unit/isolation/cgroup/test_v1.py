"""
The version 1 driver's files: hybrid hosts, hosts without the unified hierarchy, controllers that share one.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import home
from leeward.isolation.cgroup.entry import Usage
from leeward.isolation.cgroup.group import Group
from leeward.isolation.cgroup.hierarchy import Hierarchy
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.outcome import Limit
from leeward.spec.limits import MIB, Limits

FILES = {
    "memory": {"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9", "memory.max_usage_in_bytes": "0",
               "memory.usage_in_bytes": "0",
               "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"},
    "pids": {"pids.max": "max", "pids.events": "max 0\n", "pids.current": "0\n"},
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
    "cpuacct": {"cpuacct.usage": "0"},
    "unified": {"cpu.stat": "usage_usec 0\n", "cgroup.kill": ""},
}
HOME = home.name()


def kernel(*, without: tuple[str, ...] = ()):
    """
    A kernel with a hierarchy per folder of the root, which is named for its controllers.
    """
    def fill(folder: Path) -> dict[str, str]:
        files = {"cgroup.procs": "", "tasks": ""}
        for name, more in FILES.items():
            if any(name in part.split(",") for part in folder.parts):
                files |= more
        return {name: text for name, text in files.items() if name not in without}
    return fill


def mounted(fake, *names: str) -> tuple[Hierarchy, ...]:
    for name in names:
        fake.populate(fake.root / name)
    return tuple(Hierarchy(2 if "unified" == name else 1,
                           frozenset() if "unified" == name else frozenset(name.split(",")),
                           str(fake.root / name), str(fake.root / name)) for name in names)


HYBRID = ("memory", "pids", "cpu", "cpuacct", "unified")


@pytest.fixture
def fake(fake_cgroups):
    return fake_cgroups(kernel())


def written(fake, since: int = 0) -> dict[str, str]:
    return dict(fake.written[since:])


def test_a_hybrid_host(fake):
    """
    Limits on version 1, the way in by both.
    """
    driver = V1Driver(mounted(fake, *HYBRID))
    worker = driver.worker(2, 2_000_000_002, Limits())
    leaf = worker.leaf(5, Limits(memory=64 * MIB, processes=12, cpu=50))

    assert written(fake) == {
        f"memory/{HOME}/w2.5/memory.limit_in_bytes": str(64 * MIB),
        f"memory/{HOME}/w2.5/memory.memsw.limit_in_bytes": str(64 * MIB),
        f"pids/{HOME}/w2.5/pids.max": "12",
        f"cpu/{HOME}/w2.5/cpu.cfs_quota_us": "50000",
    }
    assert fake.owners == [(f"unified/{HOME}/w2/cgroup.procs", 2_000_000_002),
                           (f"unified/{HOME}/w2/w2.5/cgroup.procs", 2_000_000_002)]
    assert [os.readlink(f"/proc/self/fd/{fd}").split("/cgroup/")[1] for fd in leaf.entry.attach] == [
        f"{name}/{HOME}/w2.5/tasks" for name in ("memory", "pids", "cpu")]
    assert not any(map(os.get_inheritable, (leaf.entry.into, worker.keeper.into, *leaf.entry.attach)))
    assert leaf.remove()
    assert worker.remove()
    driver.close()
    assert sorted(fake.groups()) == sorted(HYBRID)


@pytest.mark.parametrize(("idle", "file", "then", "later"), [
    (True, "cpu.idle", "1", "0"), (False, "cpu.shares", "128", "1024")])
def test_a_runner_that_nobody_waits_for_takes_what_is_left(fake_cgroups, monkeypatch, idle, file, then, later):
    """
    Until it is armed and once its job was answered, by the best means that the kernel has.
    """
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
    leaf.leaves()
    assert text().startswith(then)
    assert leaf.remove()
    worker.leaf(3, Limits())  # the same place, for one that somebody waits for
    assert text().startswith(later)


def test_the_unified_hierarchy_is_left_alone_by_who_may_not_give_its_groups_away(fake, monkeypatch):
    """
    Root of a container that was left but a few capabilities.
    """
    monkeypatch.setattr("leeward.isolation.cgroup.v1.may_give", lambda: False)

    driver = V1Driver(mounted(fake, *HYBRID, "cpuacct"))
    driver.worker(0, 2_000_000_000, Limits()).leaf(1, Limits())

    assert ("no", []) == (driver.detail["unified"], fake.owners)


def test_without_the_unified_hierarchy(fake):
    """
    cpuacct tells the time, and is joined as well; there is nothing to clone into.
    """
    driver = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct"))
    worker = driver.worker(0, 2_000_000_000, Limits())
    leaf = worker.leaf(1, Limits())
    (fake.root / f"cpuacct/{HOME}/w0.1/cpuacct.usage").write_text("2500000000\n")

    assert (leaf.entry.into, worker.keeper.into, len(leaf.entry.attach)) == (-1, -1, 4)
    assert leaf.usage() == Usage(2.5, 0, 0, 0)
    leaf.kill()
    assert fake.written[-1] == (f"pids/{HOME}/w0.1/pids.max", "0")
    assert leaf.remove()
    assert worker.remove()
    driver.close()


def test_controllers_that_share_a_hierarchy_share_a_group(fake):
    """
    As cpu and cpuacct do on most hosts: it is made, joined and removed once.
    """
    driver = V1Driver(mounted(fake, "memory", "pids", "cpu,cpuacct"))
    worker = driver.worker(0, os.geteuid(), Limits())
    leaf = worker.leaf(1, Limits())

    assert len(leaf.entry.attach) == 3
    assert fake.groups().count(f"cpu,cpuacct/{HOME}/w0.1") == 1
    assert leaf.remove()
    assert worker.remove()
    driver.close()
    assert HOME not in " ".join(fake.groups())


@pytest.mark.parametrize("names", [("memory", "pids"), ("memory", "pids", "cpu"), ("unified",), ()])
def test_a_host_that_lacks_a_controller(fake, names):
    """
    cpuacct or the unified hierarchy is one, too: somebody has to tell the time.
    """
    with pytest.raises(Unsupported, match="no writable hierarchy"):
        V1Driver(mounted(fake, *names))


def test_memory_with_swap_is_never_the_lower(fake):
    """
    The kernel refuses a limit above the one with swap, and the other way round.
    """
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits(memory=64 * MIB))
    before = len(fake.written)

    leaf.apply(dataclasses.replace(Limits(), memory=128 * MIB))
    leaf.apply(dataclasses.replace(Limits(), memory=32 * MIB))

    assert [path.rpartition("/")[2] for path, _ in fake.written[before:]] == [
        "memory.memsw.limit_in_bytes", "memory.limit_in_bytes",
        "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]


def test_without_swap_accounting(fake_cgroups):
    """
    The status says that swap isn't limited.
    """
    fake = fake_cgroups(kernel(without=("memory.memsw.limit_in_bytes",)))
    driver = V1Driver(mounted(fake, *HYBRID))
    driver.worker(0, os.geteuid(), Limits()).leaf(1, Limits())

    assert "not limited" in driver.detail["swap"]
    assert not [path for path, _ in fake.written if "memsw" in path]


def test_applying_writes_only_what_differs(fake):
    """
    It happens while a request waits.
    """
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    before = len(fake.written)

    leaf.apply(Limits())
    leaf.apply(dataclasses.replace(Limits(), processes=5))

    assert fake.written[before:] == [(f"pids/{HOME}/w0.1/pids.max", "5")]


def test_usage_and_verdict(fake):
    """
    A process that was ended for want of memory ends the job: version 1 has no oom.group.
    """
    leaf = V1Driver(mounted(fake, *HYBRID)).worker(0, os.geteuid(), Limits()).leaf(1, Limits())
    memory = fake.root / f"memory/{HOME}/w0.1"

    assert leaf.tick(1) is None

    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (memory / "memory.max_usage_in_bytes").write_text(f"{7 * MIB}\n")
    (fake.root / f"pids/{HOME}/w0.1/pids.events").write_text("max 3\n")
    (fake.root / f"unified/{HOME}/w0/w0.1/cpu.stat").write_text("usage_usec 250000\n")

    assert leaf.tick(1) is Limit.MEMORY
    assert leaf.remove()
    assert leaf.usage() == Usage(0.25, 7 * MIB, 1, 3)
    assert leaf.tick(1) is None  # nothing to look at any more


def test_a_home_that_cannot_be_made_leaves_nothing(fake, monkeypatch):
    """
    An ordinary user may not: no group, no descriptor is left of the try.
    """
    hierarchies = mounted(fake, *HYBRID)
    before = len(os.listdir("/proc/self/fd")), fake.groups()
    make = Group.make

    def refused(self: Group, name: str) -> Group:
        if "pids" in self.path:
            raise KernelRefusal("mkdir", self.path, errno.EACCES)
        return make(self, name)

    monkeypatch.setattr(Group, "make", refused)
    with pytest.raises(Unsupported, match=r"EACCES.*run leeward as root"):
        V1Driver(hierarchies)

    assert (len(os.listdir("/proc/self/fd")), fake.groups()) == before


def put(fake, name: str, text: str) -> None:
    """
    Write *text* to the file *name* of runner 1's groups.
    """
    (fake.root / f"{name.split('.')[0]}/{HOME}/w0.1/{name}").write_text(text)


def test_an_empty_place_is_given_to_the_next_job(fake):
    """
    Nothing is made, and only what differs is written; what the first one used isn't the second one's.
    """
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
    assert second.usage() == Usage(0.5, 0, 1, 0)
    assert first.usage() == Usage(3.0, 7, 2, 5)
    first.armed()
    first.apply(Limits(processes=9))
    first.kill()
    assert len(fake.written) == before + 1  # the first has no say in it any more


def test_a_place_that_still_holds_memory_is_not(fake):
    """
    Page cache that the first job brought in. It is when that has gone.
    """
    worker = V1Driver(mounted(fake, "memory", "pids", "cpu", "cpuacct")).worker(0, os.geteuid(), Limits())
    first = worker.leaf(1, Limits())
    put(fake, "memory.usage_in_bytes", f"{1 << 20}\n")
    assert first.remove()

    second = worker.leaf(2, Limits())

    assert f"pids/{HOME}/w0.2" in fake.groups()
    put(fake, "memory.usage_in_bytes", "0\n")
    assert worker.leaf(3, Limits()).entry != second.entry
    assert f"pids/{HOME}/w0.3" not in fake.groups()


def test_a_place_where_all_were_killed_is_not(fake):
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


def test_few_are_kept_and_none_outlives_the_worker(fake):
    driver = V1Driver(mounted(fake, *HYBRID))
    worker = driver.worker(0, os.geteuid(), Limits())
    for leaf in [worker.leaf(number, Limits()) for number in range(6)]:
        assert leaf.remove()
    assert 3 == sum(name.startswith(f"pids/{HOME}/w0.") for name in fake.groups())
    assert worker.remove()
    driver.close()
    assert sorted(fake.groups()) == sorted(HYBRID)
