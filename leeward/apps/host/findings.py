"""Judges the facts of a host: one Feature for each thing that leeward needs or would use."""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass

from leeward.apps.host import cures
from leeward.apps.host.facts import NAMESPACES, Facts, HostKernel, error_name
from leeward.spec import tools
from leeward.spec.limits import LEAST_DESCRIPTORS

LEAST_KERNEL = (5, 13)

#: The accesses that a kernel with an older Landlock doesn't restrict; another layer restricts each of them.
LANDLOCK_LACKS = ((2, "moving files between folders (refused altogether)"), (3, "truncating"),
                  (4, "TCP ports"), (5, "device ioctls"), (6, "signals and abstract sockets"))

#: The first ABI that has all restrictions which leeward wants of Landlock.
LANDLOCK_ENOUGH = 6

_SEE_USER = "see namespace.user"


class Support(enum.StrEnum):
    OK = "ok"            # all that leeward would use
    LIMITED = "limited"  # leeward runs, with less
    MISSING = "missing"  # `without` says whether leeward starts


@dataclass(frozen=True, slots=True)
class Feature:
    name: str  # e.g. "namespace.pid".
    state: Support
    have: str  # what was found
    without: str = ""  # what leeward does if the feature is limited or missing; empty if it is ok
    cure: str = ""  # the line to type, or what to change; empty if it is ok or nothing helps
    stops: bool = False  # leeward doesn't start without the feature
    layer: str = ""  # the layer that `--allow-degraded` may name, so that leeward starts without the feature; or ""


def judge(facts: Facts) -> list[Feature]:
    """Return the features of a host with these *facts*, with cures. Pure."""
    found = [
        _modules(facts), _root(facts), _user_namespaces(facts),
        *(_namespace(facts, name) for name in NAMESPACES),
        _proc(facts), _landlock(facts), _notification(facts), _cgroup(facts), _sealed(facts),
        _executable(facts), _io_uring(facts), _snapshot(facts), _descriptors(facts),
        _tools(facts),
    ]
    return [_kernel(facts), *_container(facts, found), *found]


def _container(facts: Facts, found: list[Feature]) -> list[Feature]:
    """Name the container, and the one cure for all that stops leeward in it; nothing on a machine of one's own."""
    have = ", of ".join(filter(None, (facts.engine and f"a container of {facts.engine}", facts.service)))
    if not have:
        return []
    cure = cures.container(facts) if any(feature.stops for feature in found) else ""
    return [Feature("container", Support.LIMITED, have, "refuses some of what stops below", cure) if cure else
            Feature("container", Support.OK, have)]


def _stops(name: str, have: str, why: str, cure: str) -> Feature:
    return Feature(name, Support.MISSING, have, f"does not start{why}", cure, stops=True)


def _kernel(facts: Facts) -> Feature:
    have = f"Linux {facts.release}, {facts.machine}"
    if facts.kernel is not HostKernel.LINUX:
        have += f", of {facts.kernel}"
    if facts.engine:
        have += f", in a container of {facts.engine}"
    if facts.kernel in (HostKernel.GVISOR, HostKernel.WSL1):
        # No kernel of theirs was ever seen to have all that is needed; what it lacks is named below.
        lacks = facts.user_namespace or facts.rights or facts.proc or facts.wait_killable is None
        without = "no Linux kernel: it answers the system calls itself, and not all that leeward needs"
        return (_stops("kernel", have, f", on {without}", cures.kernel(facts)) if lacks else
                Feature("kernel", Support.LIMITED, have, f"starts, on {without}", cures.kernel(facts)))
    if facts.version >= LEAST_KERNEL:
        return Feature("kernel", Support.OK, have)
    no_folders = "" if facts.version >= (5, 12) else "; root's daemon shows sandboxes no folder of the host"
    return Feature("kernel", Support.LIMITED, have,
                   f"starts only with --allow-degraded landlock; limits of processes count all of the user's{no_folders}",
                   cures.kernel(facts))


def _modules(facts: Facts) -> Feature:
    """Return the list of security modules. leeward needs none of them, but they may refuse a feature that it needs."""
    parts = []
    if facts.lsm is not None:
        parts.append(",".join(facts.lsm))
    if facts.selinux:
        parts.append(f"SELinux confines this process as {facts.label}")
    elif facts.label and facts.label != "unconfined":
        parts.append(f"AppArmor's profile of this process is {facts.label}")
    if facts.filtered:
        parts.append("this process is under a seccomp filter")
    return Feature("modules", Support.OK,
                   "; ".join(parts) or "their list can't be read, and none is known to be active")


def _root(facts: Facts) -> Feature:
    """Judge the rights that leeward needs if root runs it, because it then runs jobs under other users' ids."""
    if not facts.root:
        return Feature("root", Support.OK, "not needed, and not had")
    have = ("without " + ", ".join(facts.lacks) if facts.lacks else
            "of a user namespace with too few ids" if facts.few_ids else "")
    if not have:
        return Feature("root", Support.OK, "with ids to give to workers")
    return _stops("root", have, ": it gives each worker an id of its own", cures.option(facts, "user") or
                  "start leeward as another user")


def _user_namespaces(facts: Facts) -> Feature:
    name, why = "namespace.user", ": every sandbox is made in one"
    if not facts.user_namespace and not facts.rights:
        return Feature(name, Support.OK, "made, and rights in it")
    refusal = facts.user_namespace or facts.rights
    have = (f"refused: {error_name(refusal)}" if facts.user_namespace else
            f"made, but without rights in it: {error_name(refusal)}")
    if refusal == errno.ENOSPC:
        switch = "user.max_user_namespaces"
        cause = f"{switch} is 0" if facts.switches.get("user/max_user_namespaces") == "0" else (
            "all are taken, or nested too deep")
        return _stops(name, f"{have} ({cause})", why, cures.sysctl(facts, f"{switch}=15000"))
    if refusal == errno.EAGAIN:
        return _stops(name, f"{have} (a limit on processes: RLIMIT_NPROC, or pids.max of a cgroup)", why,
                      "raise it (ulimit -u, TasksMax= of a service), or end other processes of this user")
    if refusal == errno.EPERM and not facts.user_namespace and (facts.lacks or facts.few_ids):
        return _stops(name, have, why, "see root")
    if facts.filtered and refusal == errno.ENOSYS:  # so engines answer clone3(2)
        return _stops(name, f"{have} ({_filter(facts)})", why, cures.outer_filter(facts))
    if facts.switches.get("kernel/unprivileged_userns_clone") == "0" and refusal == errno.EPERM and not facts.root:
        return _stops(name, f"{have} (kernel.unprivileged_userns_clone is 0)", why,
                      cures.sysctl(facts, "kernel.unprivileged_userns_clone=1"))
    if facts.restricted and refusal in (errno.EACCES, errno.EPERM):
        return _stops(name, f"{have} (AppArmor: kernel.apparmor_restrict_unprivileged_userns is "
                            f"{facts.switches['kernel/apparmor_restrict_unprivileged_userns']})", why,
                      cures.apparmor_restriction(facts))
    if refusal == errno.EACCES and cures.security_module(facts):
        return _stops(name, f"{have} ({_module(facts)})", why, cures.security_module(facts))
    if facts.filtered:
        return _stops(name, f"{have} ({_filter(facts)})", why, cures.outer_filter(facts))
    return _stops(name, have, why, cures.kernel(facts, f"{cures.NEWER}, built with CONFIG_USER_NS"))


def _namespace(facts: Facts, kind: str) -> Feature:
    name, refusal = f"namespace.{kind}", facts.namespaces[kind]
    if not refusal:
        return Feature(name, Support.OK, "made")
    if facts.user_namespace:
        return _stops(name, "not tried: it needs a user namespace", "", _SEE_USER)
    switch = NAMESPACES[kind]
    if refusal == errno.ENOSPC or facts.switches.get(f"user/{switch}") == "0":
        cure = cures.sysctl(facts, f"user.{switch}=15000")
    else:
        cure = cures.outer_filter(facts) or cures.kernel(facts, f"{cures.NEWER}, built with {kind} namespaces")
    return _stops(name, f"refused: {error_name(refusal)}", "", cure)


def _proc(facts: Facts) -> Feature:
    name, why = "mount.proc", ": a job needs the /proc of its own processes"
    if not facts.proc:
        return Feature(name, Support.OK, "a /proc of its own, by the mount API of Linux 5.2")
    have = f"refused: {error_name(facts.proc)}"
    # Without rights nothing can be mounted; but where parts of /proc are covered, that is a reason of its own.
    rights = facts.rights and not facts.covers
    if facts.user_namespace or rights or facts.namespaces["pid"] or facts.namespaces["mount"]:
        return _stops(name, "not tried: it needs namespaces", why, _SEE_USER)
    if facts.proc == errno.ENOSYS:
        return _stops(name, f"{have} (no mount API of Linux 5.2)", why,
                      cures.outer_filter(facts) or cures.kernel(facts))
    if facts.proc == errno.EACCES and cures.security_module(facts):
        return _stops(name, f"{have} ({_module(facts)})", why, cures.security_module(facts))
    if facts.covers:
        shown = ", ".join(facts.covers[:3]) + (" and others" if len(facts.covers) > 3 else "")
        unmount = f"{cures.sudo(facts)}umount {' '.join(reversed(facts.covers))}"
        return _stops(name, f"{have} (something is mounted on {shown}: who may not see all of the host's /proc may not "
                            "mount another)", why, cures.option(facts, "proc") or unmount)
    return _stops(name, have, why, cures.outer_filter(facts) or f"{cures.sudo(facts)}mount -t proc proc /proc")


def _landlock(facts: Facts) -> Feature:
    if facts.landlock >= LANDLOCK_ENOUGH:
        return Feature("landlock", Support.OK, f"ABI {facts.landlock}")
    if facts.landlock:
        lacks = ", ".join(what for since, what in LANDLOCK_LACKS if facts.landlock < since)
        return Feature("landlock", Support.LIMITED, f"ABI {facts.landlock}",
                       f"leaves these to the other layers: {lacks}", cures.kernel(facts, "install Linux 6.12 or newer"))
    have, cure = "none", cures.outer_filter(facts) or cures.kernel(facts)
    listed = facts.lsm is None or "landlock" in facts.lsm
    if facts.landlock_refusal == errno.EOPNOTSUPP or (not listed and facts.version >= LEAST_KERNEL):
        # capability is always there, and first; what isn't known can't be kept.
        others = [module for module in facts.lsm or () if module not in ("capability", "landlock")]
        names = ",".join(("landlock", *others)) if facts.lsm is not None else "landlock,..."
        have = "built in, but not among the active security modules" + (f" {','.join(facts.lsm)}" if facts.lsm else "")
        cure = cures.boot_parameter(facts, f"lsm={names}")
    return Feature("landlock", Support.MISSING, have,
                   "does not start without --allow-degraded landlock; then only the mount layer hides files", cure,
                   stops=True, layer="landlock")


def _notification(facts: Facts) -> Feature:
    name = "seccomp.notification"
    if facts.wait_killable is None:
        return _stops(name, "no SECCOMP_RET_USER_NOTIF", "", cures.outer_filter(facts) or cures.kernel(facts))
    if facts.wait_killable:
        return Feature(name, Support.OK, "with WAIT_KILLABLE_RECV")
    return Feature(name, Support.LIMITED, "without WAIT_KILLABLE_RECV",
                   "a refused call that a signal interrupts is sent to the supervisor twice, and refused both times",
                   cures.kernel(facts, "install Linux 5.19 or newer"))


def _cgroup(facts: Facts) -> Feature:
    why = "; ".join(f"{name}: {reason}" for name, reason in facts.passed_over)
    if not facts.driver:
        return _stops("cgroup", why or "nothing", "", cures.delegation(facts))
    detail = ", ".join(f"{key} {value}" for key, value in facts.driver_detail.items())
    if facts.driver == "none":
        return Feature("cgroup", Support.LIMITED, f"no controller ({why})",
                       f"holds limits itself: {detail}", cures.delegation(facts))
    if "controller not delegated" in facts.driver_detail.get("cpu", ""):
        return Feature("cgroup", Support.LIMITED, f"version 2 without the cpu controller: {detail}",
                       "binds each worker to as many processors as its limit is worth", cures.delegation(facts))
    return Feature("cgroup", Support.OK, f"driver {facts.driver}: {detail}")


def _sealed(facts: Facts) -> Feature:
    if not facts.memfd:
        return Feature("memfd.seals", Support.OK, "all four")
    return _stops("memfd.seals", f"refused: {error_name(facts.memfd)}",
                  ": large results are handed out as sealed memory files",
                  cures.outer_filter(facts) or cures.kernel(facts))


def _executable(facts: Facts) -> Feature:
    """Judge the host's policy for programs in memory files. leeward's own memory files are never executable."""
    policy = facts.switches.get("vm/memfd_noexec")
    if policy == "2":
        return Feature("memfd.noexec", Support.OK, "vm.memfd_noexec is 2")
    have = "none: Linux 6.3 brought vm.memfd_noexec" if policy is None else f"vm.memfd_noexec is {policy}"
    if policy == "1":
        have += ", and a program can avoid it by MFD_EXEC"
    return Feature("memfd.noexec", Support.LIMITED, have,
                   "a job can run a program out of a memory file, under the locks that it is under itself",
                   cures.kernel(facts, "install Linux 6.3 or newer") if policy is None else
                   cures.sysctl(facts, "vm.memfd_noexec=2"))


def _io_uring(facts: Facts) -> Feature:
    if not facts.io_uring:
        return Feature("io_uring", Support.OK, "allowed")
    without = "serves its socket by epoll; nothing is lost but system calls"
    have = f"refused: {error_name(facts.io_uring)}"
    switch = facts.switches.get("kernel/io_uring_disabled", "0")
    if switch != "0":
        return Feature("io_uring", Support.MISSING, f"{have} (kernel.io_uring_disabled is {switch})", without,
                       cures.sysctl(facts, "kernel.io_uring_disabled=0"))
    return Feature("io_uring", Support.MISSING, have, without, cures.outer_filter(facts) or cures.kernel(facts))


def _snapshot(facts: Facts) -> Feature:
    if not facts.snapshot:
        return Feature("snapshot", Support.OK, "memory files and the page map")
    return Feature("snapshot", Support.MISSING, f"refused: {error_name(facts.snapshot)}",
                   "clones copy all of the zygote's page tables; a job takes a tenth more processor time",
                   "ulimit -f unlimited  # of a service: LimitFSIZE=infinity" if facts.snapshot == errno.EFBIG else
                   cures.outer_filter(facts) or cures.kernel(facts))


def _descriptors(facts: Facts) -> Feature:
    limit = facts.descriptors
    if limit is None:
        return Feature("descriptors", Support.OK, "their limit isn't known")
    have = f"a hard limit of {limit} (RLIMIT_NOFILE)"
    if limit >= LEAST_DESCRIPTORS:
        return Feature("descriptors", Support.OK, have)
    return _stops("descriptors", have, f": it needs {LEAST_DESCRIPTORS} or more",
                  "raise it (ulimit -Hn, LimitNOFILE= of a service)")


def _tools(facts: Facts) -> Feature:
    """Judge the tools of a `WorkdirSandbox`; leeward itself needs none of them."""
    missing = facts.tools_missing
    if not missing:
        return Feature("tools", Support.OK, f"all {len(tools.TOOLS)} of workdir")
    return Feature("tools", Support.LIMITED, f"without {', '.join(missing)}",
                   "available_tools() of a WorkdirSandbox leaves these out", cures.packages(facts, missing))


def _module(facts: Facts) -> str:
    return f"SELinux: {facts.label}" if facts.selinux else f"AppArmor: {facts.label}"


def _filter(facts: Facts) -> str:
    return "the seccomp filter of " + (f"{facts.engine}" if facts.engine else "the program that started this process")
