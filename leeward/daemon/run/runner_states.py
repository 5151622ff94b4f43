"""The states of runners and processes as tables: a pair of state and event that is missing is a bug."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from leeward.errors import Bug

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)


class RunnerState(enum.Enum):
    ARMING = "arming"    # ordered; not yet cloned, or on its way to the last lock
    ARMED = "armed"      # locked, checked, parked on its job pipe
    RUNNING = "running"  # has the code of a job
    ENDING = "ending"    # the runner or its keeper was killed; processes may be left
    GONE = "gone"        # no process is left

    __hash__ = object.__hash__  # Enum's own hash would be a Python call for each look into a table


class RunnerEvent(enum.Enum):
    READY = "ready"    # the self-check passed
    LEASED = "leased"  # a job's code was written
    ENDED = "ended"    # the daemon has killed the runner, or its keeper has died
    EMPTY = "empty"    # the init is gone

    __hash__ = object.__hash__


RUNNER: Mapping[tuple[RunnerState, RunnerEvent], RunnerState] = {
    (RunnerState.ARMING, RunnerEvent.READY): RunnerState.ARMED,
    (RunnerState.ARMED, RunnerEvent.LEASED): RunnerState.RUNNING,
    **{(state, RunnerEvent.ENDED): RunnerState.ENDING for state in RunnerState if state is not RunnerState.GONE},
    **{(state, RunnerEvent.EMPTY): RunnerState.GONE for state in RunnerState if state is not RunnerState.GONE},
}


class ProcessState(enum.Enum):
    """The life of one process of a live runner."""

    STARTING = "starting"  # the keeper has the order
    RUNNING = "running"    # the process runs its program
    DRAINING = "draining"  # the process has ended; the rest of its output is read
    LEFT = "left"          # the end was reported; descendants may live on
    GONE = "gone"          # no descendant is left, or none is known


class ProcessEvent(enum.Enum):
    STARTED = "started"
    EXITED = "exited"    # the keeper has reported its end, or that it could not be made
    DRAINED = "drained"  # its output was read to the end, or the time for that is over
    EMPTY = "empty"      # no descendant is left
    LOST = "lost"        # its runner has ended


PROCESS: Mapping[tuple[ProcessState, ProcessEvent], ProcessState] = {
    (ProcessState.STARTING, ProcessEvent.STARTED): ProcessState.RUNNING,
    (ProcessState.STARTING, ProcessEvent.EXITED): ProcessState.DRAINING,
    (ProcessState.RUNNING, ProcessEvent.EXITED): ProcessState.DRAINING,
    (ProcessState.DRAINING, ProcessEvent.DRAINED): ProcessState.LEFT,
    (ProcessState.LEFT, ProcessEvent.EMPTY): ProcessState.GONE,
    **{(state, ProcessEvent.LOST): ProcessState.GONE for state in ProcessState if state is not ProcessState.GONE},
}


def after(whose: str, table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """The state after *event* in *state*; Bug, with the name of *whose* machine, if the table has no such pair."""
    try:
        return table[state, event]
    except KeyError:
        raise Bug(f"{whose}: {event.value} in state {state.value}") from None
