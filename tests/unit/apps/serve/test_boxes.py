"""What the server keeps of sandboxes."""

from __future__ import annotations

import asyncio

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant

pytestmark = pytest.mark.needs("extra-serve")

ONE, OTHER, ENDED = "a" * 26, "b" * 26, "c" * 26


@pytest.fixture
def boxes(monkeypatch, tmp_path):
    """The sandboxes of a daemon that lists ONE, of tenant 1, and OTHER, of tenant 2. ENDED has ended."""
    from leeward.apps.serve import nodes
    from leeward.apps.serve.door import Door, DoorOptions
    from leeward.apps.serve.e2b import boxes
    from leeward.apps.serve.tokens import TokenFile
    from leeward.errors import SandboxOver

    rows = {ONE: {"serve.tenant": "1", "own.a": "b"}, OTHER: {"serve.tenant": "2"}, "d" * 26: {}}

    class Box:
        detached = False

        def __init__(self, identity):
            self.identity = identity

        @classmethod
        async def attach(cls, identity, **_):
            if identity not in rows:
                raise SandboxOver("gone")
            return cls(identity)

        @staticmethod
        async def list(**_):
            return [{"sandbox": identity, "metadata": metadata} for identity, metadata in rows.items()]

        async def info(self):
            if self.identity not in rows:
                raise SandboxOver("gone", "idle")
            return {"metadata": rows[self.identity]}

        async def detach(self):
            self.detached = True

    monkeypatch.setattr(nodes, "AsyncSandbox", Box)
    return boxes.Boxes(Door(TokenFile(str(tmp_path / "tokens")), DoorOptions())), rows


def found(boxes, tenant, identity):
    """The metadata of a sandbox that a tenant looks for, or the status of the refusal."""
    try:
        box = asyncio.run(boxes.find(None if tenant is None else ServeTenant("x", tenant), identity))
    except ServeProblem as problem:
        return problem.status
    return box.metadata


def test_each_look_up_compares_the_tenant(boxes):
    """Also the second one, which asks the daemon nothing."""
    for _ in range(2):
        assert {"a": "b"} == found(boxes[0], "1", ONE)
        assert 404 == found(boxes[0], "2", ONE)
        assert 404 == found(boxes[0], "", ONE)


@pytest.mark.parametrize("identity", [ENDED, "", "a" * 25, "A" * 26, "a" * 25 + "1", "../" + "a" * 23, "a" * 26 + "\n"])
def test_what_is_no_sandbox_is_unknown(boxes, identity):
    assert 404 == found(boxes[0], None, identity)


def test_a_sandbox_that_no_tenant_has_opened_is_nobodys(boxes):
    assert 404 == found(boxes[0], None, "d" * 26)


def test_a_tenant_sees_its_own_rows(boxes):
    assert [ONE] == [row["sandbox"] for row in asyncio.run(boxes[0].rows(ServeTenant("x", "1")))]


def test_what_has_ended_is_forgotten(boxes):
    """Whatever was kept for it."""
    from leeward.apps.serve.e2b.boxes import Context

    async def run():
        box = await boxes[0].find(None, ONE)
        box.contexts["x"] = Context(None, "/")
        del boxes[1][ONE]
        await boxes[0].ids()
        await asyncio.sleep(0)
        return box.box.detached, list(boxes[0]._kept)

    assert (True, []) == asyncio.run(run())
