"""
The facts of a host, parsed from a record of what was read and tried there.

Source:    proc_pid_mountinfo(5), os-release(5), proc_pid_attr(5)
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

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

#: Capabilities, by bit, that root needs to give workers ids and to drop their privileges.
ROOTS = {6: "CAP_SETGID", 7: "CAP_SETUID", 8: "CAP_SETPCAP"}
#: Root without the right to mount makes a user namespace for the zygote, which maps root's own id: that takes
#: CAP_SETFCAP.
_SYS_ADMIN, _SETFCAP = 21, 31

#: Where root's workers have their ids; see worker/idmaps.py.
FIRST_IDS = (2_000_000_000, 60_600)

#: The files that are read, if they are readable.
FILES = ("/proc/version", "/etc/os-release", "/proc/self/attr/current", "/sys/fs/selinux/enforce",
         "/sys/kernel/security/lsm", "/.dockerenv", "/run/.containerenv", MOUNTS, IDS,
         *(f"/proc/sys/{switch}" for switch in SWITCHES))

#: Files of a container that its engine puts there by a mount.
_OF_ENGINES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")

#: The parts of /proc that engines cover: the OCI runtime specification's masked and read-only paths.
_COVERED = ("/proc/kcore", "/proc/keys", "/proc/sys", "/proc/timer_list", "/proc/sysrq-trigger")

#: The build date that gVisor's kernel reports, the same in every release.
_GVISOR_BUILT = "Sun Jan 10 15:06:54 PST 2016"


class Runtime(enum.StrEnum):
    """The container's engine, as far as it can be detected from inside."""

    NONE = ""
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    OCI = "an OCI runtime"  # runc, crun and others, without a known engine


class Service(enum.StrEnum):
    """Who runs the container or the machine, as far as variables say so: there its own file has the engine's options."""

    NONE = ""
    ACTIONS = "GitHub Actions"
    GITLAB = "GitLab CI"
    CODESPACES = "GitHub Codespaces"
    COLAB = "Google Colab"


#: The variable that each sets; the first one counts.
VARIABLES = {"CODESPACES": Service.CODESPACES, "GITHUB_ACTIONS": Service.ACTIONS, "GITLAB_CI": Service.GITLAB,
             "COLAB_RELEASE_TAG": Service.COLAB}


def service_of(names: Iterable[str]) -> Service:
    """Who has set these variables."""
    there = set(names)
    return next((service for name, service in VARIABLES.items() if name in there), Service.NONE)


class HostKernel(enum.StrEnum):
    """The kind of kernel."""

    LINUX = "Linux"
    GVISOR = "gVisor"
    WSL1 = "WSL 1"
    WSL2 = "WSL 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a record has as it is in the facts."""

    machine: str
    release: str
    root: bool
    filtered: bool  # a seccomp filter is on this process already
    landlock: int  # the ABI, 0 if there is none
    wait_killable: bool | None  # whether user notification has the flag; None if there is no notification
    driver: str  # of the cgroup layer; empty if none works
    driver_detail: Mapping[str, str]
    passed_over: tuple[tuple[str, str], ...]  # better drivers, and why they don't work
    tools_missing: tuple[str, ...] = ()  # commands of `workdir` that the host lacks
    descriptors: int | None = None  # the hard limit of this process; None if unknown
    service: str = Service.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Kept):
    """What was read and tried on a host. It can be written to a file, and read from one by `from_object`."""

    pod: bool  # the environment has the address of Kubernetes' API, which pods get
    files: Mapping[str, str]  # texts of those of FILES that could be read; of MOUNTS only the lines that matter
    #: the errno of each failed attempt, by name: user_namespace, rights (a capability in it), namespace.X of
    #: NAMESPACES, proc (mounting it in new namespaces), landlock, io_uring, memfd (a sealed memory file), snapshot (a
    #: memory file as large as a zygote's memory, and this process's page map)
    refusals: Mapping[str, str]
    capabilities: int | None = None  # the effective set, in the kernel's numbering of bits; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(_Kept):
    """The facts in a record. An errno is 0 if the try worked."""

    switches: Mapping[str, str]  # files under /proc/sys, of those in SWITCHES
    lsm: tuple[str, ...] | None  # active security modules, or None if they can't be read
    kernel: HostKernel = HostKernel.LINUX
    engine: Runtime = Runtime.NONE
    os: tuple[str, ...] = ()  # the distribution and those that it derives from, e.g. ("ubuntu", "debian").
    label: str = ""  # a security module's label of this process, e.g. "docker-default (enforce)", or "".
    selinux: bool = False  # the label is SELinux's, and it isn't known to be permissive
    covers: tuple[str, ...] = ()  # parts of /proc on which something is mounted
    lacks: tuple[str, ...] = ()  # capabilities of ROOTS that root doesn't have
    few_ids: bool = False  # root's user namespace has none of the ids that workers get
    user_namespace: int = 0
    rights: int = 0
    namespaces: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(NAMESPACES, 0))
    proc: int = 0
    landlock_refusal: int = 0
    io_uring: int = 0
    memfd: int = 0
    snapshot: int = 0

    @property
    def version(self) -> tuple[int, ...]:
        """The kernel's version, e.g. (6, 12)."""
        return tuple(int(part) for part in re.findall(r"\d+", self.release)[:2])

    @property
    def restricted(self) -> bool:
        """Whether AppArmor grants rights in user namespaces only to programs whose profile allows it."""
        return self.switches.get("kernel/apparmor_restrict_unprivileged_userns", "0") != "0"

    @property
    def apparmor(self) -> bool:
        """Whether an AppArmor profile confines this process, and is enforced."""
        return not self.selinux and self.label.endswith("(enforce)")


def facts_of(record: Record) -> Facts:
    files = record.files
    label = files.get("/proc/self/attr/current", "").strip("\0\n ")
    mounts = _types(files.get(MOUNTS, ""))
    lsm = files.get("/sys/kernel/security/lsm")
    return Facts(
        **{each.name: getattr(record, each.name) for each in fields(_Kept)},
        switches={name: files[f"/proc/sys/{name}"].strip() for name in SWITCHES if f"/proc/sys/{name}" in files},
        lsm=None if lsm is None else tuple(lsm.strip().split(",")),
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
        snapshot=_number(record, "snapshot"))


def error_name(code: int) -> str:
    return errno.errorcode.get(code, f"error {code}")


def from_object(value: Mapping[str, Any]) -> Record:
    """The record from which `dataclasses.asdict` has made *value*, perhaps by way of JSON; TypeError if fields differ."""
    return Record(**{**value, "passed_over": tuple((name, why) for name, why in value.get("passed_over", ())),
                     "tools_missing": tuple(value.get("tools_missing", ()))})


def _number(record: Record, tried: str) -> int:
    name = record.refusals.get(tried)
    if name is None:
        return 0
    return int(getattr(errno, name, 0)) or int(name.removeprefix("error "))


def _lacks(record: Record) -> tuple[str, ...]:
    if not record.root or record.capabilities is None:
        return ()
    has = record.capabilities
    needed = ROOTS if has >> _SYS_ADMIN & 1 else {**ROOTS, _SETFCAP: "CAP_SETFCAP"}
    return tuple(name for bit, name in needed.items() if not has >> bit & 1)


def _few_ids(uid_map: str) -> bool:
    spans = [(int(first), int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    return bool(spans) and not any(first <= id < first + count for id in FIRST_IDS for first, count in spans)


def _types(mountinfo: str) -> dict[str, str]:
    """Return the type of the filesystem on top of each mount point."""
    found = {}
    for line in mountinfo.split("\n"):  # a mount point can have any other byte
        before, _, after = line.partition(" - ")
        if before.count(" ") > 4:
            found[before.split(" ")[4]] = after.split(" ")[0]
    return found


def _engine(record: Record, mounts: Mapping[str, str]) -> Runtime:
    files = record.files
    if "/run/.containerenv" in mounts:
        return Runtime.PODMAN
    # A machine made from a container image has the file as well, but none of an engine's mounts. gVisor shows its own.
    mounted = any(path in mounts for path in _OF_ENGINES)
    kernel = _kernel(record.release, files.get("/proc/version", ""))
    if "/.dockerenv" in files and (mounted or kernel is HostKernel.GVISOR):
        return Runtime.DOCKER
    if "/run/.containerenv" in files:  # without a mount of it; not where Docker runs what Podman made
        return Runtime.PODMAN
    if record.pod:
        return Runtime.KUBERNETES
    # A machine's own /dev is a devtmpfs, which no container may mount.
    covered = any(path in mounts for path in _COVERED)
    return Runtime.OCI if covered or mounts.get("/dev") == "tmpfs" else Runtime.NONE


def _kernel(release: str, version: str) -> HostKernel:
    if "gvisor" in release.lower() or _GVISOR_BUILT in version:
        return HostKernel.GVISOR
    if "microsoft" in release.lower():
        return HostKernel.WSL2 if "wsl2" in release.lower() else HostKernel.WSL1
    return HostKernel.LINUX


def _os(release: str) -> tuple[str, ...]:
    found = dict(re.findall(r'^(ID|ID_LIKE)="?([a-z0-9 ._-]*)"?$', release, re.MULTILINE))
    return tuple((found.get("ID", "") + " " + found.get("ID_LIKE", "")).split())
