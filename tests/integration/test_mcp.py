"""
`leeward mcp`, as the protocol's own client sees it, as a hostile one does, and with the real program of Claude Code
where it is there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import agent_programs, model_api
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.waiting import poll_until
from leeward.base.hints import MISSING

pytestmark = pytest.mark.needs("user-namespaces", "extra-mcp")

DAEMON = ("--pool-size", "1")


@pytest.fixture(autouse=True)
def all_closed(daemon: LiveDaemon) -> Iterator[None]:
    """No server leaves its sandbox."""
    yield
    poll_until(lambda: not boxes(daemon), "the end of the sandboxes")


def boxes(daemon: LiveDaemon) -> list[str]:
    return [row["sandbox"] for row in leeward.Sandbox.list(socket=daemon.socket) if "mcp" in row["metadata"]]


class Client:
    """The SDK's client of one server."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def call(self, tool: str, **arguments: str) -> tuple[str, bool]:
        result = await self.session.call_tool(tool, arguments)
        (content,) = result.content
        return content.text, result.is_error


@asynccontextmanager
async def connected(daemon: LiveDaemon, *argv: str, **env: str) -> AsyncIterator[Client]:
    from mcp import ClientSession, StdioServerParameters, stdio_client

    program, *rest = command("mcp", *argv)
    server = StdioServerParameters(command=program, args=rest, env={**environment(daemon.socket), **env})
    async with stdio_client(server) as (messages, requests), ClientSession(messages, requests) as session:
        await session.initialize()
        yield Client(session)


def with_client(test: Callable[[Client], Awaitable[None]], daemon: LiveDaemon, *argv: str, **env: str) -> None:
    import anyio

    async def run() -> None:
        async with connected(daemon, *argv, **env) as client:
            await test(client)

    anyio.run(run)


async def until(done: Callable[[], object], what: str) -> None:
    import anyio.to_thread

    await anyio.to_thread.run_sync(poll_until, done, what)


def attached(daemon: LiveDaemon) -> leeward.Sandbox:
    (box,) = boxes(daemon)
    return leeward.Sandbox.attach(box, socket=daemon.socket)


def test_a_client_gets_a_sandbox_as_tools(daemon: LiveDaemon) -> None:
    async def test(client: Client) -> None:
        listed = await client.session.list_tools()
        assert "run_shell" in {tool.name for tool in listed.tools}
        assert [] == boxes(daemon)

        assert ("1\n[stderr]:\n2\n[Exit code: 3]", True) == await client.call(
            "run_shell", command="echo 1; echo 2 >&2; exit 3")
        assert ("[No output]", False) == await client.call("run_python", code="x = 41")
        assert ("42\nsaid", False) == await client.call("run_python", code="print('said')\nx + 1")
        assert ("Wrote 5 characters to a/b", False) == await client.call(
            "write_file", path="a/b", content="one\n\u00e9")
        assert ("Edited a/b", False) == await client.call("edit_file", path="a/b", old="one", new="two")
        assert ("two\n\u00e9", False) == await client.call("read_file", path="a/b")
        assert ("a/", False) == await client.call("list_files")
        text, failed = await client.call("run_python", code="1 / 0")
        assert failed
        assert "ZeroDivisionError" in text
        text, failed = await client.call("run_python", code="import a_package_of_nobodys")
        assert f"\n[{MISSING}]\n[Exit code: 1]" in text
        text, failed = await client.call("read_file", path="/etc/shadow")
        assert failed
        assert "FileNotFoundError" in text
        text, _ = await client.call("run_shell", command="head -c 3000000 /dev/zero | tr '\\0' x")
        assert len(text) < 21_000
        assert "characters cut" in text
        assert 1 == len(boxes(daemon))

    with_client(test, daemon)


def test_much_output_costs_no_variables(daemon: LiveDaemon) -> None:
    """It is cut, and the text says so."""
    async def test(client: Client) -> None:
        await client.call("run_python", code="x = 41")
        text, failed = await client.call("run_python", code="print('y' * 3_000_000)\nx += 1")
        shell, shell_failed = await client.call("run_shell", command="yes | head -c 3000000; echo the end; touch done")

        assert (False, False) == (failed, shell_failed)
        for said in (text, shell):
            assert re.search(r"\[Output limit: \d{7} bytes left out\]$", said)
        assert "the end\n" in shell
        assert ("42", False) == await client.call("run_python", code="x")
        assert ("done", False) == await client.call("list_files")

    with_client(test, daemon)


def test_wrong_calls_are_refused(daemon: LiveDaemon) -> None:
    from mcp import MCPError

    async def test(client: Client) -> None:
        for tool, arguments in (("none", {}), ("run_shell", {}), ("run_shell", {"command": 1}),
                                ("run_shell", {"command": "x", "more": "y"})):
            with pytest.raises(MCPError) as caught:
                await client.session.call_tool(tool, arguments)
            assert -32602 == caught.value.code
        assert [] == boxes(daemon)

    with_client(test, daemon)


def test_a_call_is_cancelled_and_others_go_on(daemon: LiveDaemon) -> None:
    """A call of a shell, of Python that runs, of Python that waits for it, and of Python that ignores the interrupt."""
    import anyio

    async def test(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.call, "run_shell", command="touch began; sleep 1000"))
            await client.call("run_shell", command="until [ -e began ]; do sleep 0.1; done")
            group.cancel_scope.cancel()
        box = attached(daemon)
        await until(lambda: all(row["over"] for row in box.processes()), "the end of the command")

        third: list[tuple[str, bool]] = []

        async def later() -> None:
            third.append(await client.call("run_python", code="import os\nos.path.exists('never')"))

        async with anyio.create_task_group() as group, anyio.create_task_group() as cancelled:
            cancelled.start_soon(partial(client.call, "run_python", code="open('began2', 'w')\nwhile True: pass"))
            await until(lambda: box.files.exists("began2"), "the loop")
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(partial(client.call, "run_python", code="open('never', 'w')"))
                group.start_soon(later)
                await client.session.send_ping()  # those are sent meanwhile
                waiting.cancel_scope.cancel()
            await client.session.send_ping()  # the loop ends when that was read, else the other could begin
            cancelled.cancel_scope.cancel()
        assert [("False", False)] == third

        async with anyio.create_task_group() as group:
            group.start_soon(partial(
                client.call, "run_python", code="import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                                   "open('began3', 'w')\nwhile True: pass"))
            await until(lambda: box.files.exists("began3"), "the second loop")
            group.cancel_scope.cancel()
        text, _ = await client.call("run_python", code="1 + 1")
        assert "2" == text or "variables are lost" in text
        assert ("2", False) == await client.call("run_python", code="1 + 1")
        box.detach()

    with_client(test, daemon)


def test_calls_are_bounded(daemon: LiveDaemon) -> None:
    """A cancelled call holds its place until it has ended, and no longer."""
    import anyio
    from mcp import MCPError

    async def test(client: Client) -> None:
        ended = []

        async def call() -> None:
            # No process more for each: the sandbox has a limit of those.
            ended.append(await client.call("run_shell", command="exec 3<>go; echo >>began; read line <&3; echo over"))

        await client.call("run_shell", command="mkfifo go; touch began")
        box = attached(daemon)
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(call)
                for _ in range(15):
                    group.start_soon(call)
                await until(lambda: 16 == len(box.files.read("began")), "the beginning of all calls")
                with pytest.raises(MCPError) as caught:
                    await client.call("run_shell", command="true")
                assert (-32000, "16 calls run already") == (caught.value.code, caught.value.message)
                cancelled.cancel_scope.cancel()
            await until(lambda: 15 == len([row for row in box.processes() if not row["over"]]),
                        "the end of the cancelled call")
            box.run(["/bin/sh", "-c", "exec 3<>go; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo x >&3; done"])
        assert [("over", False)] * 15 == ended
        assert ("again", False) == await client.call("run_shell", command="echo again")
        box.detach()

    with_client(test, daemon)


def test_two_clients_have_a_sandbox_each(daemon: LiveDaemon) -> None:
    async def test(client: Client) -> None:
        await client.call("write_file", path="mine", content="x")
        async with connected(daemon) as other:
            assert ("[Empty folder]", False) == await other.call("list_files")
            assert 2 == len(boxes(daemon))
        await until(lambda: 1 == len(boxes(daemon)), "the end of the other sandbox")
        assert ("mine", False) == await client.call("list_files")

    with_client(test, daemon)


def test_a_sandbox_that_has_ended_is_told_and_another_one_is_opened(daemon: LiveDaemon) -> None:
    async def test(client: Client) -> None:
        await client.call("run_shell", command="touch lost")
        await client.call("run_python", code="x = 1")
        attached(daemon).close()

        text, failed = await client.call("list_files")
        assert failed
        assert "the next call opens a new one" in text
        assert ("[Empty folder]", False) == await client.call("list_files")
        assert (await client.call("run_python", code="x"))[1]

    with_client(test, daemon)


def test_nothing_runs_without_a_daemon(daemon: LiveDaemon, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        text, failed = await client.call("run_shell", command="echo ran")
        assert failed
        assert "no daemon answers" in text

    with_client(test, daemon, LEEWARD_SOCKET=str(tmp_path / "none"))


def test_a_folder_and_limits_are_the_callers(daemon: LiveDaemon, tmp_path: Path,
                                             tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is in a copy of the folder at the end is saved: nobody can ask for it later."""
    async def limited(client: Client) -> None:
        assert ("[Timed out after 1 s]\n[Exit code: 124]", True) == await client.call(
            "run_shell", command="echo made >made; sleep 1000")
        assert "made\n" == (tmp_path / "made").read_text()

    async def overlaid(client: Client) -> None:
        await client.call("run_shell", command="rm made")
        assert ("[Empty folder]", False) == await client.call("list_files")
        assert (tmp_path / "made").exists()

    with_client(limited, daemon, "--workdir", str(tmp_path), "--timeout", "1")
    state = tmp_path_factory.mktemp("state")
    with_client(overlaid, daemon, "--workdir", str(tmp_path), "--overlay", XDG_STATE_HOME=str(state))
    kept, = (state / "leeward/agents/kept").iterdir()
    assert "made\0" == (kept / "deleted").read_text()


class RawClient:
    """A client that can send anything."""

    def __init__(self, daemon: LiveDaemon, **options: Any) -> None:
        self.process = subprocess.Popen(command("mcp"), env=environment(daemon.socket), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, **options)
        self._id = 0

    def raw(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        self._id += 1
        self.raw(json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}).encode())
        return self._id

    def call(self, tool: str, **arguments: str) -> int:
        return self.send("tools/call", name=tool, arguments=arguments)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def initialize(self) -> None:
        self.send("initialize", protocolVersion="2025-06-18", capabilities={},
                  clientInfo={"name": "x", "version": "1"})
        assert "2025-06-18" == self.answer()["result"]["protocolVersion"]
        self.raw(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')


@pytest.fixture
def hostile(daemon: LiveDaemon) -> Iterator[RawClient]:
    made = RawClient(daemon)
    made.initialize()
    yield made
    made.process.communicate(timeout=PATIENCE)  # the end of its input
    assert 0 == made.process.returncode


def test_what_is_no_message_is_passed_over(hostile: RawClient) -> None:
    for line in (b"x", b"\xff", b"[]", b"{}", b"[" * 1_000_000, b"", b"null",
                 b'{"jsonrpc": "2.0", "id": [], "method": "ping"}',
                 b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}',
                 b'{"jsonrpc": "2.0", "method": "none"}', b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
                 b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}}',
                 b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}'):
        hostile.raw(line)
    id = hostile.send("ping")
    assert {"jsonrpc": "2.0", "id": id, "result": {}} == hostile.answer()


def test_a_line_that_is_too_long_is_passed_over_without_being_kept(hostile: RawClient) -> None:
    """256 MiB. The line behind it is read."""
    peak = _peak(hostile.process.pid)
    assert hostile.process.stdin is not None
    for _ in range(256):
        hostile.process.stdin.write(b"x" * (1 << 20))
    hostile.raw(b"")
    id = hostile.send("ping")
    assert id == hostile.answer()["id"]
    assert _peak(hostile.process.pid) - peak < 160 << 20


def _peak(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM:"))


def test_wrong_requests_get_an_error_and_the_next_one_is_read(hostile: RawClient) -> None:
    for method, params, code in (("none", "{}", -32601), ("tools/call", '{"name": [], "arguments": []}', -32602),
                                 ("tools/call", '{"name": "run_shell", "arguments": {"command": []}}', -32602),
                                 ("tools/call", "{}", -32602)):
        hostile.raw(f'{{"jsonrpc": "2.0", "id": "x", "method": "{method}", "params": {params}}}'.encode())
        answer = hostile.answer()
        assert ("x", code) == (answer["id"], answer["error"]["code"])
    hostile.call("run_shell", command="x\0y")
    assert hostile.answer()["result"]["isError"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_closes_the_sandbox(daemon: LiveDaemon, number: signal.Signals) -> None:
    """While a call runs, and the client neither reads nor closes its end."""
    client = RawClient(daemon)
    client.initialize()
    client.call("run_shell", command="sleep 1000")
    poll_until(lambda: boxes(daemon), "the sandbox")

    client.process.send_signal(number)

    assert 128 + number == client.process.wait(PATIENCE)
    assert [] == boxes(daemon)
    client.process.communicate()


def test_the_end_of_the_input_closes_the_sandbox_of_a_call_that_runs(daemon: LiveDaemon) -> None:
    """Even if its Python ignores the interrupt."""
    client = RawClient(daemon)
    client.initialize()
    client.call("run_python", code="import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                                   "open('began', 'w')\nwhile True: pass")
    poll_until(lambda: boxes(daemon), "the sandbox")
    box = attached(daemon)
    poll_until(lambda: box.files.exists("began"), "the loop")
    box.detach()

    output, _ = client.process.communicate(timeout=PATIENCE)

    assert 0 == client.process.returncode
    assert [2] == [json.loads(line)["id"] for line in output.splitlines()]
    assert [] == boxes(daemon)


def test_a_client_that_takes_no_answers_loses_the_sandbox(daemon: LiveDaemon) -> None:
    client = RawClient(daemon, stderr=subprocess.PIPE)
    assert client.process.stdout is not None
    assert client.process.stderr is not None
    client.initialize()
    client.call("list_files")
    assert 2 == client.answer()["id"]
    client.process.stdout.close()

    client.send("ping")

    assert 1 == client.process.wait(PATIENCE)
    assert b"leeward: the client can't be reached: [Errno 32] Broken pipe\n" == client.process.stderr.read()
    assert [] == boxes(daemon)
    assert client.process.stdin is not None
    client.process.stdin.close()
    client.process.stderr.close()


def test_the_missing_extra_is_named(daemon: LiveDaemon, tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('none', name='mcp')\n")
    env = environment(daemon.socket)
    done = subprocess.run(command("mcp"), env={**env, "PYTHONPATH": f"{tmp_path}:{env['PYTHONPATH']}"},
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)

    assert (1, b"", b"leeward: mcp is missing: pip install 'leeward[mcp]'\n") == (
        done.returncode, done.stdout, done.stderr)


def test_the_environment_is_the_one_that_was_named(daemon: LiveDaemon) -> None:
    async def test(client: Client) -> None:
        text, failed = await client.call("run_python", code="1")
        assert failed
        assert "a_missing_one" in text

    with_client(test, daemon, "--environment", "a_missing_one")


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


#: Calls that write what programs on the host run at once.
WRITES = (("run_shell", {"command": "echo evil >.mcp.json"}),
          ("write_file", {"path": ".claude/settings.json", "content": "evil"}),
          ("run_python", {"code": "open('.envrc', 'w').write('evil')"}),
          ("run_shell", {"command": "git config core.fsmonitor evil"}),
          ("run_shell", {"command": "echo evil >.git/hooks/pre-commit"}))


@pytest.mark.no_single_lock("mounts cover what is there, and the client renames what is made elsewhere")
def test_c426_cannot_write_what_the_host_runs_at_once_by_a_tool(daemon: LiveDaemon, tmp_path: Path) -> None:
    """In the folder of `--workdir`; `--no-protect` is the control."""
    project = tmp_path / "project"
    subprocess.run(["git", "init", "-q", project], check=True)
    before = {path: path.read_text() for path in project.rglob("*") if path.is_file()}

    async def held(client: Client) -> None:
        for tool, arguments in WRITES:
            assert (await client.call(tool, **arguments))[1], arguments
        assert ("Wrote 4 characters to src/new.py", False) == await client.call("write_file", path="src/new.py",
                                                                               content="pass")
        assert (".git/\nsrc/", False) == await client.call("list_files")
        text, failed = await client.call("run_shell", command="mkdir -p sub/.vscode; echo evil >sub/.vscode/tasks.json")
        assert failed
        assert "Renamed, since programs on the host would run it at once" in text
        assert "'sub/.vscode'" in text
        assert not (project / "sub/.vscode").exists()

    async def loose(client: Client) -> None:
        for tool, arguments in WRITES:
            assert not (await client.call(tool, **arguments))[1], arguments

    with_client(held, daemon, "--workdir", str(project), HOME=str(tmp_path))
    assert {".git", "src", "sub"} == set(os.listdir(project))
    assert before == {path: path.read_text() for path in before}
    (project / ".claude").mkdir()
    with_client(loose, daemon, "--workdir", str(project), "--no-protect", HOME=str(tmp_path))
    assert "evil" == (project / ".envrc").read_text()
