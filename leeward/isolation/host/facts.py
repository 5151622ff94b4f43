"""
The facts of a host, out of what was read and tried there.

Runs in:   anywhere; pure.
Source:    proc_pid_mountinfo(5), os-release(5), proc_pid_attr(5)
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Mapping
from typing import Any

from leeward.dataclass import dataclass, field

#: The name that doctor shows for each namespace, and the switch that bounds their number.
NAMESPACES = {
    "pid": "max_pid_namespaces",
    "mount": "max_mnt_namespaces",
    "network": "max_net_namespaces",
    "ipc": "max_ipc_namespaces",
    "uts": "max_uts_namespaces",
    "cgroup": "max_cgroup_namespaces",
}

#: Switches that explain a failure; those that a host doesn't have are left out.
SWITCHES = ("kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns",
            "user/max_user_namespaces", *(f"user/{switch}" for switch in NAMESPACES.values()),
            "kernel/io_uring_disabled", "vm/memfd_noexec")

MOUNTS = "/proc/self/mountinfo"
IDS = "/proc/self/uid_map"

#: What root needs of its own, to give a worker an id and to take what it has from it; by bit.
ROOTS = {6: "CAP_SETGID", 7: "CAP_SETUID", 8: "CAP_SETPCAP"}

#: Where root's workers have their ids; see worker/idmaps.py.
FIRST_IDS = (2_000_000_000, 60_600)

#: What is read, if it can be.
FILES = ("/proc/version", "/etc/os-release", "/proc/self/attr/current", "/sys/fs/selinux/enforce",
         "/sys/kernel/security/lsm", "/.dockerenv", "/run/.containerenv", MOUNTS, IDS,
         *(f"/proc/sys/{switch}" for switch in SWITCHES))

#: Files of a container that its engine puts there by a mount.
_OF_ENGINES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")

#: What engines cover in /proc: the OCI runtime specification's masked and read-only paths.
_COVERED = ("/proc/kcore", "/proc/keys", "/proc/sys", "/proc/timer_list", "/proc/sysrq-trigger")

#: When gVisor's kernel says that it was built, in every release of it.
_GVISOR_BUILT = "Sun Jan 10 15:06:54 PST 2016"


class Engine(enum.StrEnum):
    """
    Who made the container, as far as that shows from within.
    """

    NONE = ""
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    OCI = "an OCI runtime"  # runc, crun and their like, by whatever hand


class Kernel(enum.StrEnum):
    """
    What kind of kernel answers.
    """

    LINUX = "Linux"
    GVISOR = "gVisor"
    WSL1 = "WSL 1"
    WSL2 = "WSL 2"


@dataclass(frozen=True, slots=True)
class Record:
    """
    What was seen on a host. It can be written to a file and read from one: `as_object`, `from_object`.

    Attributes:
        pod: Kubernetes tells its containers where its API is, and this one was told.
        filtered: a seccomp filter is on this process already.
        files: texts of those of FILES that could be read; of MOUNTS only the lines that matter.
        refusals: the errno by name of each try that was refused: user_namespace, rights (a capability
            in it), namespace.X of NAMESPACES, proc (a mount of it in namespaces of one's own),
            landlock, io_uring, memfd (a sealed memory file).
        landlock: the ABI, 0 where there is none.
        wait_killable: of the user notification; None where there is no notification.
        driver: of the cgroup layer; empty where none can serve.
        passed_over: better drivers, and why they can't serve.
        capabilities: the effective ones, as the kernel numbers bits; None where nobody looked.
    """

    machine: str
    release: str
    root: bool
    pod: bool
    filtered: bool
    files: Mapping[str, str]
    refusals: Mapping[str, str]
    landlock: int
    wait_killable: bool | None
    driver: str
    driver_detail: Mapping[str, str]
    passed_over: tuple[tuple[str, str], ...]
    capabilities: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What a record says. An errno is 0 where the try worked; other fields are Record's.

    Attributes:
        os: the distribution and what it is like, e.g. ("ubuntu", "debian").
        label: what a security module calls this process, e.g. "docker-default (enforce)", or "".
        selinux: the label is SELinux's, and it isn't known to be permissive.
        switches: files under /proc/sys, of those in SWITCHES.
        lsm: active security modules, or None where they can't be read.
        covers: what is mounted on top of parts of /proc.
        lacks: capabilities of ROOTS that root doesn't have.
        few_ids: root's user namespace has none of the ids that workers get.
    """

    machine: str
    release: str
    root: bool
    filtered: bool
    switches: Mapping[str, str]
    lsm: tuple[str, ...] | None
    landlock: int
    wait_killable: bool | None
    driver: str
    driver_detail: Mapping[str, str]
    passed_over: tuple[tuple[str, str], ...]
    kernel: Kernel = Kernel.LINUX
    engine: Engine = Engine.NONE
    os: tuple[str, ...] = ()
    label: str = ""
    selinux: bool = False
    covers: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    few_ids: bool = False
    user_namespace: int = 0
    rights: int = 0
    namespaces: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(NAMESPACES, 0))
    proc: int = 0
    landlock_refusal: int = 0
    io_uring: int = 0
    memfd: int = 0

    @property
    def version(self) -> tuple[int, ...]:
        """
        The kernel's, e.g. (6, 12).
        """
        return tuple(int(part) for part in re.findall(r"\d+", self.release)[:2])

    @property
    def restricted(self) -> bool:
        """
        AppArmor gives rights in user namespaces to programs with a profile that says so, and to no others.
        """
        return "0" != self.switches.get("kernel/apparmor_restrict_unprivileged_userns", "0")

    @property
    def apparmor(self) -> bool:
        """
        AppArmor has a profile on this process that refuses what it doesn't allow.
        """
        return not self.selinux and self.label.endswith("(enforce)")


def facts_of(record: Record) -> Facts:
    """
    What *record* says.
    """
    files = record.files
    label = files.get("/proc/self/attr/current", "").strip("\0\n ")
    mounts = _types(files.get(MOUNTS, ""))
    lsm = files.get("/sys/kernel/security/lsm")
    return Facts(
        machine=record.machine, release=record.release, root=record.root, filtered=record.filtered,
        switches={name: files[f"/proc/sys/{name}"].strip() for name in SWITCHES if f"/proc/sys/{name}" in files},
        lsm=None if lsm is None else tuple(lsm.strip().split(",")),
        landlock=record.landlock, wait_killable=record.wait_killable,
        driver=record.driver, driver_detail=record.driver_detail, passed_over=record.passed_over,
        kernel=_kernel(record.release, files.get("/proc/version", "")), engine=_engine(record, mounts),
        os=_os(files.get("/etc/os-release", "")), label=label,
        # user:role:type[:level]; AppArmor's are "NAME (MODE)" and "unconfined".
        selinux=label.count(":") >= 2 and files.get("/sys/fs/selinux/enforce", "1").strip() != "0",
        covers=tuple(point for point in mounts if point.startswith("/proc/")),
        lacks=_lacks(record), few_ids=record.root and _few_ids(files.get(IDS, "")),
        user_namespace=_number(record, "user_namespace"), rights=_number(record, "rights"),
        namespaces={name: _number(record, f"namespace.{name}") for name in NAMESPACES},
        proc=_number(record, "proc"), landlock_refusal=_number(record, "landlock"),
        io_uring=_number(record, "io_uring"), memfd=_number(record, "memfd"),
    )


def error_name(code: int) -> str:
    """
    EPERM for 1, and so on.
    """
    return errno.errorcode.get(code, f"error {code}")


def from_object(value: Mapping[str, Any]) -> Record:
    """
    The record that `dataclasses.asdict` made *value* of, or JSON on the way.

    Raises:
        TypeError: a field is missing or unknown.
    """
    return Record(**{**value, "passed_over": tuple((name, why) for name, why in value.get("passed_over", ()))})


def _number(record: Record, tried: str) -> int:
    name = record.refusals.get(tried)
    if name is None:
        return 0
    return int(getattr(errno, name, 0)) or int(name.removeprefix("error "))


def _lacks(record: Record) -> tuple[str, ...]:
    if not record.root or record.capabilities is None:
        return ()
    return tuple(name for bit, name in ROOTS.items() if not record.capabilities >> bit & 1)


def _few_ids(uid_map: str) -> bool:
    spans = [(int(first), int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    return bool(spans) and not any(first <= id < first + count for id in FIRST_IDS for first, count in spans)


def _types(mountinfo: str) -> dict[str, str]:
    """
    The type of the filesystem on top of each mount point.
    """
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.count(" ") > 4:
            found[before.split(" ")[4]] = after.split(" ")[0]
    return found


def _engine(record: Record, mounts: Mapping[str, str]) -> Engine:
    files = record.files
    if "/run/.containerenv" in mounts:
        return Engine.PODMAN
    # A machine made out of an image has the file as well, but none of an engine's mounts. gVisor shows its own.
    mounted = any(path in mounts for path in _OF_ENGINES)
    if "/.dockerenv" in files and (mounted or Kernel.GVISOR is _kernel(record.release, files.get("/proc/version", ""))):
        return Engine.DOCKER
    if "/run/.containerenv" in files:  # without a mount of it; not where Docker runs what Podman made
        return Engine.PODMAN
    if record.pod:
        return Engine.KUBERNETES
    # A machine's own /dev is a devtmpfs, which no container may mount.
    covered = any(path in mounts for path in _COVERED)
    return Engine.OCI if covered or "tmpfs" == mounts.get("/dev") else Engine.NONE


def _kernel(release: str, version: str) -> Kernel:
    if "gvisor" in release.lower() or _GVISOR_BUILT in version:
        return Kernel.GVISOR
    if "microsoft" in release.lower():
        return Kernel.WSL2 if "wsl2" in release.lower() else Kernel.WSL1
    return Kernel.LINUX


def _os(release: str) -> tuple[str, ...]:
    found = dict(re.findall(r'^(ID|ID_LIKE)="?([a-z0-9 ._-]*)"?$', release, re.MULTILINE))
    return tuple((found.get("ID", "") + " " + found.get("ID_LIKE", "")).split())
