"""
The steps of a newborn runner: every lock, in the order in which they go on, and the proof that each holds.

Runs in:   made in the zygote, once; taken by each of its runners, in C, before any bytecode.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from leeward._native.steps import Call, Cell, Step, Table, fails, gives, returns
from leeward.dataclass import dataclass
from leeward.isolation import descriptors, landlock, mounts, namespaces, privileges, rlimits, seccomp
from leeward.isolation.channel import send_step
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control

#: Where a runner's descriptors end up. 0 to 2 are the job's own; the rest close on exec.
JOB, REPLY, BIRTH = 3, 4, 5

#: Where they come from: its ends of four pipes and of a channel, under the numbers that the keeper gave them.
ENDS = _JOB, _REPLY, _OUT, _ERR, _BIRTH = tuple(map(Cell, ("job", "reply", "out", "err", "birth")))

#: 0 reads nothing, 1 and 2 are the job's pipes. Only these outlive an exec.
_INHERITED = 3

_AT_FDCWD = -100

Layer = tuple[str, Callable[[WorkerPlan], list[Step]]]


@dataclass(frozen=True, slots=True)
class Birth:
    """
    Attributes:
        layers: by step, the layer that it belongs to.
        ready: what it says, of each layer, if no step fails.
    """

    table: Table
    layers: Sequence[str]
    ready: bytes


def of(plan: WorkerPlan) -> Birth:
    """
    Lay out the steps for *plan*. Called where runners come from: it looks at the limits that they inherit.
    """
    steps = [(layer, step) for layer, made in ORDER for step in made(plan)]
    report = {"namespaces": "pid 2", "mounts": "/ is read-only", "seccomp": "chroot: EACCES",
              "privileges": "no capability, no_new_privs, not dumpable"}
    if plan.landlock.abi:
        report["landlock"] = f"{landlock.SEALED}: EACCES"
    return Birth(Table(step for _, step in steps), [layer for layer, _ in steps], control.encode(control.Ready(report)))


def _listener(plan: WorkerPlan) -> list[Step]:
    """
    The filter, and its listener's way out.
    """
    listener, scratch = Cell("listener"), Cell("scratch")
    # O_PATH: it can be asked how full its file system is, and nothing else.
    watched = [gives(scratch, Call.OPENAT, _AT_FDCWD, ".", os.O_PATH | os.O_CLOEXEC, 0)] if plan.watched else []
    sent = [listener, scratch] if plan.watched else [listener]
    return [
        *seccomp.steps(plan.seccomp, listener),
        *watched,
        send_step(BIRTH, control.Locked(), sent),
        *(returns(Call.CLOSE, cell) for cell in sent),
        *rlimits.steps(plan.rlimits, late=True),
    ]


def _proof(plan: WorkerPlan) -> list[Step]:
    """
    Try what is forbidden; ask what the kernel knows. Capabilities are looked at after the last step.
    """
    return [
        *privileges.proof(),
        *seccomp.proof(),
        fails(Call.MKDIRAT, _AT_FDCWD, "/here", 0o777, errnos=(errno.EROFS, errno.EACCES)),
        *(landlock.proof() if plan.landlock.abi else []),
        returns(Call.GETPID, value=2),
        returns(Call.GETUID, value=plan.uid),
    ]


#: cgroup (by clone3), user, net, pid, mount, ipc and uts namespaces came before the first of these.
ORDER: tuple[Layer, ...] = (
    # also the daemon's and the keeper's: closed before anything can go wrong
    ("descriptors", lambda plan: descriptors.steps((None, _OUT, _ERR, _JOB, _REPLY, _BIRTH), _INHERITED)),
    ("namespaces", lambda plan: namespaces.steps(plan.hostname)),  # needs CAP_SYS_ADMIN
    # needs CAP_SYS_ADMIN; Landlock would forbid it
    ("mounts", lambda plan: mounts.steps(plan.view.scratch, plan.scratch_bytes)),
    ("rlimits", lambda plan: rlimits.steps(plan.rlimits)),         # while they may still be set
    ("privileges", lambda plan: privileges.steps()),  # no capability survives; no_new_privs, which the next two need
    ("landlock", lambda plan: landlock.steps(plan.landlock)),      # after mounts: it forbids them
    ("seccomp", _listener),                                        # the last lock
    ("self-check", _proof),
)
