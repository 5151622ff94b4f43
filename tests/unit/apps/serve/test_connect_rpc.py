"""Messages of Connect that hold up no other call."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.needs("extra-serve")


async def beside(work):
    """How often another task had its turn while *work* was done."""
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    task = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    turns = 0
    await work
    task.cancel()
    return turns


@pytest.mark.parametrize(("arguments", "has_turns"), [(1000, False), (45_000, True)])
def test_other_calls_go_on_while_a_large_message_is_read(arguments, has_turns):
    """Each argument takes microseconds."""
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b.connect_rpc import MOST_MESSAGE, _parsed

    body = json.dumps({"process": {"cmd": "x", "args": ["x"] * arguments}}).encode()
    assert len(body) < MOST_MESSAGE
    parsed = _parsed(SimpleNamespace(use=Use()), "process.StartRequest", body, True)
    assert has_turns == (asyncio.run(beside(parsed)) > 3)


@pytest.mark.parametrize(("name", "most"), [
    ("process.StartRequest", 256 << 10), ("filesystem.StatRequest", 256 << 10), ("process.SendInputRequest", 8 << 20),
    ("process.StreamInputRequest", 8 << 20)])
def test_input_alone_may_be_large(name, most):
    from leeward.apps.serve.e2b.connect_rpc import most_of

    assert most == most_of(name)


@pytest.mark.parametrize("count", [1, 128, 129, 700])
@pytest.mark.parametrize("is_json", [True, False])
def test_many_entries_are_the_same_answer_as_few_pieces(count, is_json):
    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.e2b.connect_rpc import _written
    from leeward.apps.serve.e2b.messages import written

    row = {"entries": [{"name": f"é{number}", "size": str(number), "mode": 0o644} for number in range(count)]}
    made = asyncio.run(_written(SimpleNamespace(use=Use()), "filesystem.ListDirResponse", row, is_json))
    assert written("filesystem.ListDirResponse", row, is_json) == made
