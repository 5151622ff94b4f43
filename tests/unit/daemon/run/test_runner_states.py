"""The states of a runner: what may follow what, and that all else is a bug."""

from __future__ import annotations

import itertools

import pytest

from leeward.daemon.run.runner_states import RUNNER, RunnerEvent, RunnerState, after
from leeward.errors import Bug


def test_a_runner_has_one_job_in_its_life():
    state = RunnerState.ARMING
    for event in (RunnerEvent.READY, RunnerEvent.LEASED, RunnerEvent.ENDED, RunnerEvent.EMPTY):
        state = after("runner", RUNNER, state, event)

    assert RunnerState.GONE is state
    assert not any(start is RunnerState.GONE for start, _ in RUNNER)
    assert [RunnerState.ARMED] == [start for start, event in RUNNER if event is RunnerEvent.LEASED]


@pytest.mark.parametrize("pair", [pair for pair in itertools.product(RunnerState, RunnerEvent) if pair not in RUNNER],
                         ids=str)
def test_any_other_pair_of_a_runner_is_a_bug(pair: tuple[RunnerState, RunnerEvent]):
    with pytest.raises(Bug, match=f"runner: {pair[1].value} in state {pair[0].value}"):
        after("runner", RUNNER, *pair)
