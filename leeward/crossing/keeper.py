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

import gc
import os
from collections.abc import Sequence

from leeward._native import privileges
from leeward._native.keeper import Born, keep
from leeward._native.spawn import Clone
from leeward._native.steps import Step
from leeward.crossing import birth, runner, scout
from leeward.errors import LeewardError
from leeward.inside import main as inside
from leeward.isolation import landlock, mounts
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control

#: What every keeper makes instances of, and its zygote doesn't.
MAKES = (control.Mapped, mounts.Source, Step, birth.Birth, Born)

_RUNNER_NAMESPACES = Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS


def main(channel: Channel, plan: WorkerPlan, pages: Sequence[scout.Range]) -> None:
    """
    Build the template, then serve until the daemon is gone.
    """
    received = channel.receive()
    if received is None:
        return
    assert isinstance(received[0], control.Mapped)
    try:
        ruleset = settle(plan)
        made = birth.of(plan)
    except (LeewardError, OSError) as error:
        channel.send(control.Failed(-1, "mounts", str(error)))
        return
    channel.send(control.Ready({}))
    gc.freeze()  # as the zygote did; what comes next is the job's
    inside.prepare()
    born = keep(channel.fileno(), _RUNNER_NAMESPACES, ruleset=ruleset, filter=plan.init_seccomp,
                way=made.table, ends=birth.ENDS, pages=pages)
    if born is not None:
        runner.main(made, born, rehearse=plan.rehearse and not born.hurried)


def settle(plan: WorkerPlan) -> int:
    """
    Become the keeper: template, loopback, ids, no way back.

    Returns:
        The ruleset of the inits, or -1.
    """
    opened = mounts.sources(plan.view)  # before the host uid changes: they may lie in its home
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, plan.uid)
    mounts.build(plan.view, opened)
    privileges.loopback_up()
    if plan.watched:
        privileges.no_huge_pages()
    os.umask(0o022)
    privileges.drop_bounding()  # inherited by every runner; the keeper's own permitted set stays
    privileges.no_new_privs()
    privileges.set_dumpable(False)
    return landlock.deny_all(plan.landlock.abi)
