"""
Escapes from the sandbox of an agent that itself runs outside: by what that agent obeys, and by the program that runs
its lines.

What must hold: a line writes no settings of agents, reads no hidden file, and reaches the daemon by no connection of
the user's.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.box import control
from kit.live_daemon import LiveDaemon
from kit.outside_agents import OutsideAgent, Place
from leeward.client.protecting import AWAY
from leeward.wire.frames import encode

BY_MOUNTS = pytest.mark.no_single_lock("mounts cover it, which no capability and no system call takes away")
BY_CLIENT = pytest.mark.no_single_lock("the program that runs the line keeps its descriptors apart")

pytestmark = pytest.mark.needs("user-namespaces")


#: The program that runs lines, without the descriptors that it keeps: connections to the daemon have the numbers 0 and
#: 1. Otherwise it is a matter of time which connection gets them.
UNKEPT = """
import os, socket, sys
from leeward_cli import shell_prefix
made = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for each in made:
    each.connect(os.environ["LEEWARD_SOCKET"])
assert [0, 1] == [each.fileno() for each in made]
shell_prefix.keep_standard_descriptors = lambda: None
sys.exit(shell_prefix.main())
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="lw-outside-") as folder, LiveDaemon(Path(folder)) as made:
        yield made


@pytest.fixture
def place(daemon: LiveDaemon, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, daemon)
    yield made
    for row in leeward.Sandbox.list(socket=daemon.socket):
        leeward.Sandbox.attach(row["sandbox"], socket=daemon.socket).close()


@pytest.fixture
def agent(place: Place) -> Iterator[OutsideAgent]:
    made = OutsideAgent(place)
    yield made
    made.kill()


def host(place: Place, line: str) -> None:
    subprocess.run(["sh", "-c", line], cwd=place.project, check=True, capture_output=True)


@pytest.mark.parametrize(("attack", "name"), [
    ("mkdir -p .claude; echo '{}' >.claude/settings.local.json", ".claude/settings.local.json"),
    ("rm -rf .claude; mkdir -p new; echo '{}' >new/settings.json; mv new .claude", ".claude/settings.json"),
    ("mv .claude old || true; ln -sfn sub .claude; echo '{}' >sub/settings.json", ".claude/settings.json"),
    ("mkdir -p .codex; echo >.codex/config.toml", ".codex/config.toml"),
    ("echo '{\"mcpServers\": {}}' >.mcp.json", ".mcp.json"),
])
@BY_MOUNTS
def test_c388_cannot_write_the_settings_of_the_agent_outside(place: Place, agent: OutsideAgent, attack: str,
                                                              name: str) -> None:
    """
    Claude Code takes CLAUDE_CODE_SHELL_PREFIX, and commands of hooks, from `.claude/settings.local.json`: its next
    session would run lines on the host.
    """
    if ".mcp.json" == name:
        (place.project / name).write_text("kept")
    agent.line(attack)
    assert not (place.project / name).exists() or "kept" == (place.project / name).read_text()
    with control():
        for folder in (".claude", ".codex"):
            if (place.project / folder).exists():
                (place.project / folder).rmdir()
        host(place, attack)
        assert (place.project / name).exists()
        assert "kept" != (place.project / name).read_text()


@BY_MOUNTS
def test_c388_cannot_have_settings_behind_a_link(place: Place, agent: OutsideAgent) -> None:
    """A link can't be protected: nothing runs."""
    (place.project / ".claude").symlink_to("sub")
    code, out, err, _ = agent.line("echo ran; echo >sub/settings.json")
    assert (126, "") == (code, out)
    assert "'.claude' is a link" in err
    assert not (place.project / "sub/settings.json").exists()
    with control():
        (place.project / ".claude").unlink()
        assert "ran\n" == agent.line("echo ran")[1]


@pytest.mark.parametrize("attack", [
    "echo evil >.envrc", "mkdir -p sub/.vscode; echo evil >sub/.vscode/tasks.json", "echo evil >.git/config",
    "git init -q sub; echo evil >sub/.git/config", "mkdir -p x/objects x/refs; echo evil >x/config; echo evil >x/HEAD",
    "echo evil >opencode.json", "mkdir -p .github/hooks; echo evil >.github/hooks/x.json",
])
@BY_CLIENT
def test_c425_cannot_have_the_host_run_what_a_line_writes(place: Place, agent: OutsideAgent, attack: str) -> None:
    """In the line, and by a process that it leaves behind, which the next line's end finds."""
    def evil() -> list[Path]:
        found = [path for path in place.project.rglob("*") if path.is_file() and path.read_text() == "evil\n"
                 and not any(part.startswith(AWAY) for part in path.parts)]
        return found if "x/HEAD" not in attack or (place.project / "x/HEAD").exists() else []

    host(place, "git init -q .")
    agent.line("true")
    agent.line(attack)
    assert [] == evil()
    agent.line(f"(until [ -e go ]; do sleep 0.05; done; {attack}; echo >done) >/dev/null 2>&1 &")
    (place.project / "go").touch()
    agent.line("until [ -e done ]; do sleep 0.05; done")
    assert [] == evil()
    with control():
        host(place, attack)
        assert evil()


@pytest.mark.smoke
@BY_MOUNTS
def test_c389_cannot_read_a_hidden_file_that_appears_between_lines(place: Place, agent: OutsideAgent) -> None:
    """Nothing covers names between two lines, so the next one's program does before it starts it."""
    token = secrets.token_hex(16)
    agent.line("true")
    (place.project / ".env.late").write_text(token)
    (place.project / ".env").unlink()
    (place.project / ".env").write_text(token)  # as an editor on the host replaces it
    attack = "cat .env .env.late; ln .env.late a; cat a; mv .env.late b; cat b; cp .env c; cat c"

    _, out, err, _ = agent.line(attack)
    assert token not in out + err
    with control():
        (place.project / "shown").write_text(token)
        assert token in agent.line("cat shown")[1]


@BY_CLIENT
def test_c390_cannot_send_a_request_of_the_users_by_its_output(place: Place) -> None:
    """
    The program that runs a line was started with standard output closed. A connection to the daemon that it makes would
    get that number, and the line's output would be requests with the user's rights.
    """
    title = secrets.token_hex(8)
    frame = encode({"v": 1, "id": 1 << 20, "op": "sandbox_open", "metadata": {"title": title}})
    (place.project / "frame").write_bytes(frame)
    attack = 'for i in 1 2 3 4 5 6 7 8; do sleep 0.1; cat frame; done; sleep 0.5'

    def opened() -> bool:
        return any(title == row["metadata"].get("title") for row in leeward.Sandbox.list(socket=place.daemon.socket))

    place.shell('"$1" "$2" <&- >&-', attack)
    assert not opened()
    with control():
        unkept = place.home / "unkept"
        unkept.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c {shlex.quote(UNKEPT)} \"$@\"\n")
        unkept.chmod(0o755)
        place.shell(f'{shlex.quote(str(unkept))} "$2" <&- >&-', attack)
        assert opened()
