"""
The plugin for the command `llm`: the real command with the model `echo`, which calls the tools that its prompt names.

It runs in an environment of its own, made by ./dev test. One `llm` makes all calls of a table.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import entry_points, features, packages
from kit.live_daemon import LiveDaemon, environment

pytestmark = pytest.mark.needs("framework-llm")

LLM = features.ROOT / ".venv-framework-llm/bin/llm"

#: What is called, and what is in the answer; a text that begins with "!" is not in it.
SHELL: dict[str, tuple[str, list[str]]] = {
    "ls": ("ls", ["file\nsub"]),
    "pipes": ("printf 'b\\na\\n' | sort | head -1", ["a"]),
    "an exit code": ("exit 3", ["[Exit code: 3]"]),
    "no exit code": ("echo fine", ["fine", "!Exit"]),
    "standard error": ("echo out; echo err >&2", ["out\n[stderr]:\nerr", "!Exit"]),
    "nothing": ("true", ["[No output]"]),
    "no such program": ("no-such-program", ["[stderr]:", "not found", "[Exit code: 127]"]),
    "a syntax error": ("if", ["yntax error", "[Exit code: 2]"]),
    "no network": ("python3 -c 'import socket; socket.socket()' 2>&1", ["PermissionError"]),
    "no socket": ("python3 -c 'import socket; socket.socket(socket.AF_UNIX)' 2>&1", ["PermissionError"]),
    "a read-only root": ("touch /etc/x ./x", ["ead-only file system", "[Exit code: 1]"]),
    "a writable tmp": ("echo kept >/tmp/mine && cat /tmp/mine", ["kept"]),
    "a tmp that is gone": ("ls /tmp | grep -c mine", ["0"]),
    "a signal": ("kill -9 $$", ["[Exit code: 137]"]),
    "big output": ("yes 0123456789 | head -c 200000", ["0123456789", "characters cut]", "!" + "0123456789\n" * 2000]),
    "quoting": ("""printf '%s|' "a b" 'c"d' e\\ f '$HOME'""", ["a b|c\"d|e f|$HOME|"]),
    "unicode": ("echo 'größer 日本 🙂'", ["größer 日本 🙂"]),
    "bytes that are no text": ("printf '\\377x'", ["\ufffdx"]),
    "the current folder": ("pwd; cat file", ["{cwd}\nof the host"]),
    "a secret of the folder": ("cat .env", ["No such file", "!hidden-token"]),
    "a secret of the home": ("cat ~/.netrc ~/.ssh/key", ["No such file", "!hidden-token"]),
    "several lines": ("for i in 1 2 3\ndo echo $i\ndone", ["1\n2\n3"]),
}
BOX: list[tuple[str, dict[str, str], str]] = [
    ("run_python", {"code": "n = 6"}, "[No output]"),
    ("run_python", {"code": "print('out'); n * 7"}, "42\nout"),
    ("run_python", {"code": "1 / 0"}, "ZeroDivisionError"),
    ("write_file", {"path": "a/b.txt", "content": "one\ntwo\n"}, "Wrote 8 characters to a/b.txt"),
    ("edit_file", {"path": "a/b.txt", "old": "two", "new": "three"}, "Edited a/b.txt"),
    ("edit_file", {"path": "a/b.txt", "old": "absent", "new": ""}, "Error: EditError"),
    ("read_file", {"path": "a/b.txt"}, "one\nthree\n"),
    ("read_file", {"path": "missing"}, "Error: FileNotFoundError"),
    ("list_files", {}, "a/"),
    ("search", {"pattern": "^thr"}, "a/b.txt:2: three"),
    ("search", {"pattern": "nowhere"}, "[No matches]"),
    ("run_shell", {"command": "cat a/b.txt; pwd"}, "three\n/workspace"),
    ("run_python", {"code": "import os; os._exit(3)"}, "[Exit code: 3]"),
    ("run_python", {"code": "1 + 1"}, "Error: SessionOver"),
    ("run_python", {"code": "1 + 1"}, "2"),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A home with a project."""
    with tempfile.TemporaryDirectory(prefix="leeward-llm-", dir=packages.outside_tmp()) as made:
        for name, text in (("project/file", "of the host\n"), ("project/.env", "hidden-token"), ("project/sub/x", ""),
                           (".netrc", "hidden-token"), (".ssh/key", "hidden-token")):
            path = Path(made, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o644)
        for folder, _, _ in os.walk(made):
            os.chmod(folder, 0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def llm(place: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the command needs: leeward as pip would have put it there, by the entry points that pyproject.toml has."""
    return [str(entry_points.written(tmp_path_factory.mktemp("llm")))]

DAEMON = ("--pool-size", "2")


def run(llm: list[str], socket: Path, cwd: Path, *words: str) -> str:
    env = environment(socket, HOME=str(cwd.parent), LLM_USER_PATH=f"{llm[0]}/user")
    env["PYTHONPATH"] += f":{llm[0]}"
    done = subprocess.run([LLM, *words], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, timeout=200)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def answers(llm: list[str], socket: Path, cwd: Path, tool: str, calls: list[tuple[str, dict[str, str]]]) -> list[str]:
    prompt = {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
    said = run(llm, socket, cwd, "-m", "echo", "-n", "--no-stream", "-T", tool, json.dumps(prompt))
    decoder, at, found = json.JSONDecoder(), 0, {}
    while at < len(said.rstrip()):
        found, end = decoder.raw_decode(said[at:])
        at += end + len(said[at + end:]) - len(said[at + end:].lstrip())
    return [result["output"] for result in found["tool_results"]]


@pytest.fixture(scope="module")
def shell(llm: list[str], daemon: LiveDaemon, place: Path) -> dict[str, str]:
    calls = [("sandboxed_shell", {"command": command}) for command, _ in SHELL.values()]
    return dict(zip(SHELL, answers(llm, daemon.socket, place / "project", "sandboxed_shell", calls), strict=True))


@pytest.mark.smoke
@pytest.mark.parametrize("case", SHELL)
def test_the_model_runs_a_command_by_sandboxed_shell(shell: dict[str, str], place: Path, case: str) -> None:
    for wanted in SHELL[case][1]:
        text = wanted.removeprefix("!").replace("{cwd}", str(place / "project"))
        assert (text in shell[case]) is not wanted.startswith("!"), shell[case][:500]
    assert len(shell[case]) < 21_000


def test_the_toolbox_has_one_sandbox_for_a_conversation(llm: list[str], daemon: LiveDaemon, place: Path) -> None:
    """One sandbox for all calls of a conversation."""
    got = answers(llm, daemon.socket, place / "project", "Leeward",
                  [(f"Leeward_{name}", arguments) for name, arguments, _ in BOX])
    for (name, _, wanted), answer in zip(BOX, got, strict=True):
        assert wanted in answer, (name, answer)


def test_the_tools_are_listed(llm: list[str], daemon: LiveDaemon, place: Path) -> None:
    listed = run(llm, daemon.socket, place / "project", "tools", "list")
    assert "sandboxed_shell(command: " in listed
    assert all(f"Leeward_{name}(" in listed for name, _, _ in BOX)


def test_failures_are_text(llm: list[str], place: Path, tmp_path: Path) -> None:
    """No daemon; and a time limit, with what was written before."""
    config = tmp_path / "c.toml"
    config.write_text("[limits]\ntime = 1.0\n[ceilings]\ntime = 1.0\n")
    calls = [("sandboxed_shell", {"command": "echo begun; sleep 600"})]
    with LiveDaemon(tmp_path, "--config", str(config)) as short:
        late = answers(llm, short.socket, place / "project", "sandboxed_shell", calls)
    assert ["begun\n[Timed out after 1 s]\n[Exit code: 124]"] == late
    assert answers(llm, short.socket, place / "project", "sandboxed_shell", calls)[0].startswith("Error: DaemonAway")
