"""Namespaces and ids of zygote, keeper, init and job, read from the host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import features
from kit.attack import within
from kit.box import Box
from kit.running import running, spaces, status
from leeward.daemon.worker.idmaps import WORKER_UID_BASE, write_id_maps
from leeward.errors import KernelRefusal

#: Of a job's; the cgroup namespace is the job's alone, since its root is the group that one is in.
ALL = {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}

#: What the keeper keeps for all jobs of its worker.
KEPT = {"user", "net"}


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


def test_a_job_shares_no_namespace_with_the_daemon() -> None:
    """Every link differs, and two workers differ in every one of them too."""
    with Box(pool_size=2) as box:
        with running(box) as first, running(box) as second:
            assert first.keeper != second.keeper
            links = {}
            for each in (first, second):
                for pid in (each.job, each.init):
                    try:
                        links[pid] = spaces(pid)
                    except PermissionError:  # an undumpable process, and we aren't root: it tells us itself
                        links[pid] = {}
                    if not all(links[pid].values()):  # the same, on Linux 5.10
                        links[pid] = {}
        daemon = spaces("self")
        assert ALL == set(daemon)
        if not links[first.job]:
            assert os.geteuid() or not features.have("unreduced")
            ask = 'tell({name: os.readlink(f"/proc/self/ns/{name}") for name in names})'
            links = {number: within(box, ask, names=sorted(ALL)) for number in (first.job, second.job)}
            assert not set(daemon.values()) & set(links[first.job].values())
            return
    for pid, own in links.items():
        shared = {name for name in ALL if own[name] == daemon[name]}
        assert (set() if pid in (first.job, second.job) else {"cgroup"}) >= shared
    assert not set(links[first.job].values()) & set(links[second.job].values())
    assert {name for name in ALL if links[first.job][name] != links[first.init][name]} <= {"cgroup"}


@pytest.mark.needs("root", "unreduced")
def test_successive_jobs_of_a_worker_share_the_keepers_namespaces(box: Box) -> None:
    """User and network namespace are the worker's; every other namespace is made for each job."""
    seen = []
    with ExitStack() as held:
        for _ in range(2):
            with running(box) as family:
                for name in ALL:  # the number of one that has ended may be the next one's
                    held.callback(os.close, os.open(f"/proc/{family.job}/ns/{name}", os.O_RDONLY))
                seen.append(spaces(family.job))
                keeper, zygote = spaces(family.keeper), spaces(family.zygote)

    assert {name for name in ALL if seen[0][name] == seen[1][name]} == KEPT
    assert {name for name in ALL if seen[0][name] == keeper[name]} == KEPT
    assert {name for name in ALL if zygote[name] == keeper[name]} == ALL - KEPT - {"mnt"}
    mine = spaces("self")
    assert {name for name in ALL if mine[name] == zygote[name]} == ALL - {"mnt", "net"}  # backstage


def test_pids_inside_are_init_and_job(box: Box) -> None:
    """pid 1 is the init, pid 2 the job; the keeper is in the host's pid namespace."""
    with running(box) as family:
        # The last column is the innermost namespace's.
        assert [str(family.init), "1"] == status(family.init)["NSpid"].split()[-2:]
        assert [str(family.job), "2"] == status(family.job)["NSpid"].split()[-2:]
        assert str(family.keeper) == status(family.keeper)["NSpid"].split()[-1]
        assert str(family.init) == status(family.job)["PPid"]
        assert str(family.keeper) == status(family.init)["PPid"]
        assert str(family.zygote) == status(family.keeper)["PPid"]


def test_no_thread_remembers_a_number_of_the_host(box: Box) -> None:
    """The main thread's id is noted when it starts, in the zygote."""
    got = within(box, "import threading\ntell([threading.main_thread().native_id, threading.get_native_id()])")

    assert [2, 2] == got


def test_host_ids_of_a_worker() -> None:
    """Run by root: ids of the worker's own, never 0. Run by a user: the user's."""
    with Box(pool_size=2) as box, running(box) as first, running(box) as second:
        seen = []
        for family in (first, second):
            ids = set()
            for pid in (family.keeper, family.init, family.job):
                shown = status(pid)
                ids |= {*shown["Uid"].split(), *shown["Gid"].split()}
                if 0 == os.geteuid():
                    assert "" == shown["Groups"]
                else:
                    # Without privilege nobody can give groups up: setgroups is denied, and they stay.
                    assert set(shown["Groups"].split()) == {str(group) for group in os.getgroups()}
            seen.append(ids)
    if 0 == os.geteuid():
        assert all(1 == len(ids) for ids in seen)
        assert seen[0] != seen[1]
        assert all(int(number) >= WORKER_UID_BASE == 2_000_000_000 for ids in seen for number in ids)
    else:
        assert [{str(os.geteuid()), str(os.getegid())}] * 2 == seen


def test_id_maps_are_one_user_and_one_group(box: Box) -> None:
    """As the host reads them: 1000 inside, one id long, setgroups denied."""
    with running(box) as family:
        for pid in (family.keeper, family.init, family.job):
            shown = status(pid)
            for name, column in (("uid_map", "Uid"), ("gid_map", "Gid")):
                assert ["1000", shown[column].split()[0], "1"] == Path(f"/proc/{pid}/{name}").read_text().split()
            assert "deny\n" == Path(f"/proc/{pid}/setgroups").read_text()


def test_maps_below_another_namespace_are_written_once_and_leave_no_descriptor_open() -> None:
    """As below an ordinary user's zygote, by a child in the namespace between; the kernel refuses the second time."""
    nested = "unshare --user --map-root-user unshare --user sh -c 'echo $$; exec cat'"
    with subprocess.Popen(["sh", "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as below:
        assert below.stdout is not None
        pid = int(below.stdout.readline())
        before = os.listdir("/proc/self/fd")
        write_id_maps(pid, (1000, 1001), 0, 0)
        with pytest.raises(KernelRefusal, match="setgroups"):
            write_id_maps(pid, (1000, 1001), 0, 0)
        assert before == os.listdir("/proc/self/fd")
        assert ["1000", str(os.geteuid()), "1"] == Path(f"/proc/{pid}/uid_map").read_text().split()
        assert ["1001", str(os.getegid()), "1"] == Path(f"/proc/{pid}/gid_map").read_text().split()
        below.communicate()


def test_inside_it_is_user_1000_in_no_other_group(box: Box) -> None:
    """Real, effective, saved and filesystem ids alike; groups that stayed with it have no name there."""
    got = within(box, 'tell([status("Uid"), status("Gid"), os.getgroups(), os.uname().nodename])')

    uid, gid, groups, name = got
    assert ["1000"] * 4 == uid.split() == gid.split()
    assert set(groups) <= {1000, 65534}
    assert "leeward" == name
