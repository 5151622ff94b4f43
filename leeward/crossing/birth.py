"""
The steps of a new runner: every lock, in order, and the proof that each holds.

Runs in:   the zygote lays the steps out, once; C takes them in each runner, before any bytecode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from leeward._native.steps import Call, Cell, Step, Table, gives, returns
from leeward.base.dataclass import dataclass
from leeward.base.points import point
from leeward.crossing import handlers
from leeward.isolation import descriptors, landlock, mounts, namespaces, privileges, rlimits, seccomp
from leeward.isolation.channel import send_step
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control

#: A runner's descriptors after the last step. 0 to 2 are the job's own; the rest are close-on-exec.
JOB, REPLY, BIRTH = 3, 4, 5
#: The sources of these descriptors: the runner's ends of four pipes and of a channel, by their numbers in the keeper.
ENDS = _JOB, _REPLY, _OUT, _ERR, _BIRTH = tuple(map(Cell, ("job", "reply", "out", "err", "birth")))
#: Descriptors that outlive an exec: 0 is /dev/null, 1 and 2 are the job's pipes.
INHERITED = 3
#: Only a keeper's first runner tests the supervisor, which has to refuse a call; all others only the filter.
PROVE_ONCE = True

_AT_FDCWD = -100
#: The namespaces among the `entrances`.
_DOORS = tuple(Cell(f"{name} namespace") for name in namespaces.ENTERED)
_RULESET = Cell("ruleset")

Layer = tuple[str, Callable[[WorkerPlan], list[Step]]]


@dataclass(frozen=True, slots=True)
class Birth:
    table: Table
    layers: Sequence[str]  # for each step, the layer that it belongs to
    ready: bytes  # the message that a runner sends if no step fails
    once: int = 0  # the number of the step that only a keeper's first runner takes; 0 if every runner takes all


def of(plan: WorkerPlan, *, again: bool = False) -> Birth:
    """
    Lay out the steps for *plan*, or those of a runner that comes *again* into kept namespaces. Called in the zygote, since it
    reads the limits that runners inherit.
    """
    steps = [(layer, step) for layer, made in layers() for step in (AGAIN.get(layer, made) if again else made)(plan)]
    report = {"namespaces": "pid 2", "mounts": f"{mounts.read_only(plan.view)} is read-only", "seccomp": "chroot: EACCES",
              "privileges": "no capability, no_new_privs, not dumpable"}
    if plan.landlock.abi:
        report["landlock"] = f"{landlock.SEALED if plan.view.root is None else 'a detached /proc'}: EACCES"
    once = [number for number, (layer, step) in enumerate(steps) if (layer, step.call) == ("self-check", Call.CHROOT)]
    return Birth(Table(step for _, step in steps), [layer for layer, _ in steps], control.encode(control.Ready(report)),
                 once[0] if once and PROVE_ONCE else 0)


def entrances(plan: WorkerPlan) -> list[Cell]:
    """
    What a runner sends so that more processes can be put beside it: its namespaces, its ruleset, if any, and the layers of
    an image's root.
    """
    return [*_DOORS, *([_RULESET] if plan.landlock.abi else []),
            *([mounts.KEPT_LAYERS] if plan.view.root is not None else [])] if plan.enterable else []


def held(plan: WorkerPlan) -> dict[str, int]:
    """The paths of Landlock rules that a keeper holds open for its runners, with their descriptors; none in an image."""
    return {} if plan.view.root is not None else landlock.held(plan.landlock, mounts.own(plan.view))


def listener_steps(plan: WorkerPlan, birth: int, more: Sequence[Cell] = (), program: bytes = b"") -> list[Step]:
    """Install the filter, *plan*'s or *program*, and send its listener, with *more*, to the daemon by *birth*."""
    listener, scratch = Cell("listener"), Cell("scratch")
    # O_PATH: the daemon can call fstatfs(2) on it, and nothing else.
    watched = [gives(scratch, Call.OPENAT, _AT_FDCWD, ".", os.O_PATH | os.O_CLOEXEC, 0)] if plan.watched else []
    sent = [listener, *more, scratch] if plan.watched else [listener, *more]
    return [
        *seccomp.steps(program or plan.seccomp, listener),
        *watched,
        send_step(birth, control.Locked(len(more), mounts.KEPT_LAYERS in more), sent),
        *(returns(Call.CLOSE, cell) for cell in sent),
        *rlimits.steps(plan.rlimits, late=True),
    ]


def _proof(plan: WorkerPlan, *, again: bool = False) -> list[Step]:
    """Make calls that must be refused, and read locks from the kernel. `runner` checks capabilities after the last step."""
    return [
        *privileges.proof(),
        *seccomp.proof(),  # `once`
        *seccomp.quiet_proof(),
        *mounts.proof(plan.view),
        *landlock_proof(plan),
        # The parent of one in kept namespaces is in no pid namespace that it can see.
        returns(Call.GETPPID) if again else returns(Call.GETPID, value=2),
    ]


def landlock_proof(plan: WorkerPlan) -> list[Step]:
    if plan.view.root is None:
        return landlock.proof() if plan.landlock.abi else []
    return [*(mounts.detached_proof(plan.view) if plan.landlock.abi else []), *mounts.close_steps(plan.view)]


#: cgroup (by clone3), user, net, pid, mount, ipc and uts namespaces came before the first of these.
ORDER: tuple[Layer, ...] = (
    # the daemon's and the keeper's descriptors are closed before anything can go wrong
    ("descriptors", lambda plan: descriptors.steps((None, _OUT, _ERR, _JOB, _REPLY, _BIRTH), INHERITED,
                                                   tuple(held(plan).values()))),
    ("namespaces", lambda plan: namespaces.steps(plan.hostname)),  # needs CAP_SYS_ADMIN
    # needs CAP_SYS_ADMIN; Landlock would forbid it
    ("mounts", lambda plan: [*(mounts.keep_layers_steps(plan.view) if plan.enterable else []),
                             *mounts.steps(plan.view, plan.scratch_bytes)]),
    # opened through the /proc of these namespaces
    ("entrances", lambda plan: namespaces.entrance_steps(_DOORS) if plan.enterable else []),
    ("rlimits", lambda plan: rlimits.steps(plan.rlimits)),         # while the process may still set them
    ("signals", lambda plan: handlers.steps()),  # no lock: the handlers that every job begins with
    # no capability survives; no_new_privs, which the next two need
    ("privileges", lambda plan: [*privileges.steps(), *privileges.user_proof(plan.uid)]),
    # after the mounts, which Landlock forbids
    ("landlock", lambda plan: landlock.steps(plan.landlock, _RULESET if plan.enterable else None, held(plan))),
    ("rules' paths", lambda plan: landlock.let_go_steps(held(plan))),  # no job has what Landlock needed
    ("seccomp", lambda plan: listener_steps(plan, BIRTH, entrances(plan))),  # the last lock
    ("self-check", _proof),
)


#: What differs for a runner in kept namespaces, where the first one has set names, mounts and rules. Ipc's is new.
AGAIN: dict[str, Callable[[WorkerPlan], list[Step]]] = {
    "descriptors": lambda plan: descriptors.steps((None, _OUT, _ERR, _JOB, _REPLY, _BIRTH), INHERITED,
                                                  (landlock.KEPT,) if plan.landlock.abi else ()),
    "namespaces": lambda plan: namespaces.beside_steps(),
    "mounts": lambda plan: [returns(Call.CHDIR, mounts.folder(plan.view))],
    "entrances": lambda plan: [],  # no sandbox gets such a runner
    "landlock": lambda plan: landlock.again_steps(plan.landlock, landlock.KEPT),
    "rules' paths": lambda plan: [],
    "seccomp": lambda plan: listener_steps(plan, BIRTH),
    "self-check": lambda plan: _proof(plan, again=True),
}


@point("layers.runner")
def layers() -> Sequence[Layer]:
    return ORDER
