"""
The states of a worker, as a table.

Runs in:   the daemon; pure.
A pair that is missing is a bug, in us or in the peer; `leeward.run.states.after` names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class WorkerState(enum.Enum):
    """The life of a worker."""

    MAKING = "making"      # the zygote was asked for a keeper
    SERVING = "serving"    # the keeper is ready for orders
    RETIRING = "retiring"  # its channel is closed; its processes are ending
    GONE = "gone"


class WorkerEvent(enum.Enum):
    READY = "ready"
    RETIRED = "retired"  # by us, or by the keeper's death
    EMPTY = "empty"      # keeper and all runners are gone


WORKER: Mapping[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (WorkerState.MAKING, WorkerEvent.READY): WorkerState.SERVING,
    (WorkerState.MAKING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.SERVING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.RETIRING, WorkerEvent.RETIRED): WorkerState.RETIRING,
    (WorkerState.RETIRING, WorkerEvent.EMPTY): WorkerState.GONE,
}
