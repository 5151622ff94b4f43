"""
A runner on its way to the last lock, and then parked.

Runs in:   the job's process, pid 2 of its namespace, before any code of a job.
Ends:      at the hand-over to `inside`, or by saying what failed and leaving.

Every step is irreversible and none is skipped. What fails, fails the birth: the daemon
gets the reason and no job.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from leeward._native import privileges
from leeward._native.spawn import Clone
from leeward.errors import KernelRefusal, LeewardError
from leeward.inside import main as inside
from leeward.isolation import landlock, mounts, rlimits, seccomp
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control

#: Where a runner's descriptors end up. 0 to 2 are the job's own; the rest close on exec.
JOB, REPLY, BIRTH = 3, 4, 5
_PARKING = 64  # above every number used here, so that no dup2 hits one that is still needed


@dataclass(frozen=True, slots=True)
class Ends:
    """
    The runner's ends, under the numbers that the keeper gave them.
    """

    job: int
    reply: int
    out: int
    err: int
    birth: int


def main(plan: WorkerPlan, ends: Ends, join_error: int, cpu: int | None) -> NoReturn:
    """
    Go through every lock, say so, and become `inside`. Never returns.

    Args:
        join_error: 0, or the errno with which this process could not join its cgroups.
        cpu: the one processor that it may use, or None.
    """
    layer = "descriptors"
    try:
        take_descriptors(ends)
        channel = Channel.adopt(BIRTH)
        if join_error:
            layer = "cgroup"
            raise KernelRefusal("write", "cgroup.procs", join_error)
        if cpu is not None:
            layer = "cgroup"
            os.sched_setaffinity(0, {cpu})
        for layer, enter in ORDER:  # noqa: B007  the handler below says which one failed
            enter(plan)
        layer = "seccomp"
        listener = seccomp.enter(plan.seccomp)
        # O_PATH: it can be asked how full its file system is, and nothing else.
        scratch = [os.open(".", os.O_PATH | os.O_CLOEXEC)] if plan.watched else []
        channel.send(control.Locked(), [listener, *scratch])
        for fd in (listener, *scratch):
            os.close(fd)
        rlimits.enter(plan.rlimits, late=True)
        layer = "self-check"
        report = self_check(plan)
        if plan.rehearse:
            layer = "rehearsal"
            inside.rehearse()
        channel.send(control.Ready(report))
        channel.close()
        inside.serve(JOB, REPLY)
    except BaseException as error:  # the last frame of this process: whatever it is, no job may come
        try:
            Channel.adopt(BIRTH).send(control.Failed(-1, layer, f"{type(error).__name__}: {error}"))
        finally:
            os._exit(1)
    os._exit(0)


def take_descriptors(ends: Ends) -> None:
    """
    0 reads nothing, 1 and 2 are the job's pipes, 3 to 5 ours; everything else is closed.
    """
    empty = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    wanted = (empty, ends.out, ends.err, ends.job, ends.reply, ends.birth)
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PARKING) for fd in wanted]
    for number, fd in enumerate(parked):
        os.dup2(fd, number, inheritable=number <= 2)
    privileges.close_range(BIRTH + 1, 0xFFFFFFFF)


def _namespaces(plan: WorkerPlan) -> None:
    # kill(0, ...) reaches a process group wherever its members are: out of the keeper's.
    os.setsid()
    # The others came with the clone. Not this one: its root is the cgroup that one is in.
    privileges.unshare(Clone.NEWCGROUP)
    privileges.set_hostname(plan.hostname)
    privileges.set_domain_name("(none)")  # a new uts namespace starts with the host's; this is the kernel's own


def _mounts(plan: WorkerPlan) -> None:
    mounts.enter(plan.view.scratch, plan.scratch_bytes)
    os.chdir(plan.view.scratch.targets[0])


def _rlimits(plan: WorkerPlan) -> None:
    rlimits.enter(plan.rlimits)


def _privileges(plan: WorkerPlan) -> None:
    privileges.drop_capabilities()
    privileges.no_new_privs()
    privileges.set_dumpable(False)
    # The keeper's thread ends: so does this. The init has it too; this is for the time before
    # the init's is set, and comes after the last change of credentials, which would clear it.
    privileges.die_with_parent(signal.SIGKILL)


def _landlock(plan: WorkerPlan) -> None:
    if plan.landlock.abi:
        landlock.enter(plan.landlock)


#: cgroup (by clone3), user, net, pid, mount, ipc and uts namespaces came before the first line here.
ORDER: tuple[tuple[str, Callable[[WorkerPlan], None]], ...] = (
    ("namespaces", _namespaces),  # needs CAP_SYS_ADMIN
    ("mounts", _mounts),          # needs CAP_SYS_ADMIN; Landlock would forbid it
    ("rlimits", _rlimits),        # while they may still be set
    ("privileges", _privileges),  # no capability survives; no_new_privs, which the next two need
    ("landlock", _landlock),      # after mounts: it forbids them
    # seccomp is last and its listener has to get out: `main` does both
)


def self_check(plan: WorkerPlan) -> dict[str, str]:
    """
    Try a few forbidden things. A lock that doesn't hold fails the birth.
    """
    report: dict[str, str] = {}
    if privileges.capabilities_left():
        raise LeewardError("self-check: capabilities are left")
    if not privileges.has_no_new_privs() or privileges.is_dumpable():
        raise LeewardError("self-check: no_new_privs or dumpable is wrong")
    report["privileges"] = "no capability, no_new_privs, not dumpable"
    if 2 != privileges.seccomp_mode():
        raise LeewardError("self-check: no seccomp filter")
    _must_fail("seccomp", lambda: os.chroot("/"), (errno.EACCES,))
    report["seccomp"] = "chroot: EACCES"
    _must_fail("mounts", lambda: os.mkdir("/here"), (errno.EROFS, errno.EACCES))
    report["mounts"] = "/ is read-only"
    if plan.landlock.abi:
        _must_fail("landlock", lambda: os.close(os.open(landlock.SEALED, os.O_RDONLY)), (errno.EACCES,))
        report["landlock"] = f"{landlock.SEALED}: EACCES"
    if 2 != os.getpid() or plan.uid != os.getuid():
        raise LeewardError("self-check: not pid 2 of an own namespace, or the wrong uid")
    report["namespaces"] = "pid 2"
    return report


def _must_fail(layer: str, attempt: Callable[[], object], errnos: tuple[int, ...]) -> None:
    try:
        attempt()
    except OSError as error:
        if error.errno in errnos:
            return
        raise LeewardError(f"self-check: {layer} answers {errno.errorcode.get(error.errno or 0)}") from error
    raise LeewardError(f"self-check: {layer} lets a forbidden call pass")
