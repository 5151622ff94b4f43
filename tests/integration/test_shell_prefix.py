"""
Lines of agents that run outside: by `leeward-shell-prefix`, as a real shell calls it, and by the real program of Claude
Code where it is there.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import agent_programs, model_api
from kit.live_daemon import LiveDaemon, run
from kit.outside_agents import OutsideAgent, Place
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("user-namespaces")

DAEMON = ("--pool-size", "1")


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
    """They share what they make there, see the project and nothing else of the home, and don't reach a host."""
    own = f"/tmp/{secrets.token_hex(8)}"
    code, out, err, told = outside.line(f"echo made >{own}; echo 'a \"b\"' | tee sub/new; exit 3")
    assert (3, 'a "b"\n', "", "") == (code, out, err, told)
    assert 'a "b"\n' == (place.project / "sub" / "new").read_text()
    assert (0, "made\n", "") == outside.line(f"cat {own}")[:3]
    assert not Path(own).exists()
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
    """It is told apart where the folder goes by the end of the line, which the agent's own program writes."""
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


def test_an_agent_that_goes_to_another_project_has_another_sandbox(place: Place) -> None:
    """Its tools can take it to another folder. A line doesn't run in the first one's folder of the same name then."""
    other = place.project.parent / "other"
    (other / "sub").mkdir(parents=True)
    agent = """
import os, subprocess, sys
def line(text, cwd):
    print(subprocess.run([sys.argv[1], text], cwd=cwd, capture_output=True, text=True).stdout, end="", flush=True)
line("pwd", sys.argv[2] + "/sub")
os.chdir(sys.argv[3])
line("pwd; touch made", sys.argv[3] + "/sub")
os.chdir(sys.argv[2])
line("pwd", sys.argv[2] + "/sub")
"""
    done = subprocess.run([sys.executable, "-c", agent, str(place.prefix), str(place.project), str(other)],
                          cwd=place.project, env=place.environ, capture_output=True, text=True, timeout=100,
                          check=False)

    assert f"{place.project}/sub\n{other}/sub\n{place.project}/sub\n" == done.stdout
    assert (other / "sub/made").exists()
    assert not (place.project / "sub/made").exists()


def test_a_line_ends_sandboxes_that_are_younger_than_its_own(place: Place) -> None:
    first, second = OutsideAgent(place), OutsideAgent(place)
    try:
        first.line("true")
        kept = place.sandboxes()
        second.line("true")
        assert 2 == len(place.sandboxes())
        second.kill()
        first.line("true")
        assert kept == place.sandboxes()
    finally:
        first.kill()
        second.kill()


def test_a_name_to_hide_that_appears_later_is_hidden(place: Place, outside: OutsideAgent) -> None:
    """Before the next line, and while a line runs."""
    assert 0 == outside.line("true")[0]
    (place.project / "sub/.env").write_text("SECRET")
    code, out, err, _ = outside.line("cat sub/.env")
    assert (1, "") == (code, out)
    assert "denied" in err

    outside.send("until [ -e new/.env ]; do sleep 0.1; done; while cat new/.env >/dev/null; do sleep 0.1; done;"
                 " echo hidden")
    (place.project / "new").mkdir()
    (place.project / "new/.env").write_text("SECRET")
    assert (0, "hidden\n") == outside.answer()[:2]


@pytest.mark.parametrize(("script", "out", "err"), [
    ("\"$1\" 'cat; echo read' <&-", "read\n0\n", ""),
    ("\"$1\" 'cat; echo read' 0>/dev/null", "read\n0\n", ""),
    ("\"$1\" 'echo lost; echo told >&2' >&-", "0\n", "told\n"),
    ("\"$1\" 'echo told; echo lost >&2' 2>&-", "told\n0\n", ""),
    ("\"$1\" 'cat; echo lost; echo lost >&2; exit 3' <&- >&- 2>&-", "3\n", ""),
    ("\"$1\" -x", "127\n", "bash: line 1: -x: command not found\n"),
])
def test_a_line_runs_whatever_is_closed(place: Place, script: str, out: str, err: str) -> None:
    done = place.shell(f"{script}; echo $?")

    assert (out, err) == (done.stdout, done.stderr)


def test_descriptors_that_do_not_block_are_waited_for(place: Place) -> None:
    """The program that has made a pipe may have made it so."""
    agent = """
import os, subprocess, sys, threading
(sin, into), (out, sout) = os.pipe(), os.pipe()
os.set_blocking(sin, False)
os.set_blocking(sout, False)
line = subprocess.Popen([sys.argv[1], "head -c 1000000 /dev/zero; cat"], stdin=sin, stdout=sout)
os.close(sout)
os.close(sin)
size = len(os.read(out, 1))
threading.Timer(0.5, lambda: (os.write(into, b"xyz"), os.close(into))).start()
while data := os.read(out, 65536):
    size += len(data)
print(size, line.wait())
"""
    done = subprocess.run([sys.executable, "-c", agent, str(place.prefix)], cwd=place.project, env=place.environ,
                          capture_output=True, text=True, timeout=100, check=False)

    assert ("1000003 0\n", "") == (done.stdout, done.stderr)


def test_a_line_whose_output_is_not_taken_is_ended(place: Place) -> None:
    """126 says that nothing was run, which isn't so here."""
    done = place.shell("\"$1\" yes | head -n 1; echo ${PIPESTATUS[0]}; \"$1\" 'echo x; sleep 1000' >/dev/full; echo $?")

    assert "y\n141\n137\n" == done.stdout
    assert "the line was ended" in done.stderr
    assert "" == place.shell("\"$1\" 'pgrep -l \"yes|sleep\"'").stdout


def test_a_line_that_runs_when_its_sandbox_ends_is_not_called_unrun(place: Place, outside: OutsideAgent) -> None:
    outside.send("echo began >sub/began; sleep 1000")
    poll_until((place.project / "sub/began").exists, "the line")
    leeward.Sandbox.attach(place.sandboxes()[0], socket=place.daemon.socket).close()

    code, out, err, _ = outside.answer()
    assert (137, "") == (code, out)
    assert "the line was ended" in err
    assert (0, "again\n") == outside.line("echo again")[:2]


def test_a_folder_that_was_removed_is_told(place: Place, outside: OutsideAgent) -> None:
    done = place.shell("cd sub; rmdir ../sub; \"$1\" 'echo ran'; echo $?")
    assert "126\n" == done.stdout
    assert "the current folder was removed" in done.stderr

    shutil.rmtree(place.project)
    place.project.mkdir()
    code, out, err, _ = outside.line("echo ran")
    assert (126, "") == (code, out)
    assert "the folder in which the agent was started was removed" in err


def test_a_line_that_is_not_text_is_not_run(place: Place) -> None:
    done = place.shell("\"$1\" $'echo \\xff'; echo $?")

    assert "126\n" == done.stdout
    assert "not run: the line isn't UTF-8" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_its_caller(place: Place, outside: OutsideAgent, number: signal.Signals) -> None:
    """By whatever signal: the line is held by its caller's connection."""
    outside.send("sleep 1000")
    poll_until(place.sandboxes, "the sandbox")
    box = leeward.Sandbox.attach(place.sandboxes()[0], socket=place.daemon.socket)

    def running() -> int:
        return sum(not row["over"] for row in box.processes())

    poll_until(lambda: 1 == running(), "the line's process")
    (caller,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    os.kill(int(caller), number)
    assert (143 if signal.SIGTERM == number else -number) == outside.answer()[0]
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

    for refused in (b"{", {"tool_name": "Write", "tool_input": {"file_path": "\ud800"}},
                    {"tool_name": "Read", "tool_input": {"file_path": "x"}, "cwd": "\0"},
                    {"tool_name": "Write", "tool_input": {"file_path": "x/../" * 100_000 + "../../etc/passwd"}}):
        done = _hook(place, refused)
        assert 2 == done.returncode
        assert b"refused" in done.stderr


def _claude(place: Place, way: str, script: model_api.Script) -> tuple[model_api.ModelApi,
                                                                       subprocess.CompletedProcess[str]]:
    """Run Claude Code with a scripted model; its lines go into the sandbox by the prefix or by the hook."""
    program = agent_programs.claude()
    assert program is not None
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
            [str(program), "-p", "go", "--settings", json.dumps(settings), "--allowedTools", "Bash,Monitor,ToolSearch"],
            cwd=place.project, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
            check=False)
    return api, done


@pytest.mark.needs("agent-claude")
@pytest.mark.parametrize("way", ["prefix", "hook"])
def test_the_real_claude_watches_in_the_sandbox(place: Place, way: str) -> None:
    """Its tool Monitor runs a line of its own in the background."""
    line = f"echo $$ >sub/ran; echo evil >{place.home}/evil; until [ -e sub/over ]; do sleep 0.1; done"
    script = [model_api.Call("ToolSearch", {"query": "select:Monitor", "max_results": 5}),
              model_api.Call("Monitor", {"command": line, "description": "x", "timeout_ms": 60_000,
                                         "persistent": False}),
              model_api.Call("Bash", {"command": "until [ -s sub/ran ]; do sleep 0.1; done; touch sub/over",
                                      "description": "x"}), "done"]
    api, done = _claude(place, way, script)

    assert 3 == len(api.results), done
    assert "started" in api.results[1]
    assert (place.project / "sub/ran").read_text()
    assert not (place.home / "evil").exists()


@pytest.mark.needs("agent-claude")
@pytest.mark.parametrize("way", ["prefix", "hook"])
def test_the_real_claude_runs_its_lines_in_the_sandbox(place: Place, way: str) -> None:
    """Claude Code outside, with a model that is scripted: its lines are in the sandbox, and it follows into a folder."""
    lines = [f"cat .env {place.home}/private; echo made >sub/made; echo $((6 * 7)); cd sub", "pwd; cat made",
             f"echo evil >{place.home}/evil; echo tried"]
    script = [*(model_api.Call("Bash", {"command": line, "description": "x"}) for line in lines), "done"]
    api, done = _claude(place, way, script)

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
    """Codex outside, whose commands its own server runs inside: `environments.toml` as the page has it."""
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
