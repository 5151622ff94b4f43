"""The table of a connection: what may follow what, and that all else is a bug."""

from __future__ import annotations

import itertools

import pytest

from leeward.daemon.run.runner_states import after
from leeward.daemon.serving.connection import CONNECTION, LEAVING, SILENT, ConnectionEvent, ConnectionState
from leeward.errors import Bug


def test_a_connection_that_parts_reads_its_first_request_then_the_end_and_closes():
    state = ConnectionState.NEW
    seen = []
    for event in (ConnectionEvent.PART, ConnectionEvent.ASKED, ConnectionEvent.END, ConnectionEvent.CLOSED):
        state = after("connection", CONNECTION, state, event)
        seen.append(state)

    assert [ConnectionState.AWAITED, ConnectionState.PARTING, ConnectionState.ENDED, ConnectionState.CLOSED] == seen


@pytest.mark.parametrize("state", [state for state in ConnectionState if state is not ConnectionState.CLOSED])
def test_a_connection_can_be_closed_in_every_state(state: ConnectionState):
    assert ConnectionState.CLOSED is CONNECTION[state, ConnectionEvent.CLOSED]


def test_no_state_follows_the_end():
    assert not any(start is ConnectionState.CLOSED for start, _ in CONNECTION)


def test_only_a_connection_that_parts_outlives_the_end_of_its_stream():
    """A client that hangs up by itself is not there to read its answers."""
    lives = {start for start, event in CONNECTION if event is ConnectionEvent.END
             and CONNECTION[start, event] is not ConnectionState.CLOSED}

    assert {*LEAVING, ConnectionState.ENDED} == lives


def test_the_first_request_comes_once():
    assert set(SILENT) == {start for start, event in CONNECTION if event is ConnectionEvent.ASKED}
    assert not {CONNECTION[start, ConnectionEvent.ASKED] for start in SILENT} & set(SILENT)


@pytest.mark.parametrize(
    "pair", [pair for pair in itertools.product(ConnectionState, ConnectionEvent) if pair not in CONNECTION], ids=str)
def test_any_other_pair_of_a_connection_is_a_bug(pair: tuple[ConnectionState, ConnectionEvent]):
    with pytest.raises(Bug, match=f"connection: {pair[1].value} in state {pair[0].value}"):
        after("connection", CONNECTION, *pair)
