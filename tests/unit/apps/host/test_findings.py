"""What `leeward doctor` makes of a host's facts: no kernel feature is needed to know what they mean."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from leeward.apps.host.facts import NAMESPACES, Facts, HostKernel, Runtime
from leeward.apps.host.findings import Feature, Support, judge
from leeward.spec.limits import LEAST_DESCRIPTORS

#: A machine that lacks nothing.
FINE = Facts(
    machine="x86_64", release="6.12.0-amd64", root=False, filtered=False,
    switches={"user/max_user_namespaces": "15000", "kernel/io_uring_disabled": "0", "vm/memfd_noexec": "2"},
    lsm=("lockdown", "capability", "landlock"), landlock=6, wait_killable=True,
    driver="v2", driver_detail={"home": "/sys/fs/cgroup/x", "cpu": "cpu.max"}, passed_over=(),
)

NO_V2 = ("v2", "mkdir(/sys/fs/cgroup/user.slice/leeward-1-1): EACCES: permission denied; needs a group")
NO_V1 = ("v1", "no writable hierarchy of memory, pids, cpu; needs memory, pids and cpu on version 1")


def but(**changes: object) -> Facts:
    """A machine that lacks something."""
    return dataclasses.replace(FINE, **changes)  # type: ignore[arg-type]  # the names are checked by replace


@pytest.mark.parametrize("limit", [None, LEAST_DESCRIPTORS])
def test_a_limit_on_descriptors_that_suffices(limit: int | None) -> None:
    assert Support.OK is found(but(descriptors=limit), "descriptors").state


def test_a_machine_that_lacks_nothing_needs_no_cure():
    """Every feature is ok, once, with something to show."""
    got = judge(FINE)

    assert all(feature.state is Support.OK and feature.have and not feature.cure + feature.without for feature in got)
    assert len({feature.name for feature in got}) == len(got)


def found(facts: Facts, name: str) -> Feature:
    (feature,) = [feature for feature in judge(facts) if feature.name == name]
    return feature


def test_what_root_lacks_on_the_oldest_kernels() -> None:
    said = [found(but(release=release), "kernel").without for release in ("5.10.0", "5.12.0")]

    assert [True, False] == ["shows sandboxes no folder" in each for each in said]


DOCKER_SECCOMP = "docker run --rm IMAGE leeward doctor --profile seccomp >leeward-seccomp.json; docker run --security"
RESTRICTED = {"kernel/apparmor_restrict_unprivileged_userns": "1"}


@pytest.mark.parametrize(("facts", "name", "state", "cure"), [
    (but(release="5.10.0-30-cloud"), "kernel", Support.LIMITED, "install Linux 5.13"),
    (but(descriptors=79), "descriptors", Support.MISSING, "raise it (ulimit -Hn, LimitNOFILE= of a service)"),
    (but(kernel=HostKernel.WSL1, wait_killable=None), "kernel", Support.MISSING, "wsl.exe --set-version"),
    (but(kernel=HostKernel.GVISOR, proc=errno.ENOSYS), "kernel", Support.MISSING, "docker run --runtime=runc"),
    (but(kernel=HostKernel.GVISOR), "kernel", Support.LIMITED, "docker run --runtime=runc"),
    (but(root=True, lacks=("CAP_SETUID",), rights=errno.EPERM, engine=Runtime.DOCKER), "root", Support.MISSING,
     "docker run --user 1000:1000"),
    (but(root=True, few_ids=True, rights=errno.EPERM), "root", Support.MISSING, "start leeward as another user"),
    (but(root=True, few_ids=True, rights=errno.EPERM), "namespace.user", Support.MISSING, "see root"),
    (but(user_namespace=errno.EPERM, switches={"kernel/unprivileged_userns_clone": "0"}),
     "namespace.user", Support.MISSING, "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    (but(user_namespace=errno.ENOSPC, switches={"user/max_user_namespaces": "0"}),
     "namespace.user", Support.MISSING, "sudo sysctl -w user.max_user_namespaces=15000"),
    (but(user_namespace=errno.ENOSPC), "namespace.user", Support.MISSING, "sysctl -w user.max_user_namespaces=15000"),
    (but(user_namespace=errno.ENOSPC, engine=Runtime.DOCKER, root=True), "namespace.user", Support.MISSING,
     "sysctl -w user.max_user_namespaces=15000  # on the container's host"),
    (but(user_namespace=errno.EAGAIN), "namespace.user", Support.MISSING, "raise it (ulimit -u"),
    (but(user_namespace=errno.ENOSYS, filtered=True, engine=Runtime.DOCKER),
     "namespace.user", Support.MISSING, DOCKER_SECCOMP),
    (but(user_namespace=errno.EPERM, filtered=True, engine=Runtime.PODMAN),
     "namespace.user", Support.MISSING, "podman run --security-opt seccomp=leeward-seccomp.json"),
    (but(user_namespace=errno.EPERM, filtered=True, engine=Runtime.KUBERNETES),
     "namespace.user", Support.MISSING, "a seccompProfile of type Localhost"),
    (but(user_namespace=errno.EPERM, filtered=True), "namespace.user", Support.MISSING, "outside the seccomp filter"),
    (but(user_namespace=errno.EINVAL), "namespace.user", Support.MISSING, "CONFIG_USER_NS"),
    (but(rights=errno.EACCES, switches=RESTRICTED), "namespace.user", Support.MISSING,
     "leeward doctor --profile apparmor | sudo tee /etc/apparmor.d/leeward"),
    (but(rights=errno.EPERM, switches=RESTRICTED, root=True, engine=Runtime.DOCKER), "namespace.user", Support.MISSING,
     "docker run --security-opt apparmor=leeward"),
    (but(user_namespace=errno.EACCES, label="user_u:user_r:user_t:s0", selinux=True),
     "namespace.user", Support.MISSING, "sudo ausearch -m avc -ts recent --raw | audit2allow -M leeward && sudo sem"),
    (but(user_namespace=errno.EACCES, label="snap.python.python (enforce)"),
     "namespace.user", Support.MISSING, "outside the AppArmor profile snap.python.python"),
    (but(namespaces={**FINE.namespaces, "network": errno.ENOSPC}),
     "namespace.network", Support.MISSING, "sysctl -w user.max_net_namespaces=15000"),
    (but(namespaces={**FINE.namespaces, "uts": errno.EINVAL}), "namespace.uts", Support.MISSING, "built with uts"),
    (but(proc=errno.EPERM, engine=Runtime.DOCKER, covers=("/proc/kcore",)), "mount.proc", Support.MISSING,
     "docker run --user 1000:1000 --security-opt systempaths=unconfined"),
    (but(proc=errno.EPERM, engine=Runtime.PODMAN, covers=("/proc/kcore",)), "mount.proc", Support.MISSING,
     "podman run --user 1000:1000 --security-opt unmask=ALL"),
    (but(proc=errno.EPERM, engine=Runtime.OCI, covers=("/proc/kcore",)), "mount.proc", Support.MISSING,
     "| .linux.maskedPaths=[] | .linux.readonlyPaths=[]'"),
    (but(proc=errno.EPERM, covers=("/proc/acpi", "/proc/keys")), "mount.proc", Support.MISSING,
     "sudo umount /proc/keys /proc/acpi"),
    (but(proc=errno.EPERM), "mount.proc", Support.MISSING, "mount -t proc proc /proc"),
    (but(proc=errno.EACCES, engine=Runtime.DOCKER, covers=("/proc/kcore",), label="docker-default (enforce)"),
     "mount.proc", Support.MISSING, "docker run --security-opt apparmor=unconfined"),
    (but(proc=errno.EACCES, engine=Runtime.PODMAN, label="system_u:system_r:container_t:s0", selinux=True),
     "mount.proc", Support.MISSING, "podman run --security-opt label=disable"),
    (but(proc=errno.ENOSYS, release="5.1.0"), "mount.proc", Support.MISSING, "install Linux 5.13"),
    (but(landlock=0, lsm=("capability", "apparmor")), "landlock", Support.MISSING,
     "boot with lsm=landlock,apparmor on the kernel's command line"),
    (but(landlock=0, lsm=("capability", "apparmor"), os=("ubuntu", "debian")), "landlock", Support.MISSING,
     "lsm=landlock,apparmor\"' | sudo tee /etc/default/grub.d/leeward.cfg && sudo update-grub"),
    (but(landlock=0, lsm=("capability", "selinux"), os=("fedora",)), "landlock", Support.MISSING,
     "sudo grubby --update-kernel=ALL --args=lsm=landlock,selinux"),
    (but(landlock=0, lsm=None, landlock_refusal=errno.EOPNOTSUPP, engine=Runtime.DOCKER), "landlock", Support.MISSING,
     "boot the container's host with lsm=landlock,..."),
    (but(landlock=0, lsm=None, landlock_refusal=errno.ENOSYS), "landlock", Support.MISSING, "install Linux 5.13"),
    (but(landlock=2), "landlock", Support.LIMITED, "install Linux 6.12"),
    (but(wait_killable=None), "seccomp.notification", Support.MISSING, "install Linux"),
    (but(wait_killable=False), "seccomp.notification", Support.LIMITED, "install Linux 5.19"),
    (but(driver="none", passed_over=(NO_V2, NO_V1)), "cgroup", Support.LIMITED,
     "systemd-run --user --scope -p Delegate=yes leeward daemon run"),
    (but(driver="none", passed_over=(NO_V2, NO_V1), root=True), "cgroup", Support.LIMITED,
     "systemd-run --scope -p Delegate=yes leeward daemon run"),
    (but(driver="none", passed_over=(("v2", "controllers hugetlb"), ("v1", "mkdir(x): EACCES; needs root"))),
     "cgroup", Support.LIMITED, "sudo leeward daemon start"),
    (but(driver="none", passed_over=(("v2", "no mount"), NO_V1), engine=Runtime.DOCKER), "cgroup", Support.LIMITED,
     "docker run --cgroupns=private --security-opt writable-cgroups=true"),
    (but(driver="none", passed_over=(("v2", "write(x, '+cpu'): EBUSY"), NO_V1), root=True, engine=Runtime.PODMAN),
     "cgroup", Support.LIMITED, "podman run ... IMAGE leeward daemon run"),
    (but(driver="none", passed_over=(("v2", "root without CAP_CHOWN"), NO_V1), root=True, engine=Runtime.DOCKER),
     "cgroup", Support.LIMITED, "docker run --cap-add CHOWN"),
    (but(driver="none", passed_over=(NO_V2, NO_V1), engine=Runtime.OCI), "cgroup", Support.LIMITED,
     "run leeward as the container's root"),
    (but(driver="none", passed_over=(("v1", "mkdir(x): EACCES; needs root"),), root=True, engine=Runtime.PODMAN),
     "cgroup", Support.LIMITED, "systemd.unified_cgroup_hierarchy=1"),
    (but(driver="", passed_over=(("any", "no /proc/PID/task/TID/children"),), root=True), "cgroup", Support.MISSING,
     "systemd-run"),
    (but(driver_detail={"cpu": "one processor per worker: controller not delegated"}),
     "cgroup", Support.LIMITED, "Delegate=cpu memory pids"),
    (but(memfd=errno.ENOSYS), "memfd.seals", Support.MISSING, "install Linux"),
    (but(switches={"vm/memfd_noexec": "0"}), "memfd.noexec", Support.LIMITED, "sudo sysctl -w vm.memfd_noexec=2"),
    (but(switches={"vm/memfd_noexec": "1"}), "memfd.noexec", Support.LIMITED, "sudo sysctl -w vm.memfd_noexec=2"),
    (but(switches={}), "memfd.noexec", Support.LIMITED, "install Linux 6.3"),
    (but(snapshot=errno.EFBIG), "snapshot", Support.MISSING, "ulimit -f unlimited"),
    (but(snapshot=errno.ENOSYS, filtered=True, engine=Runtime.DOCKER), "snapshot", Support.MISSING, DOCKER_SECCOMP),
    (but(io_uring=errno.EPERM, switches={"kernel/io_uring_disabled": "2"}), "io_uring", Support.MISSING,
     "sudo sysctl -w kernel.io_uring_disabled=0"),
    (but(io_uring=errno.ENOSYS, filtered=True, engine=Runtime.DOCKER), "io_uring", Support.MISSING, DOCKER_SECCOMP),
])
def test_a_missing_feature_is_named_with_its_cure(facts, name, state, cure):
    """And it says what leeward does without it."""
    feature = found(facts, name)

    assert feature.state is state
    assert cure in feature.cure
    assert feature.without
    assert feature.stops is feature.without.startswith("does not start")
    assert "\n" not in feature.cure  # a line to type


def test_features_that_need_user_namespaces_point_there():
    """One cause, one cure."""
    got = {feature.name: feature for feature in judge(but(
        user_namespace=errno.EPERM, rights=errno.EPERM, proc=errno.EPERM,
        namespaces=dict.fromkeys(NAMESPACES, errno.EPERM), switches={"kernel/unprivileged_userns_clone": "0"}))}

    assert "sysctl" in got["namespace.user"].cure
    assert {got[name].cure for name in (*(f"namespace.{kind}" for kind in NAMESPACES), "mount.proc")} == {
        "see namespace.user"}


def test_root_is_not_told_to_allow_user_namespaces():
    """kernel.unprivileged_userns_clone binds ordinary users."""
    facts = but(root=True, user_namespace=errno.EINVAL, switches={"kernel/unprivileged_userns_clone": "0"})

    assert "unprivileged" not in found(facts, "namespace.user").cure


def test_an_older_landlock_names_its_missing_rights():
    """Not more."""
    at_4 = found(but(landlock=4), "landlock")

    assert "device ioctls, signals" in at_4.without
    assert "TCP" not in at_4.without


def test_missing_tools_are_named_with_their_packages():
    """Each package once; no tool stops the start."""
    feature = found(but(tools_missing=("rg", "rev", "column"), os=("ubuntu", "debian")), "tools")
    elsewhere = found(but(tools_missing=("rg",), os=("fedora",), root=True), "tools")

    assert (Support.LIMITED, "without rg, rev, column", False) == (feature.state, feature.have, feature.stops)
    assert "sudo apt-get install bsdextrautils ripgrep" == feature.cure
    assert "install what Debian calls ripgrep" == elsewhere.cure
