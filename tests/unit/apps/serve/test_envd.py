"""Calls about the files and processes of one sandbox."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from leeward.apps.serve.problems import ServeProblem, missing
from leeward.apps.serve.tokens import ServeTenant
from leeward.errors import DaemonError

pytestmark = pytest.mark.needs("extra-serve")


@pytest.mark.parametrize("kept", [True, False])
def test_a_call_whose_connection_was_closed_since_the_sandbox_ended_is_told_that(kept):
    from leeward.apps.serve.calls import ServeCall, Use
    from leeward.apps.serve.e2b.envd import GONE, EnvdFace

    box, one = SimpleNamespace(id="a" * 26), ServeTenant("one", "1")

    async def find(tenant, identity):
        assert (one, box.id) == (tenant, identity)
        raise missing("The sandbox was not found")

    async def handler(call, box):
        raise DaemonError("closed")

    face = EnvdFace(None, SimpleNamespace(has=lambda _: kept, find=find))
    call = ServeCall(SimpleNamespace(state=SimpleNamespace(box=box)), one, Use())
    with pytest.raises(DaemonError if kept else ServeProblem) as raised:
        asyncio.run(face.in_box(handler)(call))
    assert kept or (502, GONE) == (raised.value.status, raised.value.message)
