"""
What this host offers: the facts behind `leeward doctor`, and what to type where one is wanting.

Runs in:   observe() in the CLI; judge() anywhere, it is pure.

Nothing is inferred that can be tried: namespaces are made, /proc is mounted in one, a cgroup
driver is set up and taken down again. What is read besides (switches under /proc/sys, the list of
security modules) only explains why a try failed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from leeward._native import host as native
from leeward._native import mounts, privileges, seccomp
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone, clone
from leeward.errors import KernelRefusal, LeewardError, Unsupported
from leeward.isolation import landlock
from leeward.isolation.cgroup.choose import choose

LEAST_KERNEL = (5, 13)

#: The name that doctor shows for each namespace, and the switch that bounds their number.
NAMESPACES: dict[str, tuple[Clone, str]] = {
    "pid": (Clone.NEWPID, "max_pid_namespaces"),
    "mount": (Clone.NEWNS, "max_mnt_namespaces"),
    "network": (Clone.NEWNET, "max_net_namespaces"),
    "ipc": (Clone.NEWIPC, "max_ipc_namespaces"),
    "uts": (Clone.NEWUTS, "max_uts_namespaces"),
    "cgroup": (Clone.NEWCGROUP, "max_cgroup_namespaces"),
}

#: Switches that explain a failure; those that a host doesn't have are left out.
SWITCHES = ("kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns",
            "user/max_user_namespaces", *(f"user/{switch}" for _, switch in NAMESPACES.values()),
            "kernel/io_uring_disabled", "vm/memfd_noexec")

#: What a kernel with an older Landlock lets a job try; each is held by another layer too.
LANDLOCK_LACKS = ((2, "moving files between folders (refused altogether)"), (3, "truncating"),
                  (4, "TCP ports"), (5, "device ioctls"), (6, "signals and abstract sockets"))

#: The ABI from which on nothing is left to other layers alone that leeward wants of Landlock.
LANDLOCK_ENOUGH = 6

USER_SCOPE = "systemd-run --user --scope -p Delegate=yes leeward daemon run"
ROOT_SCOPE = "systemd-run --scope -p Delegate=yes leeward daemon run"
NEWER = "install Linux 5.13 or newer"


class State(enum.StrEnum):
    """
    How a feature is.
    """

    OK = "ok"            # all that leeward would use
    LIMITED = "limited"  # leeward runs, with less
    MISSING = "missing"  # `without` says whether leeward starts


@dataclass(frozen=True, slots=True)
class Feature:
    """
    One line of `leeward doctor`.

    Attributes:
        name: e.g. "namespace.pid".
        have: what was found.
        without: what leeward does where the feature is limited or missing; empty where it is ok.
        cure: the line to type, or the thing to change; empty where it is ok or nothing helps.
    """

    name: str
    state: State
    have: str
    without: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What was found on a host. An errno is 0 where the try worked.

    Attributes:
        container: its engine by name, or "".
        filtered: a seccomp filter is on this process already.
        switches: files under /proc/sys, of those in SWITCHES.
        lsm: active security modules, or None where they can't be read.
        user_namespace: errno of making one.
        rights: errno of using a capability in it.
        namespaces: errno by name of NAMESPACES.
        proc: errno of mounting /proc in namespaces of one's own.
        wait_killable: of the user notification; None where there is no notification.
        driver: of the cgroup layer; empty where none can serve.
        passed_over: better drivers, and why they can't serve.
        memfd: errno of making a sealed memory file.
    """

    machine: str
    release: str
    root: bool
    container: str
    filtered: bool
    switches: Mapping[str, str]
    lsm: tuple[str, ...] | None
    user_namespace: int
    rights: int
    namespaces: Mapping[str, int]
    proc: int
    landlock: int
    wait_killable: bool | None
    driver: str
    driver_detail: Mapping[str, str]
    passed_over: tuple[tuple[str, str], ...]
    io_uring: int
    memfd: int


def features() -> list[Feature]:
    """
    All features of this host, in the order in which leeward needs them.
    """
    return judge(observe())


# --- to look ------------------------------------------------------------------


def observe() -> Facts:
    """
    Try what can be tried. Takes some tens of milliseconds; needs a process with one thread.
    """
    uid, gid = os.geteuid(), os.getegid()

    def with_rights() -> None:
        _map_to_self(uid, gid)
        privileges.set_hostname("leeward")  # needs CAP_SYS_ADMIN there, and no recent kernel

    def with_proc() -> None:
        _map_to_self(uid, gid)
        mounts.make_private()
        mounts.filesystem("proc", {}, MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC)

    driver, detail, passed_over = _cgroup()
    return Facts(
        machine=platform.machine(), release=platform.release(), root=0 == uid, container=_container(),
        filtered=privileges.seccomp_mode() > 0, switches=_switches(), lsm=_lsm(),
        user_namespace=_try(Clone.NEWUSER, lambda: None),
        rights=_try(Clone.NEWUSER | Clone.NEWUTS, with_rights),
        namespaces={name: _try(Clone.NEWUSER | flag, lambda: None) for name, (flag, _) in NAMESPACES.items()},
        proc=_try(Clone.NEWUSER | Clone.NEWNS | Clone.NEWPID, with_proc),
        landlock=landlock.probe(), wait_killable=_notification(),
        driver=driver, driver_detail=detail, passed_over=passed_over,
        io_uring=native.io_uring_refusal(), memfd=_memfd(),
    )


def _try(flags: Clone, then: Callable[[], None]) -> int:
    """
    The errno of making a process with namespaces *flags*, or of what it does *then*.
    """
    try:
        pid, pidfd = clone(flags)
    except KernelRefusal as refusal:
        return refusal.errno
    if 0 == pid:
        code = 255  # something that is no errno: a bug, and told as an unknown error
        try:
            then()
            code = 0
        except KernelRefusal as refusal:
            code = refusal.errno
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(min(code, 255))
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _map_to_self(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"1000 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"1000 {gid} 1")


def _switches() -> dict[str, str]:
    found = {}
    for name in SWITCHES:
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text().strip()
    return found


def _lsm() -> tuple[str, ...] | None:
    try:
        return tuple(Path("/sys/kernel/security/lsm").read_text().strip().split(","))
    except OSError:  # securityfs isn't mounted, in most containers
        return None


def _container() -> str:
    if os.path.exists("/.dockerenv"):
        return "docker"
    try:
        engine = re.search(r'^engine="?([a-z]+)', Path("/run/.containerenv").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return engine[1] if engine else "podman"


def _notification() -> bool | None:
    try:
        return seccomp.has_wait_killable() if seccomp.has_user_notif() else None
    except KernelRefusal:
        return None


def _cgroup() -> tuple[str, Mapping[str, str], tuple[tuple[str, str], ...]]:
    """
    The driver that a daemon started from here would take. Sets it up, and takes it down.
    """
    try:
        driver = choose()
    except Unsupported as missing:
        return "", {}, (("any", missing.have),)
    try:
        return driver.name, dict(driver.detail), driver.passed_over
    finally:
        with contextlib.suppress(LeewardError):
            driver.close()


def _memfd() -> int:
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    try:
        fd = os.memfd_create("leeward_doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return error.errno or 255
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        return error.errno or 255
    finally:
        os.close(fd)
    return 0


# --- to judge -----------------------------------------------------------------


def judge(facts: Facts) -> list[Feature]:
    """
    What *facts* mean for leeward, and what to do. Pure.
    """
    return [
        _judge_kernel(facts), _judge_user_namespaces(facts), *(_judge_namespace(facts, name) for name in NAMESPACES),
        _judge_proc(facts), _judge_landlock(facts), _judge_notification(facts), _judge_cgroup(facts),
        _judge_memfd(facts), _judge_io_uring(facts),
    ]


def _judge_kernel(facts: Facts) -> Feature:
    have = f"Linux {facts.release}, {facts.machine}"
    if facts.container:
        have += f", in {facts.container}"
    version = tuple(int(part) for part in re.findall(r"\d+", facts.release)[:2])
    if version >= LEAST_KERNEL:
        return Feature("kernel", State.OK, have)
    return Feature("kernel", State.LIMITED, have,
                   "starts only with --allow-degraded landlock; limits of processes count all of the user's", NEWER)


def _judge_user_namespaces(facts: Facts) -> Feature:
    name, without = "namespace.user", "does not start: every sandbox is made in one"
    if not facts.user_namespace and not facts.rights:
        return Feature(name, State.OK, "made, and rights in it")
    if not facts.user_namespace:
        have = f"made, but without rights in it: {_named(facts.rights)}"
        if "0" != facts.switches.get("kernel/apparmor_restrict_unprivileged_userns", "0"):
            return Feature(name, State.MISSING, f"{have} (AppArmor)", without,
                           "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
        return Feature(name, State.MISSING, have, without, _cure_of_filter(facts))
    have = f"refused: {_named(facts.user_namespace)}"
    if "0" == facts.switches.get("kernel/unprivileged_userns_clone") and not facts.root:
        return Feature(name, State.MISSING, f"{have} (kernel.unprivileged_userns_clone is 0)", without,
                       "sysctl -w kernel.unprivileged_userns_clone=1")
    if "0" == facts.switches.get("user/max_user_namespaces"):
        return Feature(name, State.MISSING, f"{have} (user.max_user_namespaces is 0)", without,
                       "sysctl -w user.max_user_namespaces=15000")
    if errno.ENOSPC == facts.user_namespace:
        return Feature(name, State.MISSING, f"{have} (all are taken, or nested too deep)", without,
                       "sysctl -w user.max_user_namespaces=15000")
    return Feature(name, State.MISSING, have, without, _cure_of_filter(facts) or NEWER + ", built with CONFIG_USER_NS")


def _judge_namespace(facts: Facts, kind: str) -> Feature:
    name, refusal = f"namespace.{kind}", facts.namespaces[kind]
    if not refusal:
        return Feature(name, State.OK, "made")
    if facts.user_namespace:
        return Feature(name, State.MISSING, "not tried: it needs a user namespace", "does not start",
                       "see namespace.user")
    switch = NAMESPACES[kind][1]
    if errno.ENOSPC == refusal or "0" == facts.switches.get(f"user/{switch}"):
        cure = f"sysctl -w user.{switch}=15000"
    else:
        cure = _cure_of_filter(facts) or f"{NEWER}, built with {kind} namespaces"
    return Feature(name, State.MISSING, f"refused: {_named(refusal)}", "does not start", cure)


def _judge_proc(facts: Facts) -> Feature:
    if not facts.proc:
        return Feature("mount.proc", State.OK, "a /proc of its own, by the mount API of Linux 5.12")
    without = "does not start: a job needs the /proc of its own processes"
    have = f"refused: {_named(facts.proc)}"
    if facts.user_namespace or facts.rights or facts.namespaces["pid"] or facts.namespaces["mount"]:
        return Feature("mount.proc", State.MISSING, "not tried: it needs namespaces", without, "see namespace.user")
    if errno.ENOSYS == facts.proc:
        return Feature("mount.proc", State.MISSING, f"{have} (no mount API of Linux 5.12)", without,
                       _cure_of_filter(facts) or NEWER)
    cures = {"docker": "docker run --security-opt systempaths=unconfined ...",
             "podman": "podman run --security-opt unmask=ALL ..."}
    return Feature("mount.proc", State.MISSING, f"{have} (parts of the host's /proc are covered)", without,
                   cures.get(facts.container, "findmnt -R /proc  # and umount what lies on top of it"))


def _judge_landlock(facts: Facts) -> Feature:
    if facts.landlock >= LANDLOCK_ENOUGH:
        return Feature("landlock", State.OK, f"ABI {facts.landlock}")
    if facts.landlock:
        lacks = ", ".join(what for since, what in LANDLOCK_LACKS if facts.landlock < since)
        return Feature("landlock", State.LIMITED, f"ABI {facts.landlock}",
                       f"leaves to the other layers alone: {lacks}", "install Linux 6.12 or newer")
    without = "does not start without --allow-degraded landlock; the mount layer alone hides files then"
    if facts.lsm is not None and "landlock" not in facts.lsm:
        version = tuple(int(part) for part in re.findall(r"\d+", facts.release)[:2])
        if version >= LEAST_KERNEL:
            return Feature("landlock", State.MISSING, f"not among the security modules {','.join(facts.lsm)}", without,
                           f"boot with lsm=landlock,{','.join(facts.lsm)} on the kernel's command line")
    return Feature("landlock", State.MISSING, "none", without, _cure_of_filter(facts) or NEWER)


def _judge_notification(facts: Facts) -> Feature:
    if facts.wait_killable is None:
        return Feature("seccomp.notification", State.MISSING, "no SECCOMP_RET_USER_NOTIF", "does not start",
                       _cure_of_filter(facts) or NEWER)
    if facts.wait_killable:
        return Feature("seccomp.notification", State.OK, "with WAIT_KILLABLE_RECV")
    return Feature("seccomp.notification", State.LIMITED, "without WAIT_KILLABLE_RECV",
                   "a signal may make a refused call be asked again; it is refused again",
                   "install Linux 5.19 or newer")


def _judge_cgroup(facts: Facts) -> Feature:
    why = "; ".join(f"{name}: {reason}" for name, reason in facts.passed_over)
    if not facts.driver:
        return Feature("cgroup", State.MISSING, why or "nothing", "does not start", _cure_of_cgroup(facts))
    detail = ", ".join(f"{key} {value}" for key, value in facts.driver_detail.items())
    if "none" == facts.driver:
        return Feature("cgroup", State.LIMITED, f"no controller ({why})",
                       f"holds limits itself: {detail}", _cure_of_cgroup(facts))
    if "controller not delegated" in facts.driver_detail.get("cpu", ""):
        return Feature("cgroup", State.LIMITED, f"version 2 without the cpu controller: {detail}",
                       "fixes each worker to one processor", _cure_of_cgroup(facts))
    return Feature("cgroup", State.OK, f"driver {facts.driver}: {detail}")


def _cure_of_cgroup(facts: Facts) -> str:
    if facts.container:
        engine = "podman" if "podman" == facts.container else "docker"
        return f"{engine} run --cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw ..."
    if "controller not delegated" in facts.driver_detail.get("cpu", ""):
        return ("printf '[Service]\\nDelegate=cpu memory pids\\n' | SYSTEMD_EDITOR=tee "
                "systemctl edit user@.service  # then log in anew")
    if not facts.root and "no writable hierarchy" not in dict(facts.passed_over).get("v1", ""):
        return "run leeward as root (the controllers are on version 1), or boot with systemd.unified_cgroup_hierarchy=1"
    return ROOT_SCOPE if facts.root else USER_SCOPE


def _judge_memfd(facts: Facts) -> Feature:
    if not facts.memfd:
        return Feature("memfd.seals", State.OK, "all four")
    without = "does not start: large results are handed out as sealed memory files"
    have = f"refused: {_named(facts.memfd)}"
    if "2" == facts.switches.get("vm/memfd_noexec"):
        return Feature("memfd.seals", State.MISSING, f"{have} (vm.memfd_noexec is 2)", without,
                       "sysctl -w vm.memfd_noexec=1")
    return Feature("memfd.seals", State.MISSING, have, without, _cure_of_filter(facts) or NEWER)


def _judge_io_uring(facts: Facts) -> Feature:
    if not facts.io_uring:
        return Feature("io_uring", State.OK, "allowed")
    without = "serves its socket by epoll; nothing is lost but system calls"
    have = f"refused: {_named(facts.io_uring)}"
    if "0" != facts.switches.get("kernel/io_uring_disabled", "0"):
        switch = facts.switches["kernel/io_uring_disabled"]
        return Feature("io_uring", State.MISSING, f"{have} (kernel.io_uring_disabled is {switch})", without,
                       "sysctl -w kernel.io_uring_disabled=0")
    return Feature("io_uring", State.MISSING, have, without, _cure_of_filter(facts) or NEWER)


def _cure_of_filter(facts: Facts) -> str:
    """
    What to type where a filter on this very process is the likely cause.
    """
    if not facts.filtered:
        return ""
    engine = "podman" if "podman" == facts.container else "docker"
    return (f"{engine} run --security-opt seccomp=unconfined ..." if facts.container
            else "start leeward outside the seccomp filter that this process is under")


def _named(code: int) -> str:
    return errno.errorcode.get(code, f"error {code}")
