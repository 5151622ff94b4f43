"""
Other users of the machine against the start of an agent: they write to folders above or beside what it uses, make
folders with names that were somebody else's, and leave settings where a user's are looked for.

What must hold: what is mounted is what was looked at; consent to a project isn't consent to another user's folder with
its path; nobody else says what runs on the host.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import pytest

from kit.agents import AgentHome, agents_daemon
from kit.box import control

DAEMON_BY = agents_daemon
BY_CLIENT = pytest.mark.no_single_lock("the command line opens what it has looked at, and believes its user alone")

pytestmark = pytest.mark.needs("user-namespaces")

#: A user who exists by number only.
STRANGER = 4711


@pytest.fixture
def token(home: AgentHome) -> str:
    token = secrets.token_hex(16)
    for path in (home.path / "keys/id", home.path / "team/lib/id"):
        path.parent.mkdir(parents=True)
        path.write_text("public")
    (home.path / "keys/id").write_text(token)
    return token


@pytest.mark.parametrize("swap", ["mv team/lib team/was; ln -s ../keys team/lib",
                                  "mv team was; mkdir team; ln -s ../keys team/lib"])
@pytest.mark.parametrize("use", ["library", "program"])
@BY_CLIENT
def test_c312_cannot_have_a_folder_mounted_through_a_link_that_came_later(home: AgentHome, token: str, use: str,
                                                                          swap: str) -> None:
    """
    Another user can write to a folder above a library, and puts a link to the user's keys in its place while the person
    reads the question. A hook of the user's stands for that moment.
    """
    home.define("sh", 'command = ["sh"]\n' + ('programs = ["~/team/lib"]\n' if "program" == use else ""))
    libraries = 'libraries = ["~/team/lib"]\n' if "library" == use else ""
    read = ["start", "sh", ".", "--", "-c", "cat ~/team/lib/id"]
    home.settings(libraries)
    assert "public" in home.run(*read).stdout

    home.settings(f'{libraries}[hooks]\nsetup_host = ["cd ~; {swap}"]\n')
    got = home.run(*read)
    assert token not in got.stdout + got.stderr
    assert "has become a link since it was looked at" in got.stderr
    with control():
        home.settings(f'libraries = ["~/keys:{home.path}/team/lib"]\n')
        home.define("sh", 'command = ["sh"]\n')
        assert token in home.run(*read).stdout


@pytest.mark.smoke
@pytest.mark.needs("root")
@BY_CLIENT
def test_c313_cannot_use_the_consent_to_a_project_that_is_gone(home: AgentHome) -> None:
    """
    A project in /tmp was accepted and removed. Another user makes a folder with its path and the same settings, whose
    hook runs a file of the folder.
    """
    def make(said: str) -> None:
        (home.project / ".leeward").mkdir(parents=True)
        (home.project / ".leeward/agent.toml").write_text('[hooks]\nsetup_host = ["./build"]\n')
        (home.project / "build").write_text(f"#!/bin/sh\necho {said} >>~/built\n")
        (home.project / "build").chmod(0o755)

    make("own")
    assert 0 == home.run("start", "sh", ".", "--trust-project", "--", "-c", "true").returncode
    shutil.rmtree(home.project)
    make("stranger")
    os.chown(home.project, STRANGER, STRANGER)

    got = home.run("start", "sh", ".", "--", "-c", "true")
    assert (1, "own\n") == (got.returncode, (home.path / "built").read_text())
    assert f"which belongs to user {STRANGER}, ask for more" in got.stderr
    with control():
        os.chown(home.project, 0, 0)
        assert 0 == home.run("start", "sh", ".", "--", "-c", "true").returncode
        assert "own\nstranger\n" == (home.path / "built").read_text()


@BY_CLIENT
def test_c313_cannot_have_a_killed_agents_clean_up_run_in_another_folder(home: AgentHome) -> None:
    """
    The program that started an agent was killed, with the machine perhaps, and the project's folder in /tmp is gone.
    What comes to its path is another user's; the clean-up that waits for the next command is the user's.
    """
    home.settings('[hooks]\nsetup_host = ["kill -9 $PPID"]\ncleanup_host = ["pwd >>~/cleaned; ./clean"]\n')

    def killed() -> None:
        home.run("start", "sh", ".")
        assert 1 == len(home.left())

    def make(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "clean").write_text("#!/bin/sh\necho stranger >>~/cleaned\n")
        (folder / "clean").chmod(0o755)

    killed()
    home.project.rename(home.path / "was")  # rather than removed, so that its inode isn't the next folder's
    make(home.project)
    home.run("list")
    assert ([], "/\n") == (home.left(), (home.path / "cleaned").read_text())
    with control():
        killed()
        home.run("list")
        assert f"/\n{home.project}\nstranger\n" == (home.path / "cleaned").read_text()


@pytest.mark.parametrize("file", ["agents.toml", "agents/sh/agent.toml"])
@pytest.mark.parametrize("way", ["mode", pytest.param("owner", marks=pytest.mark.needs("root")),
                                 pytest.param("home", marks=pytest.mark.needs("root"))])
@BY_CLIENT
def test_c314_cannot_say_what_runs_on_the_host(home: AgentHome, file: str, way: str) -> None:
    """
    Settings and definitions that another user owns or can write, and the home of another user, which `su -p` and some
    settings of sudo leave in HOME.
    """
    path = home.path / "config/leeward" / file
    home.settings("")
    path.write_text(path.read_text() + '[hooks]\nsetup_host = ["echo ran >>ran"]\n')
    if "mode" == way:
        path.chmod(0o666)
    else:
        os.chown(path if "owner" == way else home.path, STRANGER, STRANGER)

    got = home.run("start", "sh", ".", "--", "-c", "true")
    assert (1, False) == (got.returncode, (home.project / "ran").exists())
    assert ("lets others write it" if "mode" == way else f"belongs to user {STRANGER}") in got.stderr
    with control():
        path.chmod(0o644)
        for each in (path, home.path):
            os.chown(each, os.geteuid(), -1)
        assert 0 == home.run("start", "sh", ".", "--", "-c", "true").returncode
        assert "ran\n" == (home.project / "ran").read_text()


@pytest.mark.parametrize("way", ["settings", "option", "project"])
@pytest.mark.needs("root")
@BY_CLIENT
def test_c382_cannot_make_a_named_folder_lead_to_the_users_own(home: AgentHome, token: str, way: str) -> None:
    """
    The user names a folder where another user can write, who has made it a link before the start. Nobody is asked about
    what a user names.
    """
    shutil.rmtree(home.path / "team/lib")
    (home.path / "team/lib").symlink_to("../keys")
    os.chown(home.path / "team/lib", STRANGER, STRANGER, follow_symlinks=False)
    given: dict[str, tuple[str, ...]] = {"settings": (".",), "option": (".", "--library", "../team/lib"),
                                         "project": ("../team/lib",)}
    if "settings" == way:
        home.settings('libraries = ["~/team/lib"]\n')
    read = ["start", "sh", *given[way], "--", "-c", "cat ~/team/lib/id id"]

    got = home.run(*read)
    assert token not in got.stdout + got.stderr
    assert f"team/lib' is a link of user {STRANGER}, and isn't followed" in got.stderr
    with control():
        os.chown(home.path / "team/lib", 0, 0, follow_symlinks=False)
        assert token in home.run(*read).stdout
