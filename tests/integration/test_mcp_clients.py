"""The lines of docs/agents.md that add leeward's tools to programs: typed into the real ones, whose models have them then."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import agent_programs, model_api
from kit.features import ROOT
from kit.live_daemon import LiveDaemon, command, environment

DAEMON = ("--pool-size", "1")

pytestmark = pytest.mark.needs("extra-mcp")

PAGE = (ROOT / "docs/agents.md").read_text()
UVX = ["uvx", "--from", "leeward[mcp]", "leeward", "mcp"]
#: By program: its settings below the home, and the server in these.
PROGRAMS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "claude": (".claude.json", lambda told: next(iter(told["projects"].values()))["mcpServers"]["leeward"]),
    "codex": (".codex/config.toml", lambda told: told["mcp_servers"]["leeward"]),
    "gemini": (".gemini/settings.json", lambda told: told["mcpServers"]["leeward"]),
}
#: How each is told of a model at {url}, and to ask it something.
ASKED: dict[str, tuple[list[str], dict[str, str]]] = {
    "codex": (["exec", "--skip-git-repo-check", "-c", "mcp_servers.leeward.required=true", "-c",
               "mcp_servers.leeward.startup_timeout_sec=100", "-c", 'model="m"', "-c", 'model_provider="here"', "-c",
               'model_providers.here={name="here",wire_api="responses",base_url="{url}/v1",env_key="OPENAI_API_KEY"}',
               "go"], {"OPENAI_API_KEY": "sk-none"}),
    "gemini": (["--yolo", "--skip-trust", "-m", "gemini-2.5-flash", "-p", "go"],
               {"GEMINI_API_KEY": "AIza-none", "GOOGLE_GEMINI_BASE_URL": "{url}"}),
}


def runs(name: str, home: Path, arguments: list[str], socket: Path | None = None, **more: str) -> str:
    """What the program *name* says in a project of *home*; what it starts as uvx is this checkout's command."""
    program = getattr(agent_programs, name)()
    (home / "project").mkdir(exist_ok=True)
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin/uvx").write_text(f"#!/bin/sh\nshift 3\nexec {shlex.join(command())} \"$@\"\n")
    (home / "bin/uvx").chmod(0o755)
    env = environment(socket, HOME=str(home), XDG_CONFIG_HOME="", DISABLE_AUTOUPDATER="1", **more)
    done = subprocess.run([str(program), *arguments], cwd=home / "project", stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=100, check=False, env={**env, "PATH": f"{home}/bin:{env['PATH']}"})
    assert 0 == done.returncode, done
    return done.stdout + done.stderr


def added(name: str, line: str, home: Path) -> dict[str, Any]:
    """What the program *name* has in its settings once *line* was typed."""
    runs(name, home, shlex.split(line)[1:])
    return PROGRAMS[name][1](json.loads(text) if (text := (home / PROGRAMS[name][0]).read_text()).startswith("{")
                             else tomllib.loads(text))


def tools(name: str, home: Path, daemon: LiveDaemon) -> list[str]:
    """What *name* offers a model, asked something there."""
    arguments, env = ASKED[name]
    with model_api.serving(["done"]) as api:
        url = f"http://127.0.0.1:{api.port}"
        runs(name, home, [each.replace("{url}", url) for each in arguments], daemon.socket,
             **{key: value.replace("{url}", url) for key, value in env.items()})
    return api.tools


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(f"agent-{name}")) for name in PROGRAMS])
@pytest.mark.timeout(240)
def test_the_line_for_a_program_is_written_down_as_it_is(tmp_path: Path, daemon: LiveDaemon, name: str) -> None:
    """
    And then it connects, and its model has the tools. Claude Code asks a model before it has connected. Gemini CLI's is
    asked in the long form: its start takes the longest.
    """
    line = re.search(rf"^    ({name} mcp add leeward.*|{name} mcp add -s user leeward.*)$", PAGE, re.MULTILINE)
    assert line is not None
    if name == "gemini":
        (tmp_path / ".gemini").mkdir()
        (tmp_path / ".gemini/settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    found = added(name, line[1], tmp_path)
    assert UVX == [found["command"], *found["args"]]
    if name == "claude":
        assert re.search("leeward: .*Connected", runs(name, tmp_path, ["mcp", "list"], daemon.socket))
    elif name != "gemini" or os.environ.get("LEEWARD_LONG"):
        names = tools(name, tmp_path, daemon)
        assert any(each.endswith("run_python") for each in names), names


@pytest.mark.needs("agent-claude")
@pytest.mark.parametrize("page", ["serve", "other-systems"])
def test_the_line_for_a_server_by_http_is_written_down_as_it_is(tmp_path: Path, page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    line = re.search(r"^    (claude mcp add --transport http leeward (\S+) --header .*)$", text, re.MULTILINE)
    assert line is not None
    found = added("claude", line[1], tmp_path)
    assert {"type": "http", "url": line[2], "headers": {"Authorization": "Bearer e2b_..."}} == found


@pytest.mark.needs("agent-opencode")
def test_opencode_connects_by_the_line_of_its_settings(tmp_path: Path, daemon: LiveDaemon) -> None:
    folder = tmp_path / ".config/opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(settings()[0])
    assert re.search("leeward.*connected", runs("opencode", tmp_path, ["mcp", "list"], daemon.socket))


def settings() -> list[str]:
    block = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def test_each_settings_file_names_the_same_command() -> None:
    opencode, cursor, code = map(json.loads, settings())

    assert UVX == opencode["mcp"]["leeward"]["command"]
    for server in (cursor["mcpServers"]["leeward"], code["servers"]["leeward"]):
        assert UVX == [server["command"], *server["args"]]


def test_what_they_start_has_the_tools(daemon: LiveDaemon) -> None:
    """The command behind uvx's options, by the protocol's first messages."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [{"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
             {"id": 2, "method": "tools/list"}]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*UVX[4:]), env=environment(daemon.socket), **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in asked))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()

    assert {"run_shell", "run_python"} <= {tool["name"] for tool in answers[1]["result"]["tools"]}
