"""
The keeper of one worker: owns its user and network namespaces and its mount template, makes runners.

Runs in:   its own process, cloned by the zygote; one thread; never sees a job's code.
Ends:      when the daemon's end of its control channel closes. Its runners die with it
           (PR_SET_PDEATHSIG of their inits).

Once the template stands it runs no bytecode any more: `_native.keeper` serves, in C.

Not pid 1 of a pid namespace: OpenSSL tells a fork by getpid(), and two processes that
are both pid 1 would draw the same random bytes.
"""

from __future__ import annotations

import contextlib

from leeward._native.keeper import Kept, keep
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Gives, Step, returns
from leeward.crossing import birth, runner
from leeward.dataclass import dataclass
from leeward.errors import LeewardError
from leeward.isolation import landlock, namespaces, privileges
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan
from leeward.isolation.template import Template
from leeward.wire import control

#: The keeper's end of its control channel, and the ruleset of its inits.
CHANNEL, RULESET = Cell("control channel"), Cell("ruleset")

_RUNNER_NAMESPACES = Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS


@dataclass(frozen=True, slots=True)
class Ways:
    """
    What the zygote lays out: in a keeper each object of it would be a page more.

    Attributes:
        settling: the keeper's own.
        birth: of each of its runners.
        kept: what those are made of.
        landlocked: whether the settling leaves a ruleset for their inits.
        rehearse: whether a runner rehearses.
    """

    settling: Template
    birth: birth.Birth
    kept: Kept
    landlocked: bool
    rehearse: bool


def ways(plan: WorkerPlan) -> Ways:
    """
    Lay out all that can be.

    Raises:
        Unsupported: the host doesn't have what *plan* binds.
    """
    made = birth.of(plan)
    kept = Kept(_RUNNER_NAMESPACES, filter=plan.init_seccomp, way=made.table, ends=birth.ENDS)
    return Ways(settling(plan), made, kept, plan.landlock.abi > 0, plan.rehearse)


def main(channel: int, ways: Ways) -> None:
    """
    Build the template, then serve until the daemon is gone.
    """
    template = ways.settling
    template.table.address(CHANNEL)[0] = channel
    try:
        template.open()
        template.build()
    except (LeewardError, OSError) as error:
        with contextlib.suppress(BrokenPipeError):  # that was why
            Channel.adopt(channel).send(control.Failed(-1, "mounts", str(error)))
        return
    born = keep(channel, template.table.value(RULESET) if ways.landlocked else -1, ways.kept)
    if born is not None:
        runner.main(ways.birth, born, rehearse=ways.rehearse and not born.hurried)


def settling(plan: WorkerPlan) -> Template:
    """
    Lay out a keeper's way: ids, template, loopback, no way back. It begins when the daemon has mapped the ids,
    and ends by telling the daemon.

    Raises:
        Unsupported: the host doesn't have what *plan* binds.
    """
    mapped, ready = control.encode(control.Mapped()), control.encode(control.Ready({}))
    return Template(
        plan.view,
        first=[returns(Call.READ, CHANNEL, Block(bytes(len(mapped) + 1)), len(mapped) + 1, value=len(mapped))],
        before=[returns(Call.SETRESGID, plan.uid, plan.uid, plan.uid),
                returns(Call.SETRESUID, plan.uid, plan.uid, plan.uid)],
        after=[*namespaces.loopback_steps(),
               *(privileges.no_huge_pages_steps() if plan.watched else []),
               Step(Call.UMASK, (0o022,), gives=Gives.SOMETHING),
               *privileges.keeper_steps(),
               *landlock.deny_all_steps(RULESET, plan.landlock.abi),
               returns(Call.WRITE, CHANNEL, Block(ready), len(ready), value=len(ready))])
