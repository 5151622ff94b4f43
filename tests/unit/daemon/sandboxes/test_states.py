"""The tables: nothing leaves the end, and the end can be reached."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import pytest

from leeward.daemon.run.runner_states import after
from leeward.daemon.sandboxes.registry import PROCESS, SANDBOX, Event, Life, Moment, State
from leeward.errors import Bug


@pytest.mark.parametrize(("table", "start", "end"), [(SANDBOX, State.OPENING, State.OVER),
                                                     (PROCESS, Life.STARTING, Life.OVER)])
def test_every_state_leads_to_the_end(table: Mapping[tuple[Any, Any], Any], start: enum.Enum, end: enum.Enum) -> None:
    """And is reached from the start."""
    states = set(type(start))
    assert not [state for state, _ in table if state is end]
    for state in states - {end}:
        reached, todo = {state}, [state]
        while todo:
            here = todo.pop()
            for (before, _), then in table.items():
                if before is here and then not in reached:
                    reached.add(then)
                    todo.append(then)
        assert end in reached
        if state is start:
            assert states == reached


def test_a_pair_that_is_missing_is_a_bug() -> None:
    """Of ours."""
    with pytest.raises(Bug):
        after("sandbox", SANDBOX, State.OVER, Event.OPENED)
    with pytest.raises(Bug):
        after("process", PROCESS, Life.OVER, Moment.ENDED)
