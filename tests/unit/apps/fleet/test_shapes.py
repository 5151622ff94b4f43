"""The fleet for asyncio and the blocking one have the same calls, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.aio_open import AsyncFleetSandbox, AsyncFleetSession
from leeward.apps.fleet.fleet import Fleet, FleetSandbox, FleetSession

#: What other modules of the fleet call, and programs don't.
_INNER = {"open", "adopt", "closed", "on_node", "join", "leave", "names", "follow", "place", "opened", "attached",
          "opened_on", "is_over", "table", "up"}


def calls(kind: type, *, own: bool) -> dict[str, list[tuple[str, object]]]:
    """The parameters of each public call, by name; with *own* those alone that the class itself has."""
    names = vars(kind) if own else dir(kind)
    return {name: [(each.name, each.default) for each in inspect.signature(getattr(kind, name)).parameters.values()]
            for name in names if not name.startswith("_") and name not in _INNER and callable(getattr(kind, name))}


@pytest.mark.parametrize(("one", "other"), [(AsyncFleet, Fleet), (AsyncFleetSession, FleetSession)])
def test_both_have_the_same_calls(one: type, other: type):
    assert calls(one, own=True) == calls(other, own=True)


def test_both_sandboxes_have_the_same_calls():
    """But that an id is awaited."""
    assert {*calls(AsyncFleetSandbox, own=False)} - {"id"} == {*calls(FleetSandbox, own=False)}
