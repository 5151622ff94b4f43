"""
The order by which a keeper makes one more process in a runner's namespaces.

Runs in:   the daemon.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from leeward.isolation.cgroup.entry import Entry
from leeward.isolation.namespaces import ENTERED
from leeward.run.runner import Runner
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.isolation.cgroup.nest import GroupNest
    from leeward.worker.keeper import Keeper

#: The entry of a process that joins no group.
_NO_ENTRY = Entry()


def order(runner: Runner, keeper: Keeper, number: int, name: str, kind: control.Kind, five: list[int], *,
          apart: bool) -> GroupNest | None:
    """
    Have *keeper* make the process *number* in a new group called *name*, or, if *apart*, in the keeper's own group.
    Returns the new group; None if there is none.
    """
    leaf, entrances, held = runner.leaf, runner.entrances, runner.held()
    nest = None if apart else leaf.nest(name)
    entry: Entry = _NO_ENTRY if apart else leaf.entry if nest is None else nest.entry
    message = control.Start(number, kind, len(entrances) > len(ENTERED), entry.into >= 0, len(entry.attach),
                            leaf.cpu(), hurried=True, reaper=nest is None and not apart,
                            tasks=held.get(resource.RLIMIT_NPROC, 0),
                            data=0 if control.Kind.PORTER is kind else held.get(resource.RLIMIT_DATA, 0))
    try:
        keeper.send(message, [*entrances, *five, *([entry.into] if entry.into >= 0 else []), *entry.attach])
    except BaseException:
        if nest is not None:
            nest.remove()
        raise
    return nest
