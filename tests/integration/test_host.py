"""
What `leeward doctor` finds on this machine, and in a namespace that lacks something.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import features
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Table, returns
from leeward.isolation import host
from leeward.isolation.cgroup import hierarchy
from leeward.isolation.host import State

pytestmark = pytest.mark.needs("user-namespaces")


def in_child(job: Callable[[], object]) -> object:
    """
    What *job* returns in a forked child.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            os.write(writing, pickle.dumps(job()))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        value = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return value


def test_it_finds_what_the_tests_themselves_find():
    """
    Asked by other code: tests/features.py.
    """
    got = {feature.name: feature for feature in host.features()}

    assert all(got[name].state is State.OK for name in ("namespace.user", "namespace.uts", "memfd.seals"))
    assert (State.OK is got["mount.proc"].state) is features.is_met("kernel>=5.12")
    assert (State.OK is got["kernel"].state) is features.is_met("kernel>=5.13")
    assert (State.OK is got["io_uring"].state) is bool(features.have("io-uring"))
    assert (State.MISSING is got["landlock"].state) is not bool(features.have("landlock"))
    assert (State.MISSING is got["seccomp.notification"].state) is not bool(features.have("seccomp-notify"))
    held = features.have("cgroup-v2-controllers") or (features.have("cgroup-v1-controllers") and features.have("root"))
    assert (State.OK is got["cgroup"].state) is bool(held)


def test_looking_leaves_no_trace():
    """
    No group, no process, no descriptor; and it can be done twice.
    """
    def held() -> tuple[list[str], str, str]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()  # other tests may have left some
        return os.listdir("/proc/self/fd"), Path("/proc/self/cgroup").read_text(), children

    before = held()

    first, second = host.observe(), host.observe()

    assert held() == before
    assert [path for each in hierarchy.here() for path in Path(each.own).glob(f"leeward-{os.getpid()}-*")] == []
    assert first == second


@pytest.mark.parametrize(("switch", "name"), [
    ("max_user_namespaces", "namespace.user"),
    ("max_net_namespaces", "namespace.network"),
    ("max_pid_namespaces", "namespace.pid"),
])
def test_a_host_that_allows_no_more_namespaces(switch, name):
    """
    The switches are those of a user namespace: turned off in one of our own, for real.
    """
    uid, gid = os.geteuid(), os.getegid()

    def job() -> tuple[State, str, str]:
        Table([returns(Call.UNSHARE, Clone.NEWUSER)]).run()
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        Path("/proc/sys/user", switch).write_text("0")
        (feature,) = [feature for feature in host.features() if feature.name == name]
        return feature.state, feature.have, feature.cure

    state, have, cure = in_child(job)

    assert state is State.MISSING
    assert "ENOSPC" in have
    assert cure == f"sysctl -w user.{switch}=15000"
