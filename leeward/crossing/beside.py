"""
The steps of a further process in a live sandbox: the same locks as those of a runner, in the same order.

Runs in: the zygote lays the steps out, once; C takes them in each such process, before its execve or any bytecode.

The user, network, pid, mount, ipc and uts namespaces, the mounts and the names are the runner's. The process sets the
other locks itself: `LAYERS` says for each layer of `birth.ORDER` which steps remain. A program's steps run on the
keeper's memory while the keeper sleeps, so none of them waits for the daemon: the proof that the filter holds is a call
that the filter itself refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leeward._native.keeper_loop import Way
from leeward._native.steps import Call, Cell, Step, Table, returns
from leeward.base.points import point
from leeward.crossing import birth, handlers
from leeward.isolation import descriptors, landlock, mounts, namespaces, privileges, rlimits, seccomp
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control
from leeward.wire.control import Kind

#: The values of an order: struct lw_way of keeper.h.
IN, RULESET = Cell("in"), Cell("ruleset")
_JOB, _REPLY, _OUT, _ERR, _BIRTH = birth.ENDS
#: The birth channel of a program, which has it and behind it the ruleset until its execve, and then only 0 to 2.
_PROGRAMS_BIRTH = 3

Layer = Callable[[WorkerPlan, Kind], list[Step]]


def way(plan: WorkerPlan, kind: Kind) -> tuple[Way, birth.Birth]:
    """Lay out the steps of a process of *kind*. Called in the zygote, since it reads the limits that processes inherit."""
    made = layers()
    steps = [(layer, step) for layer, _ in birth.layers() for step in made[layer](plan, kind)]
    table = Table(step for _, step in steps)
    names = [layer for layer, _ in steps]
    ends = [_JOB, _REPLY, _OUT, _ERR, _BIRTH] if kind is Kind.INTERPRETER else [IN, _OUT, _ERR, _BIRTH]
    rules = [RULESET] if plan.landlock.abi else []
    return (Way(table, [*ends, *rules], [control.LAYERS.index(name) for name in names]),
            birth.Birth(table, names, control.encode(control.Ready({}))))


def _descriptors(plan: WorkerPlan, kind: Kind) -> list[Step]:
    rules = [RULESET] if plan.landlock.abi else []
    wanted = [None, _OUT, _ERR, _JOB, _REPLY, _BIRTH] if kind is Kind.INTERPRETER else [IN, _OUT, _ERR, _BIRTH]
    return descriptors.steps([*wanted, *rules], birth.INHERITED)


def _seccomp(plan: WorkerPlan, kind: Kind) -> list[Step]:
    """Install the job's filter. For a process on a terminal the filter also has the rows that a terminal needs."""
    program = plan.terminal_seccomp if kind is Kind.TERMINAL else plan.seccomp
    return birth.listener_steps(plan, _birth_of(kind), program=program)


def _proof(plan: WorkerPlan, kind: Kind) -> list[Step]:
    return [
        *privileges.proof(),
        *(seccomp.proof() if kind is Kind.INTERPRETER else seccomp.quiet_proof()),
        *mounts.proof(plan.view),
        *birth.landlock_proof(plan),
        returns(Call.GETPPID),  # the parent, the keeper, is in no pid namespace that the process can see
    ]


def _birth_of(kind: Kind) -> int:
    return birth.BIRTH if kind is Kind.INTERPRETER else _PROGRAMS_BIRTH


#: The steps by layer, in the order of `birth.ORDER`.
LAYERS: dict[str, Layer] = {
    "descriptors": _descriptors,
    "namespaces": lambda plan, kind: namespaces.beside_steps(terminal=kind is Kind.TERMINAL),
    # the mounts are there; a program's folder is part of its command
    "mounts": lambda plan, kind: [*mounts.detached_steps(plan.view), *(
        [returns(Call.CHDIR, mounts.folder(plan.view))] if kind is Kind.INTERPRETER else [])],
    "entrances": lambda plan, kind: [],  # the first process has sent the entrances
    "rlimits": lambda plan, kind: rlimits.steps(plan.rlimits),
    "signals": lambda plan, kind: handlers.steps() if kind is Kind.INTERPRETER else [],  # an execve resets them
    "privileges": lambda plan, kind: [*privileges.steps(), *privileges.user_proof(plan.uid), *privileges.powerless_proof()],
    "landlock": lambda plan, kind: landlock.again_steps(plan.landlock, _birth_of(kind) + 1),
    "rules' paths": lambda plan, kind: [],  # closed with all others
    "seccomp": _seccomp,
    "self-check": _proof,
}


@point("layers.beside")
def layers() -> Mapping[str, Layer]:
    return LAYERS
