"""
The states of a runner, as a table, and the function that looks up a transition in any such table.

Runs in:   the daemon; pure.
A pair that is missing is a bug, in us or in the peer, and the exception names it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from leeward.errors import Bug

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

    __hash__ = object.__hash__  # Enum's own is a call of Python's for each look into a table


class RunnerEvent(enum.Enum):
    READY = "ready"    # the self-check passed
    LEASED = "leased"  # a job's code was written
    ENDED = "ended"    # it was told to end, by us or by its keeper's death
    EMPTY = "empty"    # its init is gone

    __hash__ = object.__hash__


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


class ProcessState(enum.Enum):
    """
    The life of one process of a live runner.
    """

    STARTING = "starting"  # its keeper was asked for it
    RUNNING = "running"    # it is its program
    DRAINING = "draining"  # it has ended; its output is taken to the end
    LEFT = "left"          # that is told; descendants of it may live on
    GONE = "gone"          # none does, or nobody knows of any


class ProcessEvent(enum.Enum):
    STARTED = "started"
    EXITED = "exited"    # or never was: its keeper said so
    DRAINED = "drained"  # its output is at its end, or the time for it is
    EMPTY = "empty"      # no descendant of it is left
    LOST = "lost"        # its runner is


PROCESS: Mapping[tuple[ProcessState, ProcessEvent], ProcessState] = {
    (ProcessState.STARTING, ProcessEvent.STARTED): ProcessState.RUNNING,
    (ProcessState.STARTING, ProcessEvent.EXITED): ProcessState.DRAINING,
    (ProcessState.RUNNING, ProcessEvent.EXITED): ProcessState.DRAINING,
    (ProcessState.DRAINING, ProcessEvent.DRAINED): ProcessState.LEFT,
    (ProcessState.LEFT, ProcessEvent.EMPTY): ProcessState.GONE,
    (ProcessState.STARTING, ProcessEvent.LOST): ProcessState.GONE,
    (ProcessState.RUNNING, ProcessEvent.LOST): ProcessState.GONE,
    (ProcessState.DRAINING, ProcessEvent.LOST): ProcessState.GONE,
    (ProcessState.LEFT, ProcessEvent.LOST): ProcessState.GONE,
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
