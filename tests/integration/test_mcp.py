"""
`leeward mcp`, as a client of the protocol sees it, and with the real program of Claude Code where it is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import agent_programs, model_api
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("user-namespaces")


class McpClient:
    """
    A client of one server.
    """

    def __init__(self, daemon: LiveDaemon, *argv: str, **env: str) -> None:
        self.process = subprocess.Popen(command("mcp", *argv), env={**environment(daemon.socket), **env},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._id = 0

    def raw(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        self._id += 1
        self.raw(json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}).encode())
        return self._id

    def start(self, tool: str, **arguments: str) -> int:
        return self.send("tools/call", name=tool, arguments=arguments)

    def cancel(self, id: int) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled",
                             "params": {"requestId": id}}).encode())

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def call(self, tool: str, **arguments: str) -> tuple[str, bool]:
        id = self.start(tool, **arguments)
        answer = self.answer()
        assert id == answer["id"]
        (content,) = answer["result"]["content"]
        return content["text"], answer["result"]["isError"]

    def end(self) -> int:
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "1") as made:
        yield made


@pytest.fixture
def client(daemon: LiveDaemon) -> Iterator[McpClient]:
    made = McpClient(daemon)
    yield made
    made.process.kill()
    made.end()
    for box in boxes(daemon):
        leeward.Sandbox.attach(box, socket=daemon.socket).close()


def boxes(daemon: LiveDaemon) -> list[str]:
    return [row["sandbox"] for row in leeward.Sandbox.list(socket=daemon.socket) if "mcp" in row["metadata"]]


def test_a_client_gets_a_sandbox_as_tools(client: McpClient, daemon: LiveDaemon) -> None:
    client.send("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "x", "version": "1"})
    assert "2025-06-18" == client.answer()["result"]["protocolVersion"]
    client.raw(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    client.send("tools/list")
    assert "run_shell" in {tool["name"] for tool in client.answer()["result"]["tools"]}
    assert [] == boxes(daemon)

    assert ("1\n[stderr]:\n2\n[Exit code: 3]", True) == client.call("run_shell", command="echo 1; echo 2 >&2; exit 3")
    assert ("[No output]", False) == client.call("run_python", code="x = 41")
    assert ("42\nsaid", False) == client.call("run_python", code="print('said')\nx + 1")
    assert ("Wrote 5 characters to a/b", False) == client.call("write_file", path="a/b", content="one\n\u00e9")
    assert ("Edited a/b", False) == client.call("edit_file", path="a/b", old="one", new="two")
    assert ("two\n\u00e9", False) == client.call("read_file", path="a/b")
    assert ("a/", False) == client.call("list_files")
    text, failed = client.call("run_python", code="1 / 0")
    assert failed
    assert "ZeroDivisionError" in text
    text, failed = client.call("read_file", path="/etc/shadow")
    assert failed
    assert "FileNotFoundError" in text
    text, _ = client.call("run_shell", command="head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(text) < 21_000
    assert "characters cut" in text
    assert 1 == len(boxes(daemon))

    assert 0 == client.end()
    assert [] == boxes(daemon)


def test_hostile_messages_are_answered_and_the_next_one_is_read(client: McpClient) -> None:
    hostile = [b"x", b"\xff", b"[]", b"{}", b"[" * 1_000_000, b"x" * (17 << 20),
               b'{"jsonrpc": "2.0", "id": [], "method": "ping"}', b'{"jsonrpc": "2.0", "id": 1, "method": "none"}',
               b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": [], "arguments": []}}']
    for line in hostile:
        client.raw(line)
        assert client.answer()["error"]["code"] in (-32700, -32600, -32601, -32602)
    for line in (b"", b'{"jsonrpc": "2.0", "method": "none"}', b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
                 b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}}'):
        client.raw(line)
    client.start("run_shell", command="\ud800")
    assert client.answer()["result"]["isError"]
    id = client.send("ping")
    assert {"jsonrpc": "2.0", "id": id, "result": {}} == client.answer()


def test_a_call_is_cancelled_and_others_go_on(client: McpClient, daemon: LiveDaemon) -> None:
    """
    A call of a shell, of Python that runs, of Python that waits for it, and of Python that ignores the interrupt.
    """
    shell = client.start("run_shell", command="touch began; sleep 1000")
    client.call("run_shell", command="until [ -e began ]; do sleep 0.1; done")
    client.cancel(shell)
    client.cancel(shell)
    box = leeward.Sandbox.attach(boxes(daemon)[0], socket=daemon.socket)
    poll_until(lambda: all(row["over"] for row in box.processes()), "the end of the command")

    running = client.start("run_python", code="open('began2', 'w')\nwhile True: pass")
    waiting = client.start("run_python", code="open('never', 'w')")
    third = client.start("run_python", code="import os\nos.path.exists('never')")
    poll_until(lambda: box.files.exists("began2"), "the loop")
    client.cancel(waiting)
    client.cancel(running)
    answer = client.answer()
    assert (third, "False") == (answer["id"], answer["result"]["content"][0]["text"])

    ignoring = client.start("run_python", code="import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                            "open('began3', 'w')\nwhile True: pass")
    poll_until(lambda: box.files.exists("began3"), "the second loop")
    client.cancel(ignoring)
    text, _ = client.call("run_python", code="1 + 1")
    assert "2" == text or "variables are lost" in text
    assert ("2", False) == client.call("run_python", code="1 + 1")
    box.detach()


def test_calls_are_bounded(client: McpClient, daemon: LiveDaemon) -> None:
    for _ in range(17):
        client.start("run_shell", command="until [ -e go ]; do sleep 0.1; done")
    answer = client.answer()
    assert (17, -32000) == (answer["id"], answer["error"]["code"])
    client.cancel(1)
    poll_until(lambda: boxes(daemon), "the sandbox")
    with_go = leeward.Sandbox.attach(boxes(daemon)[0], socket=daemon.socket)
    with_go.files.write("go", b"")
    assert set(range(2, 17)) == {client.answer()["id"] for _ in range(15)}
    assert ("again", False) == client.call("run_shell", command="echo again")
    with_go.detach()


def test_two_clients_have_a_sandbox_each(client: McpClient, daemon: LiveDaemon) -> None:
    other = McpClient(daemon)
    client.call("write_file", path="mine", content="x")
    assert ("[Empty folder]", False) == other.call("list_files")
    assert 2 == len(boxes(daemon))
    other.process.send_signal(signal.SIGTERM)
    assert 143 == other.process.wait(PATIENCE)
    assert 1 == len(boxes(daemon))
    assert ("mine", False) == client.call("list_files")
    other.end()


def test_a_sandbox_that_has_ended_is_told_and_another_one_is_opened(client: McpClient, daemon: LiveDaemon) -> None:
    client.call("run_shell", command="touch lost")
    client.call("run_python", code="x = 1")
    leeward.Sandbox.attach(boxes(daemon)[0], socket=daemon.socket).close()

    text, failed = client.call("list_files")
    assert failed
    assert "the next call opens a new one" in text
    assert ("[Empty folder]", False) == client.call("list_files")
    assert client.call("run_python", code="x")[1]


def test_nothing_runs_without_a_daemon(daemon: LiveDaemon, tmp_path: Path) -> None:
    client = McpClient(daemon, LEEWARD_SOCKET=str(tmp_path / "none"))
    text, failed = client.call("run_shell", command="echo ran")
    assert failed
    assert "no daemon answers" in text
    assert 0 == client.end()


def test_a_folder_and_limits_are_the_callers(daemon: LiveDaemon, tmp_path: Path) -> None:
    client = McpClient(daemon, "--workdir", str(tmp_path), "--timeout", "1")
    text, failed = client.call("run_shell", command="echo made >made; sleep 1000")
    assert ("[Timed out after 1 s]\n[Exit code: 124]", True) == (text, failed)
    assert "made\n" == (tmp_path / "made").read_text()
    assert 0 == client.end()
    client = McpClient(daemon, "--workdir", str(tmp_path), "--overlay")
    client.call("run_shell", command="rm made")
    assert (tmp_path / "made").exists()
    assert 0 == client.end()


@pytest.mark.needs("agent-claude")
def test_the_real_claude_has_the_tools(daemon: LiveDaemon, tmp_path: Path) -> None:
    program = agent_programs.claude()
    assert program is not None
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    python, *argv = command("mcp")
    servers = {"mcpServers": {"leeward": {"command": python, "args": argv, "env": environment(daemon.socket)}}}
    script = [model_api.Call("ToolSearch", {"query": "select:mcp__leeward__run_shell", "max_results": 5}),
              model_api.Call("mcp__leeward__run_shell", {"command": f"ls {home} {project}; echo $((6 * 7))"}), "done"]
    with model_api.serving(script) as api:
        done = subprocess.run(
            [str(program), "-p", "go", "--mcp-config", json.dumps(servers), "--strict-mcp-config", "--allowedTools",
             "mcp__leeward__run_shell,ToolSearch"], cwd=project, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=100, check=False, env={
                **os.environ, "HOME": str(home), "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api.port}",
                "ANTHROPIC_API_KEY": "x" * 40, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1"})

    assert 2 == len(api.results), done
    assert "42" in api.results[1]
    assert "No such file" in api.results[1]
    poll_until(lambda: not boxes(daemon), "the end of the sandbox")
