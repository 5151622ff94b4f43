"""
Ends of `leeward agent` that come before there is an agent, and surroundings in which there can't be one: each with its
reason, and nothing left.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest

from kit.agents import AgentHome, agents_daemon
from kit.live_daemon import PATIENCE, command
from kit.waiting import poll_until

DAEMON_BY = agents_daemon

pytestmark = pytest.mark.needs("user-namespaces")


def ended(home: AgentHome, *argv: str, **env: str | None) -> tuple[int, str]:
    """The status and all that it says, which is no traceback."""
    given = {name: value for name, value in {**home.environment(), **env}.items() if value is not None}
    got = subprocess.run(command("agent", *argv), env=given, cwd=home.project, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
    assert "Traceback" not in got.stderr
    return got.returncode, got.stderr + got.stdout


def alive(pid: int) -> bool:
    try:
        return "Z" != Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_set_up_on_the_host_ends_with_its_children_before_it_is_cleaned_up(home: AgentHome) -> None:
    """And a second signal doesn't end the clean-up."""
    home.settings("[hooks]\nsetup_host = ['sleep 1000 & echo $! >~/child; sh -c \"sleep 1000; true\"; true']\n"
                  "cleanup_host = ['grep -qs sleeping /proc/$(cat ~/child)/status && touch ~/there;"
                  " touch ~/begun; sleep 1;"
                  " touch ~/cleaned']\n")
    process = home.popen("start", "sh", ".", "--", "-c", "true")
    child = home.path / "child"
    poll_until(lambda: child.exists() and child.read_text().endswith("\n"), "the hook runs", PATIENCE)
    process.send_signal(signal.SIGTERM)
    poll_until((home.path / "begun").exists, "it is cleaned up", PATIENCE)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=PATIENCE)
    assert 143 == process.returncode, said
    assert (home.path / "cleaned").exists()
    assert not alive(int(child.read_text()))
    assert not (home.path / "there").exists()
    assert [] == home.left()


def test_hooks_run_in_the_folder_that_was_opened(home: AgentHome) -> None:
    """Another folder gets its path, and what the agent changes in its own is told even so."""
    was = home.path / "was"
    home.settings(f'[hooks]\nsetup_host = ["mv {home.project} {was}; mkdir {home.project}", "pwd >>~/order"]\n'
                  'cleanup_host = ["pwd >>~/order"]\n')
    got = home.run("start", "sh", ".", "--", "-c", "echo x >.envrc")
    assert 0 == got.returncode, got
    assert f"{was}\n{was}\n" == (home.path / "order").read_text()
    assert "look at these before you use the project: '.envrc'" in got.stderr


def test_a_home_that_is_not_named_is_the_users(home: AgentHome) -> None:
    for name in (None, "relative"):
        status, said = ended(home, "start", "sh", ".", "--", "-c", "echo $HOME", HOME=name)
        assert (0, f"{pwd.getpwuid(os.getuid()).pw_dir}\n") == (status, said)


def test_state_that_cannot_be_written(home: AgentHome) -> None:
    for argv in (("start", "sh", "."), ("list",), ("stop", "sh")):
        status, said = ended(home, *argv, XDG_STATE_HOME="/proc/none")
        assert (1, True) == (status, "a folder for the state of agents" in said), said


@pytest.mark.parametrize("name", [b"\xff", b"d" * 200])
def test_a_path_that_cannot_be_told(home: AgentHome, name: bytes) -> None:
    """One that isn't UTF-8, and one longer than PATH_MAX."""
    root, at = os.fsencode(home.path) + b"/deep", -1
    os.mkdir(root)
    at = os.open(root, os.O_PATH)
    try:
        for _ in range(1 if name == b"\xff" else 22):
            os.mkdir(name, dir_fd=at)
            below = os.open(name, os.O_PATH, dir_fd=at)
            os.close(at)
            at = below
        got = subprocess.run(command("agent", "start", "sh", f"/proc/self/fd/{at}", "--", "-c", "true"), cwd="/",
                             env=home.environment(), pass_fds=[at], stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=4 * PATIENCE, check=False)
        assert 1 == got.returncode
        assert "can't be used" in got.stderr
        assert (name == b"\xff") == ("isn't UTF-8" in got.stderr and "rename that folder" in got.stderr)
        assert "Traceback" not in got.stderr
    finally:
        os.close(at)
        subprocess.run(["rm", "-rf", root], check=True)


def test_doctor_of_a_program_without_a_version(home: AgentHome) -> None:
    """It runs, which is what is asked for. What can't be executed doesn't."""
    (home.path / "bin").mkdir()
    for name, text in (("odd", "#!/bin/sh\necho usage: odd FILE >&2\nexit 2\n"),
                       ("none", "#!/bin/sh\nexec no-such-one\n")):
        program = home.path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
        home.define(name, f'command = ["{program}"]\n')
    status, said = ended(home, "doctor", "odd")
    assert (0, True) == (status, "--version ends with status 2: usage: odd FILE" in said), said
    status, said = ended(home, "doctor", "none")
    assert (1, True) == (status, "missing  sandbox" in said), said


def test_logs_of_one_that_has_ended(home: AgentHome) -> None:
    assert 7 == ended(home, "start", "sh", ".", "--", "-c", "exit 7")[0]
    name = next(iter((home.path / "state/leeward/agents/instances/ended").iterdir())).name
    for part in (name, "project-sh", "sh"):  # the whole, its beginning, the agent
        status, said = ended(home, "logs", part)
        assert (0, True) == (status, "exit 7" in said or "status 7" in said), said
    assert 0 == ended(home, "logs", "--network", name)[0]
    status, said = ended(home, "logs", "project-other")
    assert (1, True) == (status, "no agent runs" in said)
