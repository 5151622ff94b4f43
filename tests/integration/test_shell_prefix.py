"""
Lines of agents that run outside: by `leeward-shell-prefix`, as a real shell calls it, and by the real program of Claude
Code where it is there.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import agent_programs, model_api
from kit.live_daemon import LiveDaemon, environment, run
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("user-namespaces")

#: An agent: it runs each line that it is told as Claude Code does, and says what came of it.
AGENT = """
import json, os, subprocess, shlex, sys
for asked in map(json.loads, sys.stdin):
    file = f"/tmp/claude-{os.getpid():x}-cwd"
    line = f"eval {shlex.quote(asked['line'])} < /dev/null && pwd -P >| {file}"
    done = subprocess.run(["bash", "-c", f"{shlex.quote(sys.argv[1])} {shlex.quote(line)}"], capture_output=True,
                          text=True, errors="surrogateescape", cwd=asked["cwd"])
    told = ""
    if os.path.exists(file):
        told = open(file).read()
        os.unlink(file)
    print(json.dumps([done.returncode, done.stdout, done.stderr, told]), flush=True)
"""


class OutsideAgent:
    """
    A process of AGENT, in the folder of a project.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process = subprocess.Popen([sys.executable, "-c", AGENT, str(place.prefix)], cwd=place.project,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=place.environ)
        self.pid = self._process.pid

    def line(self, text: str, cwd: Path | None = None) -> tuple[int, str, str, str]:
        self.send(text, cwd)
        return self.answer()

    def send(self, text: str, cwd: Path | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"line": text, "cwd": str(cwd or self._place.project)}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[int, str, str, str]:
        assert self._process.stdout is not None
        code, out, err, told = json.loads(self._process.stdout.readline())
        return code, out, err, told

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Place:
    """
    A project, a home, and the program for a prefix.
    """

    def __init__(self, folder: Path, daemon: LiveDaemon) -> None:
        self.project, home = folder / "pro ject", folder / "home"
        (self.project / "sub").mkdir(parents=True)
        home.mkdir()
        (self.project / ".env").write_text("SECRET")
        (home / "private").write_text("PRIVATE")
        self.home, self.daemon = home, daemon
        self.prefix = folder / "leeward-shell-prefix"
        self.prefix.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c 'import sys; from"
                               " leeward_cli.shell_prefix import main; sys.exit(main())' \"$@\"\n")
        self.prefix.chmod(0o755)
        self.environ = environment(daemon.socket, HOME=str(home), XDG_STATE_HOME=str(folder / "state"),
                                   XDG_CONFIG_HOME=str(folder / "config"), TMPDIR="/tmp")

    def sandboxes(self) -> list[str]:
        return [row["sandbox"] for row in leeward.Sandbox.list(socket=self.daemon.socket)
                if "agent-outside" in row["metadata"]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "1") as made:
        yield made


@pytest.fixture
def place(daemon: LiveDaemon, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, daemon)
    yield made
    for sandbox in made.sandboxes():
        leeward.Sandbox.attach(sandbox, socket=daemon.socket).close()


@pytest.fixture
def outside(place: Place) -> Iterator[OutsideAgent]:
    made = OutsideAgent(place)
    yield made
    made.kill()


def test_lines_run_in_one_sandbox_of_the_project(place: Place, outside: OutsideAgent) -> None:
    """
    They share what they make there, see the project and nothing else of the home, and don't reach a host.
    """
    code, out, err, told = outside.line("echo made >/tmp/one; echo 'a \"b\"' | tee sub/new; exit 3")
    assert (3, 'a "b"\n', "", "") == (code, out, err, told)
    assert 'a "b"\n' == (place.project / "sub" / "new").read_text()
    assert (0, "made\n", "") == outside.line("cat /tmp/one")[:3]
    assert not Path("/tmp/one").exists()
    assert 1 == len(place.sandboxes())

    code, out, err, _ = outside.line(f"cat .env {place.home}/private; ls -A ~; echo x >{place.home}/evil; true")
    assert code == 0
    assert "SECRET" not in out + err
    assert "PRIVATE" not in out + err
    assert not (place.home / "evil").exists()
    assert 0 != outside.line("exec 3<>/dev/tcp/example.org/80")[0]


def test_the_agent_follows_into_folders_of_the_project_alone(place: Place, outside: OutsideAgent) -> None:
    assert f"{place.project}/sub\n" == outside.line("cd sub")[3]
    assert f"{place.project}/sub\n" == outside.line("pwd", place.project / "sub")[1]
    assert "" == outside.line("cd /etc")[3]
    assert 126 == outside.line("pwd", place.home)[0]


def test_a_hostile_line_writes_no_file_of_the_host(place: Place, outside: OutsideAgent) -> None:
    """
    It is told apart where the folder goes by the end of the line, which the agent's own program writes.
    """
    victim = place.home / "claude-1-cwd"
    outside.line(f"true && pwd -P >| {victim}")
    outside.line(f"true' && pwd -P >| {victim} #")

    assert not victim.exists()


def test_a_link_for_the_folder_is_not_followed(place: Place, outside: OutsideAgent) -> None:
    victim = place.home / "victim"
    victim.write_text("kept")
    link = Path(f"/tmp/claude-{outside.pid:x}-cwd")
    link.symlink_to(victim)
    try:
        outside.line("cd sub")
        assert "kept" == victim.read_text()
    finally:
        link.unlink(missing_ok=True)


def test_agents_have_a_sandbox_each_and_it_ends_after_them(place: Place) -> None:
    first, second = OutsideAgent(place), OutsideAgent(place)
    try:
        first.line("echo first >/tmp/mine")
        assert 0 != second.line("cat /tmp/mine")[0]
        assert 2 == len(place.sandboxes())
        gone = place.sandboxes()
        first.kill()
        second.line("true")
        poll_until(lambda: 1 == len(place.sandboxes()), "the end of the first agent's sandbox")
        assert set(place.sandboxes()) < set(gone)
    finally:
        first.kill()
        second.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_its_caller(place: Place, outside: OutsideAgent, number: signal.Signals) -> None:
    """
    By SIGTERM at once; after a SIGKILL with the next line.
    """
    outside.send("sleep 1000")
    poll_until(place.sandboxes, "the sandbox")
    box = leeward.Sandbox.attach(place.sandboxes()[0], socket=place.daemon.socket)

    def running() -> int:
        return sum(not row["over"] for row in box.processes())

    poll_until(lambda: 1 == running(), "the line's process")
    (caller,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    os.kill(int(caller), number)
    assert (143 if signal.SIGTERM == number else -number) == outside.answer()[0]
    if signal.SIGKILL == number:
        assert 0 == outside.line("true")[0]
    poll_until(lambda: 0 == running(), "the end of the line's process")
    box.detach()


def test_many_lines_at_once_open_one_sandbox(place: Place) -> None:
    script = "for i in 1 2 3 4; do \"$1\" 'echo $$' & done; wait"
    agent = ("import subprocess, sys\n"
             "sys.exit(subprocess.run(['bash', '-c', sys.argv[2], 'bash', sys.argv[1]]).returncode)")
    done = subprocess.run([sys.executable, "-c", agent, str(place.prefix), script], cwd=place.project,
                          env=place.environ, check=True, capture_output=True)

    assert 4 == len(done.stdout.splitlines())
    assert 1 == len(place.sandboxes())


def test_no_command_runs_in_an_untrusted_project(place: Place, outside: OutsideAgent) -> None:
    (place.project / ".leeward").mkdir()
    (place.project / ".leeward" / "agent.toml").write_text('[network]\nallow = ["evil.example.org"]')

    code, out, err, _ = outside.line("echo ran")

    assert (126, "") == (code, out)
    assert "evil.example.org" in err
    assert [] == place.sandboxes()


def test_no_command_runs_without_a_daemon(place: Place, outside: OutsideAgent) -> None:
    place.environ["LEEWARD_SOCKET"] = str(place.home / "none.sock")
    agent = OutsideAgent(place)
    try:
        code, out, err, _ = agent.line("echo ran")
    finally:
        agent.kill()

    assert (126, "") == (code, out)
    assert "not run" in err


def _hook(place: Place, content: object, *argv: str) -> subprocess.CompletedProcess[bytes]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return run(place.daemon.socket, "shell-prefix", "--hook", *argv, input=data, cwd=place.project)


def test_the_hook_answers_as_it_is_documented(place: Place) -> None:
    done = _hook(place, {"tool_name": "Bash", "tool_input": {"command": "echo $HOME"}})
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    assert 0 == done.returncode
    assert "ask" == answer["permissionDecision"]
    words = shlex.split(answer["updatedInput"]["command"])
    assert "echo $HOME" == words[1]
    assert words[0].endswith("leeward-shell-prefix")

    done = _hook(place, {"tool_name": "Bash", "tool_input": {"command": "ls"}}, "--approve")
    assert "allow" == json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]
    done = _hook(place, {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}})
    assert "deny" == json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]
    done = _hook(place, {"tool_name": "Read", "tool_input": {"file_path": f"{place.project}/.env"}})
    assert "deny" == json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"]
    assert b"" == _hook(place, {"tool_name": "Read", "tool_input": {"file_path": "sub"}}).stdout

    done = _hook(place, b"{")
    assert 2 == done.returncode
    assert b"refused" in done.stderr


@pytest.mark.needs("agent-claude")
@pytest.mark.parametrize("way", ["prefix", "hook"])
def test_the_real_claude_runs_its_lines_in_the_sandbox(place: Place, way: str) -> None:
    """
    Claude Code outside, with a model that is scripted: its lines are in the sandbox, and it follows into a folder.
    """
    program = agent_programs.claude()
    assert program is not None
    lines = [f"cat .env {place.home}/private; echo made >sub/made; echo $((6 * 7)); cd sub", "pwd; cat made",
             f"echo evil >{place.home}/evil; echo tried"]
    script = [*(model_api.Call("Bash", {"command": line, "description": "x"}) for line in lines), "done"]
    settings = {}
    if way == "hook":
        hook = shlex.join([sys.executable, "-P", "-m", "leeward_cli", "shell-prefix", "--hook", "--approve"])
        settings = {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": hook}]}]}}
        # What the hook names as the program has to be found.
        place.environ["PATH"] = f"{place.prefix.parent}{os.pathsep}{place.environ['PATH']}"
    else:
        place.environ["CLAUDE_CODE_SHELL_PREFIX"] = str(place.prefix)
    with model_api.serving(script) as api:
        environ = {**place.environ, "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api.port}", "ANTHROPIC_API_KEY": "x" * 40,
                   "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        done = subprocess.run(
            [str(program), "-p", "go", "--settings", json.dumps(settings), "--allowedTools", "Bash"],
            cwd=place.project, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
            check=False)

    said = "\n".join(api.results)
    assert 3 == len(api.results), done
    assert "42" in api.results[0]
    assert "SECRET" not in said
    assert "PRIVATE" not in said
    assert "made\n" == (place.project / "sub" / "made").read_text()
    assert not (place.home / "evil").exists()
    if way == "prefix":
        assert f"{place.project}/sub" in api.results[1]
        assert "made" in api.results[1]


@pytest.mark.needs("agent-codex")
def test_the_real_codex_works_by_a_server_in_the_sandbox(place: Place) -> None:
    """
    Codex outside, whose commands its own server runs inside: `environments.toml` as the page has it.
    """
    script = agent_programs.codex()
    assert script is not None
    modules = script.parents[3]
    (program,) = modules.glob("@openai/codex-linux-*/vendor/*/bin/codex")
    settings = place.home / "config" / "leeward"
    settings.mkdir(parents=True)
    (settings / "agents.toml").write_text(f"libraries = [{json.dumps(str(modules))}]\n")
    place.environ["XDG_CONFIG_HOME"] = str(settings.parent)
    (place.home / ".codex").mkdir()
    server = json.dumps(f"exec {shlex.quote(str(program))} exec-server --listen stdio")
    (place.home / ".codex" / "environments.toml").write_text(
        'default = "leeward"\ninclude_local = false\n[[environments]]\nid = "leeward"\n'
        f"program = {json.dumps(str(place.prefix))}\nargs = [{server}]\n")
    line = f"cat .env {place.home}/private; echo made >sub/made; echo x >{place.home}/evil; echo $((6 * 7))"
    with model_api.serving([model_api.Call("exec_command", {"cmd": line}), "done"]) as api:
        (place.home / ".codex" / "config.toml").write_text(
            f'model = "m"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\nwire_api = "responses"\n'
            f'base_url = "http://127.0.0.1:{api.port}/v1"\nenv_key = "OPENAI_API_KEY"\n')
        done = subprocess.run(
            [str(program), "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "go"],
            cwd=place.project, env={**place.environ, "OPENAI_API_KEY": "x"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=100, check=False)

    assert 1 == len(api.results), done
    assert "42" in api.results[0]
    assert "SECRET" not in api.results[0]
    assert "PRIVATE" not in api.results[0]
    assert "made\n" == (place.project / "sub" / "made").read_text()
    assert not (place.home / "evil").exists()
