"""The lines of docs/agents.md that add leeward's tools to programs: typed into the real ones, which write them down."""

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

from kit import agent_programs
from kit.features import ROOT
from kit.live_daemon import LiveDaemon, command, environment

pytestmark = pytest.mark.needs("extra-mcp")

PAGE = (ROOT / "docs/agents.md").read_text()
UVX = ["uvx", "--from", "leeward[mcp]", "leeward", "mcp"]
#: By program: where it is, its settings below the home, and the server in these.
PROGRAMS: dict[str, tuple[Callable[[], Path | None], str, Callable[[str], dict[str, Any]]]] = {
    "claude": (agent_programs.claude, ".claude.json",
               lambda text: next(iter(json.loads(text)["projects"].values()))["mcpServers"]["leeward"]),
    "codex": (agent_programs.codex, ".codex/config.toml", lambda text: tomllib.loads(text)["mcp_servers"]["leeward"]),
    "gemini": (agent_programs.gemini, ".gemini/settings.json", lambda text: json.loads(text)["mcpServers"]["leeward"]),
}


def added(name: str, line: str, home: Path) -> dict[str, Any]:
    """What the program *name* has in its settings once *line* was typed."""
    find, settings, server = PROGRAMS[name]
    program = find()
    assert program is not None
    (home / "project").mkdir()
    done = subprocess.run([str(program), *shlex.split(line)[1:]], cwd=home / "project", stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=100, check=False,
                          env={**os.environ, "HOME": str(home), "DISABLE_AUTOUPDATER": "1"})
    assert 0 == done.returncode, done.stderr
    return server((home / settings).read_text())


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(f"agent-{name}")) for name in PROGRAMS])
def test_the_line_for_a_program_is_written_down_as_it_is(tmp_path: Path, name: str) -> None:
    line = re.search(rf"^    ({name} mcp add leeward.*|{name} mcp add -s user leeward.*)$", PAGE, re.MULTILINE)
    assert line is not None
    found = added(name, line[1], tmp_path)
    assert UVX == [found["command"], *found["args"]]


@pytest.mark.needs("agent-claude")
@pytest.mark.parametrize("page", ["serve", "other-systems"])
def test_the_line_for_a_server_by_http_is_written_down_as_it_is(tmp_path: Path, page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    line = re.search(r"^    (claude mcp add --transport http leeward (\S+) --header .*)$", text, re.MULTILINE)
    assert line is not None
    found = added("claude", line[1], tmp_path)
    assert {"type": "http", "url": line[2], "headers": {"Authorization": "Bearer e2b_..."}} == found


@pytest.mark.needs("agent-opencode")
def test_opencode_connects_by_the_line_of_its_settings(tmp_path: Path) -> None:
    program = agent_programs.opencode()
    assert program is not None
    folder = tmp_path / ".config/opencode"
    folder.mkdir(parents=True)
    written = json.loads(settings()[0])
    written["mcp"]["leeward"]["command"] = command("mcp")
    (folder / "opencode.json").write_text(json.dumps(written))
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        done = subprocess.run([str(program), "mcp", "list"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=100, check=False,
                              env={**environment(daemon.socket), "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""})

    assert re.search("leeward.*connected", done.stdout + done.stderr), done


def settings() -> list[str]:
    block = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def test_each_settings_file_names_the_same_command() -> None:
    opencode, cursor, code = map(json.loads, settings())

    assert UVX == opencode["mcp"]["leeward"]["command"]
    for server in (cursor["mcpServers"]["leeward"], code["servers"]["leeward"]):
        assert UVX == [server["command"], *server["args"]]


def test_what_they_start_has_the_tools(tmp_path: Path) -> None:
    """The command behind uvx's options, by the protocol's first messages."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [{"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
             {"id": 2, "method": "tools/list"}]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (LiveDaemon(tmp_path, "--pool-size", "1") as daemon,
          subprocess.Popen(command(*UVX[4:]), env=environment(daemon.socket), **pipes) as server):
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in asked))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()

    assert {"run_shell", "run_python"} <= {tool["name"] for tool in answers[1]["result"]["tools"]}
