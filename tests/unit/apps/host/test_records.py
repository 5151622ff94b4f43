"""
Hosts that can't be had here, by what is recorded of them: what the doctor says there.

Each file in records/ says whether it was seen, or where its texts are from and which were put together by hand.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kit.features import ROOT
from leeward.apps.host import cures, features
from leeward.apps.host.facts import FIRST_IDS, HostKernel, Record, Runtime, facts_of, from_object, service_of
from leeward.apps.host.findings import Feature, Support
from leeward.daemon.worker.idmaps import CONTAINER_UID_BASE, WORKER_UID_BASE

RECORDS = Path(__file__).with_name("records")

APPARMOR = "leeward doctor --profile apparmor | sudo tee /etc/apparmor.d/leeward >/dev/null && sudo apparmor_parser -r "
SECCOMP = "docker run --rm IMAGE leeward doctor --profile seccomp >leeward-seccomp.json; "

#: By record: what of it stops leeward, with a word of what is found and the start of the cure.
STOPS: dict[str, dict[str, tuple[str, str]]] = {
    "debian-6.12-userns-clone": {
        "namespace.user": ("refused: EPERM (kernel.unprivileged_userns_clone is 0)",
                           "sudo sysctl -w kernel.unprivileged_userns_clone=1")},
    "debian-6.12-apparmor": {
        "namespace.user": ("refused: EACCES (AppArmor: strict (enforce))", "start leeward outside the AppArmor prof")},
    "debian-6.12-lsm": {
        "landlock": ("built in, but not among the active security modules lockdown,capability,yama",
                     "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX lsm=landlock,lockdown,yama")},
    "ubuntu-24.04-apparmor": {
        "namespace.user": ("without rights in it: EPERM (AppArmor: kernel.apparmor_restrict_unprivileged_userns is 1)",
                           APPARMOR)},
    "ubuntu-24.04-no-profile": {"namespace.user": ("refused: EACCES (AppArmor", APPARMOR)},
    "fedora-selinux-container": {
        "namespace.user": ("SELinux: system_u:system_r:container_t", "podman run --security-opt label=disable")},
    "fedora-selinux-user": {
        "namespace.user": ("SELinux: staff_u:staff_r:staff_t", "sudo ausearch -m avc -ts recent --raw | audit2allow")},
    "gvisor": {
        "kernel": ("of gVisor, in a container of docker", "docker run --runtime=runc"),
        "namespace.cgroup": ("refused: EINVAL", "docker run --runtime=runc"),
        "mount.proc": ("refused: ENOSYS", "docker run --runtime=runc"),
        "landlock": ("none", "docker run --runtime=runc"),
        "seccomp.notification": ("no SECCOMP_RET_USER_NOTIF", "docker run --runtime=runc")},
    "gvisor-4.4": {
        "kernel": ("of gVisor", "docker run --runtime=runc"),
        "namespace.user": ("refused: ENOSYS", "docker run --runtime=runc"),
        "landlock": ("none", "docker run --runtime=runc"),
        "seccomp.notification": ("no SECCOMP_RET_USER_NOTIF", "docker run --runtime=runc")},
    "wsl1": {
        "kernel": ("of WSL 1", "wsl.exe --set-version"),
        "namespace.user": ("refused: EINVAL", "wsl.exe --set-version"),
        "landlock": ("none", "wsl.exe --set-version"),
        "seccomp.notification": ("no SECCOMP_RET_USER_NOTIF", "wsl.exe --set-version")},
    "wsl2": {},
    "wsl2-lsm-option": {
        "landlock": ("not among the active security modules",
                     "powershell.exe 'Add-Content $env:USERPROFILE\\.wslconfig \"[wsl2]`nkernelCommandLine=lsm=land")},
    "docker-20.10-defaults": {
        "namespace.user": ("refused: ENOSYS (the seccomp filter of docker)", SECCOMP)},
    "podman-4.3-defaults": {
        "namespace.user": ("without rights in it: EPERM (the seccomp filter of podman)",
                           SECCOMP.replace("docker", "podman")),
        "mount.proc": ("something is mounted on /proc/bus, /proc/fs, /proc/irq and others",
                       "podman run --user 1000:1000 --security-opt unmask=ALL")},
    "docker-ubuntu-24.04": {
        "namespace.user": ("refused: ENOSYS (the seccomp filter of docker)", SECCOMP)},
    "docker-debian-seccomp-lifted": {
        "mount.proc": ("AppArmor: docker-default (enforce)", "docker run --security-opt apparmor=unconfined")},
}


def record(name: str) -> Record:
    value: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    assert value["about"].startswith("Seen: ") or value["sources"]
    assert all(source.startswith("https://") for source in value["sources"])
    return from_object(value["record"])


def found(name: str, feature: str) -> Feature:
    return next(each for each in features(record(name)) if each.name == feature)


def test_every_record_is_here():
    assert set(STOPS) == {path.stem for path in RECORDS.iterdir()}


@pytest.mark.parametrize("name", STOPS)
def test_a_feature_that_stops_leeward_has_a_line_that_cures_it(name: str):
    """And no other one is said to stop it, but those that depend on it."""
    stops = {each.name: each for each in features(record(name)) if each.stops and not each.cure.startswith("see ")}

    assert set(stops) == set(STOPS[name])
    for feature, (have, cure) in STOPS[name].items():
        assert have in stops[feature].have
        assert stops[feature].cure.startswith(cure)


@pytest.mark.parametrize(("name", "kernel", "engine"), [
    ("gvisor", HostKernel.GVISOR, Runtime.DOCKER),
    ("gvisor-4.4", HostKernel.GVISOR, Runtime.NONE),
    ("wsl1", HostKernel.WSL1, Runtime.NONE),
    ("wsl2", HostKernel.WSL2, Runtime.NONE),
    ("fedora-selinux-container", HostKernel.LINUX, Runtime.PODMAN),
    ("docker-ubuntu-24.04", HostKernel.LINUX, Runtime.DOCKER),
    ("docker-20.10-defaults", HostKernel.LINUX, Runtime.DOCKER),
    ("podman-4.3-defaults", HostKernel.LINUX, Runtime.PODMAN),
])
def test_the_kind_of_host_is_named(name: str, kernel: HostKernel, engine: Runtime):
    facts = facts_of(record(name))

    assert (kernel, engine) == (facts.kernel, facts.engine)


def test_wsl_without_delegation_gets_its_own_advice():
    assert "/etc/wsl.conf" in found("wsl2", "cgroup").cure
    assert "sudo leeward daemon start" not in found("wsl2-lsm-option", "cgroup").cure
    assert "kernelCommandLine=cgroup_no_v1=all" in found("wsl2-lsm-option", "cgroup").cure


def test_a_container_on_ubuntu_gets_the_advice_of_its_profile():
    """Once its filter is lifted: without a profile AppArmor restricts it, with Docker's it refuses mounts."""
    lifted = dataclasses.replace(record("docker-ubuntu-24.04"), refusals={"proc": "EACCES"})
    (stops,) = [each for each in features(lifted) if each.stops]

    assert "mount.proc" == stops.name
    assert stops.cure.endswith("docker run --security-opt apparmor=leeward ...")


def test_a_machine_made_out_of_an_image_is_no_container():
    """It has Docker's mark, and a devtmpfs of its own."""
    machine = dataclasses.replace(record("wsl2"), files={
        "/.dockerenv": "",
        "/proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n28 27 0:6 / /dev rw - devtmpfs dev rw\n"})

    assert Runtime.NONE is facts_of(machine).engine


def test_permissive_selinux_is_not_blamed():
    permissive = dataclasses.replace(record("fedora-selinux-user"), files={
        **record("fedora-selinux-user").files, "/sys/fs/selinux/enforce": "0"})
    (user,) = [each for each in features(permissive) if "namespace.user" == each.name]

    assert Support.MISSING is user.state
    assert "SELinux" not in user.have


@pytest.mark.parametrize(("capabilities", "ids", "have"), [
    (0x800001c0, "0 0 4294967295\n", None),
    (0x800001c0, "0 100000 65536\n", None),
    (0x2001c0, "0 0 4294967295\n", None),  # who may mount needs no user namespace of his own
    (0x1c0, "0 0 4294967295\n", "without CAP_SETFCAP"),
    (0x800000c0, "0 0 4294967295\n", "without CAP_SETPCAP"),
    (0, "0 0 4294967295\n", "without CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SETFCAP"),
    (0x800001c0, "0 1000 1\n", "of a user namespace with too few ids"),
])
def test_root_needs_its_capabilities_and_id_maps(capabilities: int, ids: str, have: str | None):
    one = dataclasses.replace(record("wsl2"), root=True, capabilities=capabilities, files={"/proc/self/uid_map": ids})
    (root,) = [each for each in features(one) if "root" == each.name]

    assert root.stops is (have is not None)
    assert have is None or have == root.have


def test_ids_are_where_the_daemon_gives_them():
    assert (WORKER_UID_BASE, CONTAINER_UID_BASE) == FIRST_IDS


def test_a_record_survives_a_file():
    one = record("wsl2")

    assert one == from_object(json.loads(json.dumps(dataclasses.asdict(one))))
    with pytest.raises(TypeError):
        from_object({"machine": "x86_64"})


DOCKER = "docker-20.10-defaults"


@pytest.mark.parametrize(("names", "engine", "have", "cure"), [
    ((), True, "a container of docker", "docker run --user 1000:1000 --security-opt seccomp=leeward-seccomp.json"),
    (("GITHUB_ACTIONS", "CI"), True, "a container of docker, of GitHub Actions", "jobs.JOB.container.options: --user"),
    (("GITLAB_CI",), True, "a container of docker, of GitLab CI", 'security_opt = ["seccomp=unconfined", "system'),
    (("CODESPACES", "GITHUB_ACTIONS"), True, "a container of docker, of GitHub Codespaces",
     '"runArgs": ["--security-opt", "seccomp=unconfined", '),
    (("COLAB_RELEASE_TAG",), False, "Google Colab", "export LEEWARD_HOST="),
    (("GITHUB_ACTIONS",), False, "GitHub Actions", ""),
])
def test_the_container_is_named_with_its_own_cure(names: tuple[str, ...], engine: bool, have: str, cure: str) -> None:
    """By what its service has set, for what an engine's defaults refuse; a service's own machine has no engine's options."""
    seen = record(DOCKER)
    files = seen.files if engine else {path: text for path, text in seen.files.items()
                                         if path not in ("/.dockerenv", "/proc/self/mountinfo")}
    found = features(dataclasses.replace(seen, service=service_of(names), files=files))
    (told,) = [feature for feature in found if "container" == feature.name]

    assert have == told.have
    assert told.cure.startswith(cure)
    assert bool(cure) == bool(told.cure)


def test_a_machine_of_ones_own_is_no_container() -> None:
    assert "container" not in [feature.name for feature in features(record("debian-6.12-lsm"))]


def test_the_page_on_containers_has_each_cure() -> None:
    """But for what stands behind a #, which the page says in its own words."""
    page = " ".join((ROOT / "docs/containers.md").read_text().replace("\\\n", " ").split())

    assert [] == [line for line in (" ".join(cure.partition("  #")[0].split()) for cure in cures._CONTAINERS.values())
                  if line not in page]
