"""Whose sandbox a call of MCP gets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from leeward.apps.serve.tokens import ServeTenant

pytestmark = pytest.mark.needs("extra-serve", "extra-mcp")

OLD, NEW = "2025-11-25", "2026-07-28"


@pytest.fixture
def server(monkeypatch):
    """The server of a tenant, which knows two sandboxes at most."""
    from leeward.apps.serve import mcp_face
    from leeward.apps.serve.calls import Use

    monkeypatch.setattr(mcp_face, "MOST_KNOWN", 2)

    def made(tenant=ServeTenant("one", "1")):  # noqa: B008
        call = SimpleNamespace(tenant=tenant, use=Use())
        return mcp_face.TenantServer(None, None, None, call)

    return made


def told(version, session=""):
    return SimpleNamespace(protocol_version=version, request=SimpleNamespace(headers={"mcp-session-id": session}))


def of(server, *calls):
    """The answering objects of calls, each by its version, session and name."""
    async def run():
        return [await server._of(told(version, session), name) for version, session, name in calls]

    return asyncio.run(run())


def test_a_session_has_one_and_a_token_has_one_by_each_name(server):
    one, again, other = of(server(), (OLD, "s1", ""), (OLD, "s1", ""), (OLD, "s2", ""))
    assert one is again is not other
    own, named, repeated = of(server(), (NEW, "", ""), (NEW, "", "n"), (NEW, "", "n"))
    assert own is not named is repeated


@pytest.mark.parametrize(("version", "name", "anybody"), [
    (OLD, "n", False), (NEW, "", True), (NEW, "../x", False), (NEW, "x" * 65, False), (NEW, "/", False), (NEW, "a b", True)])
def test_who_has_no_token_names_a_sandbox_and_a_name_is_one(server, version, name, anybody):
    from mcp.shared.exceptions import MCPError

    from leeward.apps.serve.door import ANYBODY

    with pytest.raises(MCPError):
        of(server(ANYBODY) if anybody else server(), (version, "s", name))


def test_what_was_used_long_ago_is_closed(server):
    closed = list[int]()
    found = server()

    async def run():
        for name in ("a", "b", "c"):
            tools = await found._of(told(NEW), name)
            tools.tools.close = lambda name=name: closed.append(name)

    asyncio.run(run())
    assert ["a"] == closed
    assert ["name b", "name c"] == list(found._known)
