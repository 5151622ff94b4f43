"""
What `leeward doctor` makes of a host's facts: no kernel feature is needed to know what they mean.
"""

from __future__ import annotations

import dataclasses
import errno

import pytest

from leeward.isolation.host import NAMESPACES, Facts, State, judge

#: A machine that lacks nothing.
FINE = Facts(
    machine="x86_64", release="6.12.0-amd64", root=False, container="", filtered=False,
    switches={"user/max_user_namespaces": "15000", "kernel/io_uring_disabled": "0", "vm/memfd_noexec": "0"},
    lsm=("lockdown", "capability", "landlock"), user_namespace=0, rights=0,
    namespaces=dict.fromkeys(NAMESPACES, 0), proc=0, landlock=6, wait_killable=True,
    driver="v2", driver_detail={"home": "/sys/fs/cgroup/x", "cpu": "cpu.max"}, passed_over=(), io_uring=0, memfd=0,
)

NO_V2 = ("v2", "mkdir(/sys/fs/cgroup/user.slice/leeward-1-1): EACCES: permission denied; needs a group")
NO_V1 = ("v1", "no writable hierarchy of memory, pids, cpu; needs memory, pids and cpu on version 1")


def but(**changes: object) -> Facts:
    """
    A machine that lacks something.
    """
    return dataclasses.replace(FINE, **changes)  # type: ignore[arg-type]  # the names are checked by replace


def test_a_machine_that_lacks_nothing_needs_no_cure():
    """
    Every feature is ok, once, with something to show.
    """
    got = judge(FINE)

    assert all(feature.state is State.OK and feature.have and not feature.cure + feature.without for feature in got)
    assert len({feature.name for feature in got}) == len(got)


@pytest.mark.parametrize(("facts", "name", "state", "cure"), [
    (but(release="5.10.0-30-cloud"), "kernel", State.LIMITED, "install Linux 5.13"),
    (but(user_namespace=errno.EPERM, switches={"kernel/unprivileged_userns_clone": "0"}),
     "namespace.user", State.MISSING, "sysctl -w kernel.unprivileged_userns_clone=1"),
    (but(user_namespace=errno.ENOSPC, switches={"user/max_user_namespaces": "0"}),
     "namespace.user", State.MISSING, "sysctl -w user.max_user_namespaces=15000"),
    (but(user_namespace=errno.ENOSPC), "namespace.user", State.MISSING, "sysctl -w user.max_user_namespaces=15000"),
    (but(user_namespace=errno.ENOSYS, filtered=True, container="docker"),
     "namespace.user", State.MISSING, "docker run --security-opt seccomp=unconfined"),
    (but(user_namespace=errno.EPERM, filtered=True), "namespace.user", State.MISSING, "outside the seccomp filter"),
    (but(user_namespace=errno.EINVAL), "namespace.user", State.MISSING, "CONFIG_USER_NS"),
    (but(rights=errno.EACCES, switches={"kernel/apparmor_restrict_unprivileged_userns": "1"}),
     "namespace.user", State.MISSING, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
    (but(namespaces={**FINE.namespaces, "network": errno.ENOSPC}),
     "namespace.network", State.MISSING, "sysctl -w user.max_net_namespaces=15000"),
    (but(namespaces={**FINE.namespaces, "uts": errno.EINVAL}), "namespace.uts", State.MISSING, "built with uts"),
    (but(proc=errno.EPERM, container="docker"), "mount.proc", State.MISSING,
     "docker run --security-opt systempaths=unconfined"),
    (but(proc=errno.EPERM, container="podman"), "mount.proc", State.MISSING, "podman run --security-opt unmask=ALL"),
    (but(proc=errno.EPERM), "mount.proc", State.MISSING, "findmnt -R /proc"),
    (but(proc=errno.ENOSYS, release="5.1.0"), "mount.proc", State.MISSING, "install Linux 5.13"),
    (but(landlock=0, lsm=("capability", "apparmor")), "landlock", State.MISSING, "lsm=landlock,capability,apparmor"),
    (but(landlock=0, lsm=None), "landlock", State.MISSING, "install Linux 5.13"),
    (but(landlock=2), "landlock", State.LIMITED, "install Linux 6.12"),
    (but(wait_killable=None), "seccomp.notification", State.MISSING, "install Linux"),
    (but(wait_killable=False), "seccomp.notification", State.LIMITED, "install Linux 5.19"),
    (but(driver="none", passed_over=(NO_V2, NO_V1)), "cgroup", State.LIMITED,
     "systemd-run --user --scope -p Delegate=yes leeward daemon run"),
    (but(driver="none", passed_over=(NO_V2, NO_V1), root=True), "cgroup", State.LIMITED,
     "systemd-run --scope -p Delegate=yes leeward daemon run"),
    (but(driver="none", passed_over=(("v2", "controllers hugetlb"), ("v1", "mkdir(x): EACCES; needs root"))),
     "cgroup", State.LIMITED, "run leeward as root"),
    (but(driver="none", passed_over=(NO_V2, NO_V1), container="docker"), "cgroup", State.LIMITED, "docker run"),
    (but(driver="", passed_over=(("any", "no /proc/PID/task/TID/children"),), root=True), "cgroup", State.MISSING,
     "systemd-run"),
    (but(driver_detail={"cpu": "one processor per worker: controller not delegated"}),
     "cgroup", State.LIMITED, "Delegate=cpu memory pids"),
    (but(memfd=errno.EACCES, switches={"vm/memfd_noexec": "2"}), "memfd.seals", State.MISSING,
     "sysctl -w vm.memfd_noexec=1"),
    (but(memfd=errno.ENOSYS), "memfd.seals", State.MISSING, "install Linux"),
    (but(io_uring=errno.EPERM, switches={"kernel/io_uring_disabled": "2"}), "io_uring", State.MISSING,
     "sysctl -w kernel.io_uring_disabled=0"),
    (but(io_uring=errno.ENOSYS, filtered=True, container="docker"), "io_uring", State.MISSING, "seccomp=unconfined"),
])
def test_what_is_wanting_is_named_with_its_cure(facts, name, state, cure):
    """
    And it says what leeward does without it.
    """
    (feature,) = [feature for feature in judge(facts) if feature.name == name]

    assert feature.state is state
    assert cure in feature.cure
    assert feature.without
    assert "\n" not in feature.cure  # a line to type


def test_what_hangs_on_user_namespaces_points_there():
    """
    One cause, one cure.
    """
    got = {feature.name: feature for feature in judge(but(
        user_namespace=errno.EPERM, rights=errno.EPERM, proc=errno.EPERM,
        namespaces=dict.fromkeys(NAMESPACES, errno.EPERM), switches={"kernel/unprivileged_userns_clone": "0"}))}

    assert "sysctl" in got["namespace.user"].cure
    assert {got[name].cure for name in (*(f"namespace.{kind}" for kind in NAMESPACES), "mount.proc")} == {
        "see namespace.user"}


def test_root_is_not_told_to_open_what_is_open_to_root():
    """
    kernel.unprivileged_userns_clone binds ordinary users.
    """
    facts = but(root=True, user_namespace=errno.EINVAL, switches={"kernel/unprivileged_userns_clone": "0"})

    assert "unprivileged" not in judge(facts)[1].cure


def test_an_older_landlock_says_what_it_lacks():
    """
    Not more.
    """
    (at_4,) = [feature for feature in judge(but(landlock=4)) if feature.name == "landlock"]

    assert "device ioctls, signals" in at_4.without
    assert "TCP" not in at_4.without
