"""`leeward agent`: what makes an agent feel at home, and what it still can't have."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request

import pytest

from kit.agents import AgentHome, agents_daemon

DAEMON_BY = agents_daemon

pytestmark = pytest.mark.needs("user-namespaces")


def test_commits_are_the_persons_and_nothing_else_of_gits_settings_is_there(home: AgentHome) -> None:
    (home.path / ".gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = ada@example.org\n[credential]\n\thelper = !secret\n")
    line = "git init -q && git commit -q --allow-empty -m x && git log --format='%an <%ae>'; git config --global --list"
    got = home.run("start", "sh", ".", "--", "-c", line)
    assert "Ada <ada@example.org>\nuser.name=Ada\nuser.email=ada@example.org\n" == got.stdout, got.stderr
    (home.path / ".gitconfig").unlink()
    assert "" == home.run("start", "sh", ".", "--", "-c", "cat ~/.gitconfig").stdout


def test_what_was_answered_is_not_asked_again_and_reaches_the_host_by_keep_alone(home: AgentHome) -> None:
    home.define("sh", 'command = ["sh"]\nstaged = ["~/.a.json"]\n[[answers]]\nfile = "~/.a.json"\n'
                      'keys = ["theme", "projects.$PROJECT.trusted"]\n')
    file, host = home.path / ".a.json", '{"secret": 1}'
    file.write_text(host)
    said = json.dumps({"theme": "dark", "other": 1, "projects": {str(home.project): {"trusted": True, "more": 1}}})
    assert 0 == home.run("start", "sh", ".", "--", "-c", f"echo '{said}' >~/.a.json").returncode
    kept = {"secret": 1, "theme": "dark", "projects": {str(home.project): {"trusted": True}}}
    assert kept == json.loads(home.run("start", "sh", ".", "--", "-c", "cat ~/.a.json").stdout)
    assert host == file.read_text()

    asked = home.run("keep", "sh", input="n\n")
    assert (1, host) == (asked.returncode, file.read_text())
    assert f'~/.a.json: theme = "dark"\n~/.a.json: projects.{home.project}.trusted = true\n' == asked.stdout
    assert 0 == home.run("keep", "sh", "--yes").returncode
    assert kept == json.loads(file.read_text())
    file.write_text(host)
    assert 0 == home.run("keep", "sh", "--forget").returncode
    assert host == home.run("start", "sh", ".", "--", "-c", "cat ~/.a.json").stdout


def test_a_server_of_the_agents_is_published(home: AgentHome) -> None:
    (home.project / "page").write_text("published")
    server = ("import http.server as h\ns = h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler)\n"
              "print('ready', flush=True)\ns.handle_request()")
    with home.popen("start", "sh", "--publish", "8123", "--", "-c", f'python3 -c "{server}"') as process:
        assert process.stderr is not None
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert found
        assert "ready\n" == process.stdout.readline()
        assert b"published" == urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/page", timeout=20).read()
        process.communicate()
    assert [] == home.left()


def test_the_only_agent_needs_no_name_and_a_command_may_run_in_its_place(home: AgentHome) -> None:
    shutil.rmtree(home.path / "config/leeward/agents")  # that of the tests
    home.settings('[agents.codex]\narguments = ["from settings"]\n')
    folder = home.path / "bin"
    folder.mkdir()
    (folder / "codex").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "codex").chmod(0o755)
    got = home.run("start", "--", "word", PATH=f"{folder}:/usr/bin:/bin")
    assert "--sandbox danger-full-access from settings word\n" == got.stdout, got.stderr
    assert "here\n" == home.run("start", ".", "--debug", "--", "echo", "here", PATH=f"{folder}:/usr/bin:/bin").stdout
    told = home.run("doctor", PATH=f"{folder}:/usr/bin:/bin").stdout
    assert "codex:\nok       program" in told
    assert "claude: isn't installed; curl" in told


def test_the_home_stays_for_the_project(home: AgentHome) -> None:
    """And for no other, nor for a start that doesn't ask for it; what an agent left there is no way out."""
    line = ("mkdir -p ~/.local/bin ~/.config; echo 'echo tool' >~/.local/bin/tool; chmod +x ~/.local/bin/tool;"
            " echo kept >~/any; ln -s / ~/.config/root")
    got = home.run("start", "sh", ".", "--persist", "--", "-c", line)
    assert (0, "") == (got.returncode, got.stderr)
    look = "ls -A ~; tool; cat ~/any; cat ~/.config/root/etc/shadow"
    got = home.run("start", "sh", ".", "--persist", "--", "-c", look)
    assert {"tool", "kept", "project"} < {*got.stdout.splitlines()}
    assert "root:" not in got.stdout
    assert not (home.path / "any").exists()
    assert "tool" not in home.run("start", "sh", ".", "--", "-c", look).stdout
    (home.path / "other").mkdir()
    assert "tool" not in home.run("start", "sh", str(home.path / "other"), "--persist", "--", "-c", look).stdout


def test_a_link_that_an_agent_left_in_its_home_leads_no_mount_elsewhere(home: AgentHome) -> None:
    """
    Neither in the place of a state folder nor above one: the start is refused, and says where. Where folders are, and
    above the project, no process can rename one.
    """
    (home.path / "state").mkdir()
    home.define("sh", 'command = ["sh"]\nstate = ["~/.a/state"]\n')
    deep = home.project / "in/it"
    deep.mkdir(parents=True)
    (deep / ".env").write_text("SECRET")
    use = ("start", "sh", str(deep), "--persist", "--", "-c")
    got = home.run(*use, "mv ~/.a ~/.b; mv ~/project ~/p; mv ~/project/in ~/project/q; echo x >~/.a/state/x")
    assert 3 == got.stderr.count("busy"), got.stderr
    assert "x" == (home.path / ".a/state/x").read_text().strip()
    [kept] = (home.path / ".cache/leeward/agents/homes").glob("*-home-*")
    for place in (".a", "project/in"):
        (kept / place).rename(kept / "aside")
        (kept / place).symlink_to("/etc")
        got = home.run(*use, "echo never")
        assert (1, "") == (got.returncode, got.stdout)
        assert "in the home that was kept something else is there" in got.stderr
        (kept / place).unlink()
        (kept / "aside").rename(kept / place)
    got = home.run(*use, "cat .env; cat ~/.a/state/x")
    assert ("x\n", 0) == (got.stdout, got.stderr.count("SECRET"))


def test_names_are_hidden_in_a_library(home: AgentHome) -> None:
    library = home.path / "library"
    (library / ".leeward").mkdir(parents=True)
    (library / ".leeward/agent.toml").write_text('[files]\nexclude = ["private"]\n')
    for name in (".env", "private", "shown"):
        (library / name).write_text(name)
    got = home.run("start", "sh", ".", "--library", f"{library}:/more:rw", "--", "-c", "cd /more; cat .env private shown")
    assert "shown" == got.stdout
    assert 2 == got.stderr.count("Permission denied")


@pytest.mark.needs("usr-curl")
def test_a_denied_host_is_told_while_the_agent_works(home: AgentHome) -> None:
    """And at the end, with what would allow it; on a terminal by its title, which is restored."""
    line = "curl -sS -m 3 http://evil.example.org/ 2>/dev/null"
    with home.popen("start", "sh", "--", "-c", f"{line}; {line}; read word") as process:
        assert process.stderr is not None
        assert "leeward: the agent is denied evil.example.org\n" == process.stderr.readline()
        with home.popen("logs", "--network", "--follow", "sh") as logs:
            assert logs.stdout is not None
            assert "denied   evil.example.org" in logs.stdout.readline()
            logs.terminate()
        _, said = process.communicate("\n")
    assert "is denied" not in said
    assert 'allow = ["evil.example.org"]' in said
    with home.on_terminal("start", "sh", str(home.project), "--", "-c", f"{line}; read word", TERM="xterm") as screen:
        screen.until(r"\x1b\[22;2t\x1b\]2;leeward: denied evil\.example\.org\x1b")
        screen.types("\r")
        screen.until(r"\x1b\[23;2t")
        screen.until("the agent was denied evil")
        screen.end()


def test_a_host_of_a_base_url_is_asked_for(home: AgentHome) -> None:
    home.define("sh", 'command = ["sh"]\nbase_urls = ["MODEL_BASE"]\npass_environment = ["MODEL_BASE"]\n')
    got = home.run("start", "sh", ".", "--", "-c", "echo never", MODEL_BASE="https://proxy.example.net/v1")
    assert (1, "") == (got.returncode, got.stdout)
    assert "MODEL_BASE: proxy.example.net" in got.stderr
    got = home.run("start", "sh", ".", "--trust-project", "--", "-c", "echo $MODEL_BASE",
                   MODEL_BASE="https://proxy.example.net")
    assert "https://proxy.example.net\n" == got.stdout, got.stderr
    assert "missing  base URL  MODEL_BASE: other.example.net isn't among" in home.run(
        "doctor", "sh", MODEL_BASE="https://other.example.net").stdout


def test_settings_for_another_program_hide_files_and_cannot_be_changed(home: AgentHome) -> None:
    (home.project / ".hole").mkdir()
    settings = home.project / ".hole/settings.json"
    settings.write_text('{"files": {"exclude": ["private"]}, "container": {"docker": true}}')
    (home.project / "private").write_text("secret")
    got = home.run("start", "sh", ".", "--", "-c", "cat private; rm -f .hole/settings.json; mv .hole x; echo over")
    assert "over\n" == got.stdout
    assert "not supported: container" in got.stderr
    assert settings.exists()


def test_the_difference_is_shown_before_it_is_applied(home: AgentHome) -> None:
    (home.project / "file").write_text("before\n")
    line = "echo after >file"
    with home.on_terminal("start", "sh", str(home.project), "--overlay", "--", "-c", line, TERM="xterm") as screen:
        screen.until(r"\[y/N/d\]")
        screen.types("d\r")
        screen.until("-before")
        screen.until(r"\+after")
        screen.until(r"\[y/N/d\]")
        screen.types("y\r")
        assert 0 == screen.end()
    assert "after\n" == (home.project / "file").read_text()


def test_a_projects_arguments_are_asked_about(home: AgentHome) -> None:
    (home.project / ".leeward").mkdir()
    (home.project / ".leeward/agent.toml").write_text('[agents.sh]\narguments = ["-c", "echo theirs"]\n')
    got = home.run("start", "sh", ".")
    assert (1, "") == (got.returncode, got.stdout)
    assert "sh -c 'echo theirs'" in got.stderr
    assert "theirs\n" == home.run("start", "sh", ".", "--trust-project").stdout
