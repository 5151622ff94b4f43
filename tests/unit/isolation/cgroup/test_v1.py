"""The version 1 driver: hybrid hosts, hosts without the unified hierarchy, controllers that share one."""

from __future__ import annotations

import errno
import os

import pytest

from kit.cgroup_v1 import HOME, HYBRID, kernel, mounted
from kit.unclosed import close_garbage
from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup.entry import Usage
from leeward.isolation.cgroup.group import Group
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.spec.limits import MIB, Limits


@pytest.fixture
def fake(fake_cgroups):
    return fake_cgroups(kernel())


def written(fake, since: int = 0) -> dict[str, str]:
    return dict(fake.written[since:])


def test_a_hybrid_host(fake):
    """Limits on version 1, the way in by both."""
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


@pytest.mark.parametrize("pinned", [True, False])
def test_a_pinned_worker_keeps_its_controller(fake, pinned: bool):
    """The limit may be less than a processor."""
    driver = V1Driver(mounted(fake, *HYBRID), pinned=pinned)
    leaf = driver.worker(0, os.geteuid(), Limits()).leaf(1, Limits(cpu=50))

    assert pinned is driver.affinity_fixed
    assert leaf.cpu() in os.sched_getaffinity(0) if pinned else leaf.cpu() is None
    assert "50000" == written(fake)[f"cpu/{HOME}/w0.1/cpu.cfs_quota_us"]


def test_without_cap_chown_the_unified_hierarchy_is_left_alone(fake, monkeypatch):
    """Root of a container that was left but a few capabilities."""
    monkeypatch.setattr("leeward.isolation.cgroup.v1.may_give", lambda: False)

    driver = V1Driver(mounted(fake, *HYBRID, "cpuacct"))
    driver.worker(0, 2_000_000_000, Limits()).leaf(1, Limits())

    assert ("no", []) == (driver.detail["unified"], fake.owners)


def test_without_the_unified_hierarchy(fake):
    """cpuacct tells the time, and is joined as well; there is nothing to clone into."""
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
    """As cpu and cpuacct do on most hosts: it is made, joined and removed once."""
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
    """cpuacct or the unified hierarchy is one, too: somebody has to tell the time."""
    with pytest.raises(Unsupported, match="no writable hierarchy"):
        V1Driver(mounted(fake, *names))


def test_without_swap_accounting(fake_cgroups):
    """The status says that swap isn't limited."""
    fake = fake_cgroups(kernel(without=("memory.memsw.limit_in_bytes",)))
    driver = V1Driver(mounted(fake, *HYBRID))
    driver.worker(0, os.geteuid(), Limits()).leaf(1, Limits())

    assert "not limited" in driver.detail["swap"]
    assert not [path for path, _ in fake.written if "memsw" in path]


def test_a_home_that_cannot_be_made_leaves_no_group_or_descriptor(fake, monkeypatch):
    """An ordinary user isn't allowed to make one."""
    hierarchies = mounted(fake, *HYBRID)
    close_garbage()
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


def test_a_removed_home_is_made_again(fake):
    """For a moment no job had a group in it."""
    driver = V1Driver(mounted(fake, *HYBRID))
    worker = driver.worker(0, os.geteuid(), Limits())
    for name in ("memory", "pids", "cpu"):
        fake.tidy(f"{name}/{HOME}")

    leaf = worker.leaf(1, Limits())
    assert {f"{name}/{HOME}/w0.1" for name in ("memory", "pids", "cpu")} <= set(fake.groups())
    assert leaf.remove()
    assert worker.remove()
    fake.tidy(f"unified/{HOME}")
    again = driver.worker(1, os.geteuid(), Limits())
    assert again.leaf(2, Limits()).remove()
    assert again.remove()
    driver.close()
    assert sorted(fake.groups()) == sorted(HYBRID)
