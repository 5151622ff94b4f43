"""
Projects that want more than a person has accepted for their agents: another folder in their place, a repository that
isn't theirs, an account sent elsewhere.

What must hold: mounted is the folder that was looked at; what a project says of other folders is believed only where
these say so, too; what a project asks for beyond the user's own settings isn't there before a person has said yes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.agents import AgentHome, agents_daemon
from kit.box import control

DAEMON_BY = agents_daemon
BY_CLIENT = pytest.mark.no_single_lock("the command line opens the project once, and believes nobody")

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture
def token(home: AgentHome) -> str:
    token = secrets.token_hex(16)
    (home.path / "keys").mkdir()
    (home.path / "keys/id").write_text(token)
    return token


def outside(line: str, folder: Path) -> str:
    return subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.smoke
@BY_CLIENT
def test_c355_cannot_put_another_folder_in_the_projects_place_before_it_is_mounted(home: AgentHome, token: str) -> None:
    """
    The swap comes between the questions and the mount, for which a hook of the user's stands: another agent that has
    the folder above could do it at any time.
    """
    (home.project / "mine").write_text("looked at")
    swap = f"mv {home.project} {home.path}/was; ln -s {home.path}/keys {home.project}"
    home.settings(f"[hooks]\nsetup_host = ['{swap}']\n")
    got = home.run("start", "sh", ".", "--", "-c", "ls; cat id mine")

    assert "looked at" in got.stdout, got
    assert token not in got.stdout + got.stderr
    with control():
        assert token in outside("cat id", home.project)


@BY_CLIENT
def test_c356_cannot_have_a_repository_by_saying_that_it_is_a_worktree_of_it(home: AgentHome, token: str) -> None:
    """The user shows worktrees their repository. A project's `.git` is a file like any other."""
    private = home.path / "keys/.git"
    for name in ("worktrees/x", "objects", "refs"):
        (private / name).mkdir(parents=True)
    (private / "HEAD").touch()
    (private / "worktrees/x/commondir").write_text("../..\n")
    (private / "config").write_text(token)
    (home.project / ".git").write_text(f"gitdir: {private}/worktrees/x\n")
    home.settings("[git]\nworktree_links = true\n")
    attack = f"cat {private}/config"

    got = home.run("start", "sh", ".", "--", "-c", attack)
    assert token not in got.stdout + got.stderr
    with control():
        (private / "worktrees/x/gitdir").write_text(f"{home.project}/.git\n")
        assert token in home.run("start", "sh", ".", "--", "-c", attack).stdout


def worktree(home: AgentHome) -> tuple[Path, dict[str, str]]:
    """A repository with the project as its linked worktree, which agents may commit to; and the user's variables."""
    main, env = home.path / "main", {"PATH": os.environ["PATH"], "HOME": str(home.path)}
    for name, value in (("safe.directory", "*"), ("user.name", "a"), ("user.email", "a@b")):
        subprocess.run(["git", "config", "--global", name, value], env=env, check=True)
    home.project.rmdir()
    for line in (["init", "-q", "-b", "main", str(main)], ["-C", str(main), "commit", "-q", "--allow-empty", "-m", "x"],
                 ["-C", str(main), "worktree", "add", "-q", "-b", "side", str(home.project)]):
        subprocess.run(["git", *line], env=env, check=True)
    home.settings("[git]\nworktree_links = true\n")
    return main, env


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize("attack", [
    "git config -f {git}/config core.fsmonitor 'touch {evil}'",
    "printf '#!/bin/sh\ntouch {evil}\n' >{git}/hooks/pre-commit; chmod +x {git}/hooks/pre-commit",
    "cp -r {git} .r; git config -f .r/config core.fsmonitor 'touch {evil}'; echo $PWD/.r >{entry}/commondir",
    "cp -r {git} .r; git config -f .r/config core.fsmonitor 'touch {evil}'; echo $PWD/.r >c; mv -f c {entry}/commondir",
    ("cp -r {git} .r; git config -f .r/config core.fsmonitor 'touch {evil}'; mv {entry} {entry}x; mkdir {entry};"
     " cp {entry}x/* {entry}; echo $PWD/.r >{entry}/commondir")])
@BY_CLIENT
def test_c466_cannot_change_what_git_obeys_in_the_repository_of_a_worktree(home: AgentHome, attack: str) -> None:
    """The agent may commit, for which it writes to the repository: its objects, its references, the worktree's entry."""
    main, env = worktree(home)
    entry = next((main / ".git/worktrees").iterdir())
    attack = attack.format(git=main / ".git", entry=entry, evil=home.path / "evil")

    def use_git() -> None:
        for folder in (main, home.project):
            for line in (["git", "status"], ["git", "commit", "--allow-empty", "-m", "x"]):
                subprocess.run(line, cwd=folder, env=env, check=False, capture_output=True)

    got = home.run("start", "sh", ".", "--", "-c", f"{attack}; git config -f {entry}/config.worktree a.b c; exit 0")
    assert 0 == got.returncode, got
    use_git()
    assert not (home.path / "evil").exists()
    assert not (entry / "config.worktree").exists() or b"" == (entry / "config.worktree").read_bytes()
    with control():
        shutil.rmtree(home.project / ".r", ignore_errors=True)
        subprocess.run(["sh", "-c", attack], cwd=home.project, env=env, check=False)
        use_git()
        assert (home.path / "evil").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@BY_CLIENT
def test_c432_cannot_write_a_setting_of_a_worktree_that_the_host_has_replaced(home: AgentHome) -> None:
    """By which the kernel takes its protection away."""
    main, env = worktree(home)
    entry = next((main / ".git/worktrees").iterdir())
    subprocess.run(["git", "config", "extensions.worktreeConfig", "true"], cwd=main, env=env, check=True)
    attack = "git config --worktree core.fsmonitor 'touch evil; false'"
    host = subprocess.Popen(["sh", "-c", ("until [ -e ready ]; do sleep 0.02; done; git config --worktree a.b c;"
                                          " touch go")], cwd=home.project, env=env)
    got = home.run("start", "sh", ".", "--", "-c", f"touch ready; until [ -e go ]; do sleep 0.02; done; {attack}")
    host.wait()
    assert 0 == got.returncode, got
    assert "renamed in the worktree's repository" in got.stderr
    subprocess.run(["git", "status"], cwd=home.project, env=env, check=True, capture_output=True)
    assert not (home.project / "evil").exists()
    assert (entry / "not-obeyed.config.worktree.txt").exists()
    with control():
        subprocess.run(["sh", "-c", f"{attack}; git status"], cwd=home.project, env=env, check=True, capture_output=True)
        assert (home.project / "evil").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@BY_CLIENT
def test_c467_cannot_have_git_write_to_other_files_by_links_without_a_notice(home: AgentHome) -> None:
    """git on the host appends to reflogs, and replaces indexes, through links. Reflogs are the sandbox's own."""
    main, env = worktree(home)
    entry, mine = next((main / ".git/worktrees").iterdir()), home.path / "mine"
    attack = f"cd {main}/.git; ln -sf {mine} logs/HEAD; rm logs/refs/heads/main; ln -s {mine} logs/refs/heads/main"
    commit = ["git", "commit", "--allow-empty", "-m", "$(evil)"]

    got = home.run("start", "sh", ".", "--", "-c", f"{attack}; ln -sf {mine} {entry}/index")
    assert 0 == got.returncode, got
    assert f"'{entry}/index'" in got.stderr
    subprocess.run(commit, cwd=main, env=env, check=True, capture_output=True)
    assert not mine.exists()
    with control():
        subprocess.run(["sh", "-c", attack], check=True)
        subprocess.run(commit, cwd=main, env=env, check=True, capture_output=True)
        assert "$(evil)" in mine.read_text()


@BY_CLIENT
def test_c357_cannot_be_given_the_users_keys_under_a_projects_name(home: AgentHome, token: str) -> None:
    """A library that is a link: it is shown as what it leads to, and nobody says yes here."""
    (home.project / "vendor").symlink_to(home.path / "keys")
    (home.project / ".leeward").mkdir()
    (home.project / ".leeward/agent.toml").write_text('libraries = ["vendor:/vendor"]\n')

    got = home.run("start", "sh", ".", "--", "-c", "cat /vendor/id")
    assert 0 != got.returncode
    assert f"{home.path}/keys as /vendor" in got.stderr
    assert token not in got.stdout + got.stderr
    with control():
        assert token in home.run("start", "sh", ".", "--trust-project", "--", "-c", "cat /vendor/id").stdout


@BY_CLIENT
def test_c358_cannot_make_an_agent_write_the_settings_of_agents(home: AgentHome, token: str) -> None:
    """The folder of the user's settings as a project: a hook that it writes there would run on the host at the next start."""
    settings = home.path / "config/leeward/agents.toml"
    attack = "echo '[hooks]\nsetup_host = [\"cat keys/id\"]' >leeward/agents.toml"

    got = home.run("start", "sh", str(home.path / "config"), "--", "-c", attack)
    assert 0 != got.returncode
    assert "own settings" in got.stderr
    assert not settings.exists()
    with control():
        outside(attack, home.path / "config")
        assert settings.exists()
    home.define("all", 'command = ["sh"]\nstate = ["~/config"]\n')  # nor by a definition's state
    assert "own settings" in home.run("start", "all", ".", "--", "-c", "true").stderr


@pytest.mark.parametrize("library", ["conf:/c", ".:/c", "..:/c", "conf:/c:rw"])
@BY_CLIENT
def test_c384_cannot_show_a_hidden_file_in_a_second_place(home: AgentHome, token: str, library: str) -> None:
    """A library of the project's own, which looks harmless where a person is asked: it is the project's, or has it."""
    project = home.path / "src/project"
    (project / "conf").mkdir(parents=True)
    (project / "conf/.env").write_text(token)
    (project / ".leeward").mkdir()
    settings = project / ".leeward/agent.toml"
    settings.write_text(f'libraries = ["{library}"]\n')
    attack = ["--trust-project", "--", "-c", "cat $(find /c -name '*env')"]

    got = home.run("start", "sh", str(project), *attack)
    assert token not in got.stdout + got.stderr
    assert "in the project, or holds it" in got.stderr
    with control():  # by a name that isn't hidden
        settings.unlink()
        shutil.move(project / "conf", home.path / "conf")
        (home.path / "conf/.env").rename(home.path / "conf/env")
        assert token in home.run("start", "sh", str(project), "--library", f"{home.path}/conf:/c", *attack).stdout


@pytest.mark.parametrize("use", ['staged = ["~/.my/f"]', 'staged = ["~/.my/d/id"]', 'state = ["~/.my/d"]',
                                 'programs = ["~/.my/d"]'])
@BY_CLIENT
def test_c385_cannot_have_the_next_start_follow_a_link(home: AgentHome, token: str, use: str) -> None:
    """
    An agent puts links into its state folder. The next start, of another agent's as well, mounts or copies what has
    the names in that folder.
    """
    home.define("my", 'command = ["sh"]\nstate = ["~/.my"]\n')
    home.define("next", f'command = ["sh"]\n{use}\n')
    read = ["--", "-c", "cat ~/.my/f ~/.my/d/id ~/keys/id"]
    planted = home.run("start", "my", ".", "--", "-c", "ln -s ../keys/id ~/.my/f; ln -s ../keys ~/.my/d")
    assert 0 == planted.returncode, planted

    got = home.run("start", "next", ".", *read)
    assert token not in got.stdout + got.stderr
    assert "is a link that an agent can have made" in got.stderr
    with control():
        shutil.rmtree(home.path / "config/leeward/agents/my")  # whose state it is no more: the user's own link then
        assert token in home.run("start", "next", ".", *read).stdout


@BY_CLIENT
def test_c323_cannot_keep_the_next_start_waiting(home: AgentHome) -> None:
    """An agent puts a FIFO in the place of a file that the next start copies, or reads: to open it waits for a writer."""
    home.define("my", 'command = ["sh"]\nstate = ["~/.my"]\nstaged = ["~/.my/f"]\n')
    with control():
        (home.path / ".my").mkdir()
        (home.path / ".my/f").write_text("copied")
        assert "copied" == home.run("start", "my", ".", "--", "-c", "cat ~/.my/f").stdout
    assert 0 == home.run("start", "my", ".", "--", "-c", "rm ~/.my/f; mkfifo ~/.my/f").returncode
    got = home.run("start", "my", ".", "--", "-c", "true")
    assert (1, True) == (got.returncode, "is no regular file" in got.stderr), got
    assert 0 == home.run("start", "sh", ".", "--", "-c", "mkdir .leeward; mkfifo .leeward/agent.toml").returncode
    got = home.run("start", "sh", ".", "--", "-c", "true")
    assert (1, True) == (got.returncode, "is no regular file" in got.stderr), got


@pytest.mark.parametrize("attack", ["printf 'home = %s/keys/x\\n' ~ >.venv/pyvenv.cfg",
                                    "ln -sf ~/keys/tool .venv/bin/ag",
                                    "ln -sf ~/keys/node_modules/ag .venv/bin/ag",
                                    "printf '#!%s/keys/node_modules/ag\\n' ~ >.venv/bin/ag",
                                    "ln -s ~ up; ln -sf ../../up/keys/tool .venv/bin/ag"])
@BY_CLIENT
def test_c386_cannot_choose_what_is_shown_for_a_program(home: AgentHome, token: str, attack: str) -> None:
    """
    The agent's program is in the project, as in an environment that a person has activated. What such a program needs
    is shown, and the agent has written it.
    """
    modules = home.path / "keys/node_modules"
    modules.mkdir()
    for path in (modules / "ag", home.path / "keys/tool", home.project / ".venv/bin/ag"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n: {token}\n")
        path.chmod(0o755)
    path = f"{home.project}/.venv/bin:{os.environ['PATH']}"
    home.define("ag", 'command = ["ag"]\n')
    assert 0 == home.run("start", "ag", ".", PATH=path).returncode  # as long as it needs nothing else
    planted = home.run("start", "sh", ".", "--", "-c", attack)
    assert 0 == planted.returncode, planted

    read = ["start", "ag", ".", "--debug", "--no-terminal"]
    lines = "cat ~/keys/tool ~/keys/node_modules/ag\n"
    got = home.run(*read, PATH=path, input=lines)
    assert token not in got.stdout + got.stderr
    assert "is in a folder that agents write" in got.stderr
    with control():
        home.define("ag", 'command = ["ag"]\nprograms = ["~/keys"]\n')
        assert token in home.run(*read, PATH=path, input=lines).stdout


@pytest.mark.parametrize(("settings", "at", "attack", "then"), [
    ('exclude = ["conf/*.key"]', "conf/a.key", "mv conf other", "other/a.key"),
    ('exclude = ["/a/b/c/"]', "a/b/c/f", "mv a/b a/d", "a/d/c/f"),
    ('exclude = ["/a/b/c/"]', "a/b/c/f", "mv a d", "d/b/c/f"),
    ('exclude = ["*.key"]\ninclude = ["shown"]', "a/b/x.key", "mv a/b a/shown", "a/shown/x.key"),
    ('exclude = ["*.key"]\ninclude = ["shown"]', "a/b/x.key", "mkdir shown; mv a shown/a", "shown/a/b/x.key"),
    ('exclude = ["vault"]\ninclude = ["shown"]', "vault/f", "mv vault other", "other/f"),
])
@pytest.mark.no_single_lock("mounts on folders, which the client asks for")
def test_c377_cannot_move_a_hidden_file_to_where_the_next_start_shows_it(home: AgentHome, token: str, settings: str,
                                                                         at: str, attack: str, then: str) -> None:
    """A pattern says where in the project it is hidden: by a folder above it that has another name then."""
    (home.project / at).parent.mkdir(parents=True)
    (home.project / at).write_text(token)
    home.settings(f"[files]\n{settings}\n")
    read = ["start", "sh", ".", "--", "-c", f"cat {then}"]
    moved = home.run("start", "sh", ".", "--", "-c", f"{attack}; true")
    assert 0 == moved.returncode, moved

    got = home.run(*read)
    assert token not in got.stdout + got.stderr
    assert token == (home.project / at).read_text()
    with control():
        subprocess.run(["sh", "-c", attack], cwd=home.project, check=True)
        assert token in home.run(*read).stdout


@pytest.mark.parametrize("attack", ["rm -f link", "mv link other", "ln -sfn nothing link", "mv at other"])
@pytest.mark.no_single_lock("mounts on links and folders, which the client asks for")
def test_c378_cannot_take_away_the_link_by_which_a_file_is_hidden(home: AgentHome, token: str, attack: str) -> None:
    """The link is what the pattern fits, and what it leads to is hidden as well: also at the next start."""
    (home.project / "at").mkdir()
    (home.project / "real").write_text(token)
    for link, target in (("link", "at/second"), ("at/second", "../real")):
        (home.project / link).symlink_to(target)
    home.settings('[files]\nexclude = ["/link"]\n')
    read = ["start", "sh", ".", "--", "-c", "cat real link at/second"]
    assert 0 == home.run("start", "sh", ".", "--", "-c", f"{attack}; true").returncode

    got = home.run(*read)
    assert token not in got.stdout + got.stderr
    with control():
        subprocess.run(["sh", "-c", attack], cwd=home.project, check=True)
        assert token in home.run(*read).stdout


@pytest.mark.parametrize("include", ["[]", '[".env.example"]', '["vault/none"]'])
@pytest.mark.no_single_lock("a mount on the folder, which the client asks for")
def test_c379_cannot_see_what_a_hidden_folder_has(home: AgentHome, token: str, include: str) -> None:
    """Names, too. With an `include` that could fit something in it, but fits nothing."""
    (home.project / f"vault/{token}").mkdir(parents=True)
    (home.project / f"vault/{token}/{token}").write_text(token)
    home.settings(f'[files]\nexclude = ["vault"]\ninclude = {include}\n')
    read = ["start", "sh", ".", "--", "-c", "find vault; cat vault/*/*; echo x >vault/made || echo refused"]

    got = home.run(*read)
    assert token not in got.stdout + got.stderr
    assert "refused" in got.stdout
    assert [token] == os.listdir(home.project / "vault")
    with control():
        home.settings("")
        assert token in home.run(*read).stdout
