"""`leeward serve mcp`: as the protocol's own clients of both wires see it, its conformance suite, and a hostile one."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import mcp_fixtures, runs
from kit.features import ROOT, node24
from kit.live_daemon import PATIENCE
from kit.loopback import free_port
from kit.served import Served
from kit.waiting import poll_until
from leeward.apps.serve.tokens import TokenFile

pytestmark = [pytest.mark.needs("extra-serve", "extra-mcp"), pytest.mark.usefixtures("all_ended")]

#: The first is of the wire with sessions, the second of that without.
WIRES = ["legacy", "auto"]

DAEMON = ("--pool-size", "1")
#: Where the checks of MCP are.
CLIENT = ROOT / ".venv-client-mcp"


@pytest.fixture(scope="module")
def door(daemon, tmp_path_factory):
    with Served(daemon.socket, tmp_path_factory.mktemp("serve"), "mcp") as found:
        yield found


@pytest.fixture
def served(door, request):
    """The server, with a token for this test."""
    found = copy.copy(door)
    found.token = found.new_tenant(f"t{abs(hash(request.node.name))}")
    return found


@asynccontextmanager
async def connected(served: Served, wire: str, token: str = "") -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token or served.token}"}
    async with (httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
                Client(streamable_http_client(f"{served.url}/mcp", http_client=http), mode=wire) as client):
        yield client


def with_client(test: Callable[[Any], Awaitable[None]], served: Served, wire: str) -> None:
    import anyio

    async def run() -> None:
        async with connected(served, wire) as client:
            await test(client)

    anyio.run(run)


async def said(client: Any, tool: str, **arguments: str) -> str:
    return (await client.call_tool(tool, arguments)).content[0].text


async def completed(client: Any, begins: str, argument: str = "path") -> list[str]:
    from mcp_types import ResourceTemplateReference

    reference = ResourceTemplateReference(uri="sandbox:///{+path}")
    return (await client.complete(reference, {"name": argument, "value": begins})).completion.values


def open_boxes(served: Served) -> list[str]:
    """The sandboxes of the tenant, by their ids."""
    found = TokenFile(str(served.tokens))
    found.look()
    owner = found.find(served.token)
    assert owner is not None
    rows = leeward.Sandbox.list(socket=served.socket)
    return [row["sandbox"] for row in rows if owner.id == row["metadata"]["serve.tenant"]]


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_gets_a_sandbox_as_tools(served, wire):
    async def test(client: Any) -> None:
        assert {"run_shell", "run_python"} <= {tool.name for tool in (await client.list_tools()).tools}
        assert [] == (await client.list_resources()).resources
        assert "42" == await said(client, "run_python", code="x = 42\nx")
        told = list[float]()

        async def on_progress(seconds: float, total: float | None, message: str | None) -> None:
            told.append(seconds)

        await client.call_tool("run_shell", {"command": "echo text > a.txt; sleep 2.5"}, progress_callback=on_progress)
        assert 2 == len(told)
        (resource,) = (await client.list_resources()).resources
        assert ("a.txt", "text/plain", 5) == (resource.name, resource.mime_type, resource.size)
        assert "text\n" == (await client.read_resource(resource.uri)).contents[0].text
        shown = await client.call_tool("run_python", {
            "code": "class A:\n    def _repr_png_(self):\n        return b'\\x89PNG'\nA()"})
        assert ["text", "image"] == [each.type for each in shown.content]
        await said(client, "run_shell", command="mkdir sub; printf RIFF > sub/a.wav; printf 'a\\000\\377' > sub/b")
        (about, sound) = (await client.call_tool("read_file", {"path": "sub/a.wav"})).content
        assert ("[Sound]", "audio/wav") == (about.text, sound.mime_type)
        (about, file) = (await client.call_tool("read_file", {"path": "sub/b"})).content
        assert ("[Bytes: 3]", "YQD/") == (about.text, file.resource.blob)
        assert file.resource == (await client.read_resource(file.resource.uri)).contents[0]
        assert ["workspace/sub/"] == await completed(client, "workspace/s")
        assert ["/workspace/sub/a.wav"] == await completed(client, "/workspace/sub/a")
        assert [] == await completed(client, "none/x") == await completed(client, "workspace/s", argument="other")

    with_client(test, served, wire)
    runs.record_package("mcp", "mcp", Path(sys.prefix), passed=1)


def test_a_session_has_a_sandbox_that_ends_with_it(served):
    import anyio

    async def test() -> None:
        async with connected(served, "legacy") as one, connected(served, "legacy") as other:
            await said(one, "run_python", code="x = 42")
            assert "NameError" in await said(other, "run_python", code="x")
            assert 2 == len(open_boxes(served))
        await anyio.to_thread.run_sync(poll_until, lambda: not open_boxes(served), "the end of the sandboxes")

    anyio.run(test)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_sessions_sandboxes_end_with_the_server(daemon, tmp_path, number, status):
    """Else they would stay for half an hour, and nobody could use them."""
    with Served(daemon.socket, tmp_path, "mcp") as served:
        session = begun(served)
        assert 200 == rpc(served, "tools/call", session=session, name="run_shell", arguments={"command": "true"})[0]
        assert 1 == len(open_boxes(served))
        os.killpg(served.process.pid, number)
        assert status == served.process.wait(PATIENCE)
        assert [] == open_boxes(served)


def test_without_sessions_a_sandbox_is_its_tokens_and_has_names(daemon, tmp_path):
    import anyio

    async def test(served: Served, two: str) -> None:
        async with (connected(served, "auto") as one, connected(served, "auto") as again,
                    connected(served, "auto", two) as other):
            await said(one, "run_python", code="x = 42")
            assert "42" == await said(again, "run_python", code="x")
            assert "NameError" in await said(other, "run_python", code="x")
            assert "NameError" in await said(one, "run_python", code="x", sandbox="second")
            await said(other, "run_shell", command="echo theirs > f", sandbox="second")
            assert "FileNotFoundError" in await said(one, "read_file", path="f", sandbox="second")
            assert "theirs\n" == (await other.read_resource("sandbox://second/workspace/f")).contents[0].text
            assert 2 == len(open_boxes(served))
            with pytest.raises(Exception, match="at most 64 letters"):
                await said(one, "run_shell", command="true", sandbox="../x")

    async def afterwards(client: Any) -> None:
        assert "kept\n" == await said(client, "read_file", path="f")
        assert 2 == len(open_boxes(served))

    with Served(daemon.socket, tmp_path, "mcp") as served:
        anyio.run(test, served, served.new_tenant("two"))
        with_client(lambda client: said(client, "write_file", path="f", content="kept\n"), served, "auto")
    with served.again() as served:
        with_client(afterwards, served, "auto")


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_is_cancelled(served, wire):
    import anyio

    async def test(client: Any) -> None:
        await said(client, "run_shell", command="true")
        def running() -> bool:
            box = leeward.Sandbox.attach(open_boxes(served)[0], socket=served.socket)
            try:
                return any(not row.get("over") for row in box.processes())
            finally:
                box.detach()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "run_shell", {"command": "exec sleep 300"})
                await anyio.to_thread.run_sync(poll_until, running, "the process")
                scope.cancel()
        await anyio.to_thread.run_sync(poll_until, lambda: not running(), "the end of the process")
        assert "1" == await said(client, "run_python", code="1")

    with_client(test, served, wire)


def rpc(served: Served, method: str, token: str | None = None, session: str = "", **params: Any) -> tuple[int, Any, str]:
    """The status, the message and the session of an answer on the wire with sessions."""
    headers = {"Content_Type": "application/json", "Accept": "application/json, text/event-stream",
               **({"Mcp_Session_Id": session} if session else {})}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with served.asked("POST", "/mcp", body, token, **headers) as answer:
        content = answer.read().decode()
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: {")] or [content]
        return answer.status, json.loads(lines[0]) if lines[0] else None, answer.headers.get("mcp-session-id", "")


def begun(served: Served, token: str | None = None) -> str:
    status, _, session = rpc(served, "initialize", token, protocolVersion="2025-11-25", capabilities={},
                             clientInfo={"name": "x", "version": "1"})
    assert 200 == status
    return session


def test_a_session_is_its_tokens_alone(served):
    other, mine = served.new_tenant("other"), begun(served)
    assert 404 == rpc(served, "tools/list", other, mine)[0]
    assert 401 == rpc(served, "tools/list", "e2b_wrong", mine)[0]
    assert 401 == rpc(served, "tools/list", "", mine)[0]
    with served.asked("DELETE", "/mcp", token=other, Mcp_Session_Id=mine) as answer:
        assert 404 == answer.status
    assert 200 == rpc(served, "tools/list", None, mine)[0]


def test_sessions_of_a_token_that_was_revoked_are_over(served):
    token = served.new_tenant("gone")
    session = begun(served, token)
    assert TokenFile(str(served.tokens)).revoke("gone")

    def over() -> bool:
        with contextlib.suppress(http.client.IncompleteRead):  # a call that was under way
            return 401 == rpc(served, "tools/list", token, session)[0]
        return False

    poll_until(over, "the token's end")


def test_sandboxes_and_sessions_are_bounded_by_tenant(served):
    few = served.new_tenant("few", sandboxes=1)
    first, second = begun(served, few), begun(served, few)
    assert not rpc(served, "tools/call", few, first, name="run_shell", arguments={"command": "true"})[1]["result"]["isError"]
    answer = rpc(served, "tools/call", few, second, name="run_shell", arguments={"command": "true"})[1]
    assert "as many as are allowed" in answer["result"]["content"][0]["text"]
    with served.asked("DELETE", "/mcp", token=few, Mcp_Session_Id=first) as ended:
        assert 200 == ended.status
    assert not rpc(served, "tools/call", few, second, name="run_shell", arguments={"command": "true"})[1]["result"]["isError"]
    statuses = [rpc(served, "initialize", few, protocolVersion="2025-11-25", capabilities={},
                    clientInfo={"name": "x", "version": "1"})[0] for _ in range(257)]
    assert 503 == statuses[-1]
    assert 200 == rpc(served, "tools/list", None, begun(served))[0]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"null", b'{"jsonrpc":"2.0","id":1}', b"\xff", b"[" * 5000,
                                  b"{" * 5000, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":[]}}'])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "9999"])
def test_what_is_no_message_is_refused(served, body, version):
    headers = {"Content_Type": "application/json", "Accept": "application/json, text/event-stream",
               "Mcp_Session_Id": begun(served), "Mcp_Protocol_Version": version}
    with served.asked("POST", "/mcp", body, **headers) as answer:
        answer.read()
        assert answer.status < 500


def test_a_sandbox_lasts_no_longer_than_its_tenant_may_have_it(served):
    short = copy.copy(served)
    short.token = served.new_tenant("short", lifetime=40)
    rpc(short, "tools/call", None, begun(short), name="run_shell", arguments={"command": "true"})
    (box,) = open_boxes(short)
    (row,) = (row for row in leeward.Sandbox.list(socket=served.socket) if row["sandbox"] == box)
    assert 0 < row["left"] <= 40


def test_without_its_daemon_a_call_says_so(tmp_path):
    with Served(tmp_path / "none.sock", tmp_path, "mcp") as served:
        answer = rpc(served, "tools/call", None, begun(served), name="run_shell", arguments={"command": "true"})[1]["result"]
    assert answer["isError"]
    assert "no daemon answers" in answer["content"][0]["text"]


def test_who_has_no_token_names_a_sandbox(daemon, tmp_path):
    with Served(daemon.socket, tmp_path, "mcp", "--open") as served:
        served.token = "none"

        async def test(client: Any) -> None:
            with pytest.raises(Exception, match="has to name its sandbox"):
                await said(client, "run_shell", command="true")
            assert "1" == await said(client, "run_python", code="1", sandbox="a-name-that-nobody-guesses")

        with_client(test, served, "auto")


def checks(home: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{node24()}:{os.environ['PATH']}", "HOME": str(home)}
    return subprocess.run([f"{node24()}/node", str(CLIENT / "node_modules" / program), *arguments], env=env,
                          capture_output=True, text=True, timeout=200, check=False)


#: Those that can't pass, as they need what isn't offered: pictures and files in one answer, logs, sampling, elicitation,
#: subscriptions, prompts.
ABSENT = {
    "tools-call-mixed-content", "tools-call-with-logging",
    "logging-set-level", "tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe", "prompts-list", "prompts-get-simple",
    "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image",}


@pytest.mark.needs("client-mcp", "node24")
def test_the_conformance_suite_passes_but_for_what_is_not_offered(daemon, tmp_path):
    place = "127.0.0.1", free_port()
    with (mcp_fixtures.between(place) as url,
          Served(daemon.socket, tmp_path, "mcp", "--open", "--origin", url, "--listen", f"{place[0]}:{place[1]}")):
        done = checks(tmp_path, "@modelcontextprotocol/conformance/dist/index.js", "server", "--url", f"{url}/mcp")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("✓ ", "✗ "))]
    assert ABSENT == {row[1].rstrip(":") for row in rows if row[0] == "✗"}, done.stdout
    assert 16 == sum(row[0] == "✓" for row in rows)
    runs.record_npm("@modelcontextprotocol/conformance", "HTTP", CLIENT, passed=16, of=len(rows))


@pytest.mark.needs("client-mcp", "node24")
def test_the_inspectors_command_line_works(served, tmp_path):
    def inspected(method: str, *arguments: str, token: str = served.token) -> subprocess.CompletedProcess[str]:
        return checks(tmp_path, ".bin/mcp-inspector", "--cli", f"{served.url}/mcp", "--transport", "http", "--method", method,
                      *arguments, "--header", f"Authorization: Bearer {token}")

    assert 6 == len(json.loads(inspected("tools/list", "--strict").stdout)["tools"])
    called = inspected("tools/call", "--tool-name", "run_python", "--tool-arg", "code=6*7")
    assert "42" == json.loads(called.stdout)["content"][0]["text"]
    assert [] == json.loads(inspected("resources/list").stdout)["resources"]
    assert 0 != inspected("tools/list", token="e2b_wrong").returncode
    runs.record_npm("@modelcontextprotocol/inspector", "HTTP", CLIENT, passed=4)


@pytest.mark.needs("client-mcp", "node24")
def test_the_inspectors_command_line_works_on_stdio(daemon, tmp_path):
    """With `leeward mcp`. The conformance suite has no such way: its `server` takes a URL alone."""
    server = str(Path(sys.executable).with_name("leeward"))

    def inspected(method: str, *arguments: str) -> Any:
        done = checks(tmp_path, ".bin/mcp-inspector", "--cli", server, "mcp", "-e", f"LEEWARD_SOCKET={daemon.socket}",
                      "--method", method, *arguments)
        assert 0 == done.returncode, done.stderr
        return json.loads(done.stdout)

    assert {"run_shell", "run_python"} <= {tool["name"] for tool in inspected("tools/list")["tools"]}
    assert "42" == inspected("tools/call", "--tool-name", "run_python", "--tool-arg", "code=6*7")["content"][0]["text"]
    runs.record_npm("@modelcontextprotocol/inspector", "stdio", CLIENT, passed=2)
