"""
The states of a runner and of a worker, as tables; and the step that every such table takes.

Runs in:   the daemon; pure.
A pair that is missing is a bug, in us or in the peer, and the exception names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from leeward.errors import Bug

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from typing import TypeVar

    State = TypeVar("State", bound=enum.Enum)
    Event = TypeVar("Event", bound=enum.Enum)


class RunnerState(enum.Enum):
    """
    The life of a runner.
    """

    ARMING = "arming"    # asked for; not yet cloned, or on its way to the last lock
    ARMED = "armed"      # locked, checked, parked on its job pipe
    RUNNING = "running"  # has the code of a job
    ENDING = "ending"    # killed, or its keeper is; processes may be left
    GONE = "gone"        # none is left


class RunnerEvent(enum.Enum):
    READY = "ready"    # the self-check passed
    LEASED = "leased"  # a job's code was written
    ENDED = "ended"    # it was told to end, by us or by its keeper's death
    EMPTY = "empty"    # its init is gone


RUNNER: Mapping[tuple[RunnerState, RunnerEvent], RunnerState] = {
    (RunnerState.ARMING, RunnerEvent.READY): RunnerState.ARMED,
    (RunnerState.ARMED, RunnerEvent.LEASED): RunnerState.RUNNING,
    (RunnerState.ARMING, RunnerEvent.ENDED): RunnerState.ENDING,
    (RunnerState.ARMED, RunnerEvent.ENDED): RunnerState.ENDING,
    (RunnerState.RUNNING, RunnerEvent.ENDED): RunnerState.ENDING,
    (RunnerState.ENDING, RunnerEvent.ENDED): RunnerState.ENDING,
    (RunnerState.ARMING, RunnerEvent.EMPTY): RunnerState.GONE,
    (RunnerState.ARMED, RunnerEvent.EMPTY): RunnerState.GONE,
    (RunnerState.RUNNING, RunnerEvent.EMPTY): RunnerState.GONE,
    (RunnerState.ENDING, RunnerEvent.EMPTY): RunnerState.GONE,
}


class WorkerState(enum.Enum):
    """
    The life of a worker.
    """

    MAKING = "making"      # the zygote was asked for a keeper
    SERVING = "serving"    # the keeper is ready for orders
    RETIRING = "retiring"  # its channel is closed; its processes are going
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


def after(whose: str, table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """
    The next state.

    Raises:
        Bug: the table has no such pair.
    """
    try:
        return table[state, event]
    except KeyError:
        raise Bug(f"{whose}: {event.value} in state {state.value}") from None
