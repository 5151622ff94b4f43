"""
Escapes from an agent's sandbox, which has a project of the host's to write and a network: what is hidden, what acts
outside afterwards, and who can be spoken to.

What must hold: what is hidden can't be read by any name that the sandbox makes; nothing of the host but the project and
the state folders is written; what programs outside obey by themselves is kept, or named at the end; no socket of the
host's is reached.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.agents import AgentHome, agents_daemon
from kit.box import control
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

DAEMON_BY = agents_daemon
BY_MOUNTS = pytest.mark.no_single_lock("mounts cover it, which no capability and no system call takes away")
BY_NAMESPACE = pytest.mark.no_single_lock("the network namespace and the view hold it together")
BY_CLIENT = pytest.mark.no_single_lock("the command line compares, and asks")

pytestmark = pytest.mark.needs("user-namespaces")

CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path.replace("@", chr(0), 1) if path.startswith("@") else path)
            print("connected", path)
    except OSError as error:
        print("refused", path)
"""


@pytest.fixture
def token(home: AgentHome) -> str:
    token = secrets.token_hex(16)
    (home.project / "deep").mkdir()
    for path in (home.project / ".env", home.project / "deep/.env", home.path / "private"):
        path.write_text(token)
    return token


def within(home: AgentHome, line: str, *options: str) -> str:
    got = home.run("start", "sh", ".", *options, "--", "-c", line)
    return got.stdout + got.stderr


def outside(home: AgentHome, line: str) -> str:
    got = subprocess.run(["sh", "-c", line], cwd=home.project, capture_output=True, text=True, check=False)
    return got.stdout + got.stderr


@pytest.mark.parametrize("overlay", [False, True])
@BY_MOUNTS
def test_c335_cannot_read_a_hidden_file_by_another_name(home: AgentHome, token: str, overlay: bool) -> None:
    """By links, by renaming it or its folder, by copies, below the mount, and through another mount."""
    attack = ("cat .env; cat ./deep/../.env; ln .env a; cat a; ln -s .env b; cat b; cp .env c; mv .env d; cat d;"
              " mv deep e; cat e/.env; cat /proc/self/cwd/.env /proc/self/root$PWD/.env; umount .env; rm -f .env;"
              " cat .env; tar cf - . | strings; mkdir m; mount --bind . m; cat m/.env; unshare -rm cat .env;"
              " grep -o 'dir=[^,]*' /proc/self/mountinfo | cut -d= -f2 | while read d; do cat $d/.env; done;"
              " python3 -c 'import os; print(os.pread(os.open(\".env\", os.O_RDONLY), 99, 0))'")
    with control():
        home.settings('[files]\ninclude = [".env"]\n')
        assert token in within(home, "cat .env")
        home.settings("")
    assert token not in within(home, attack, *(["--overlay", "--no-apply"] if overlay else []))
    assert token == (home.project / ".env").read_text()


#: Reads each name until it can't, or so many times, and tells what it read last.
LATE = ("echo ready; read go; for name in .env later.env here/.env; do for _ in $(seq {looks}); do"
        " cat $name >/dev/null 2>&1 || break; sleep 0.05; done; cat $name; cat -- ./$name; done")


#: The times that the agent of a control looks: nothing ends its looking, as nothing is hidden.
FEW = 10


def late(home: AgentHome, token: str, looks: int = 100) -> str:
    """What an agent reads of names that the host replaces and makes while it runs."""
    (home.project / ".env").write_text("before")
    (home.project / "here").mkdir(exist_ok=True)
    process = home.popen("start", "sh", ".", "--", "-c", LATE.format(looks=looks))
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    for name in (".env", "later.env", "here/.env"):
        (home.project / "new").write_text(token)
        (home.project / "new").rename(home.project / name)
    output, _ = process.communicate("\n", timeout=60)
    return output


@BY_MOUNTS
def test_c347_cannot_read_a_name_that_came_later(home: AgentHome, token: str) -> None:
    """The host's editors save by a rename, which ends the mount that hides a file."""
    with control():
        home.settings('[files]\ninclude = [".env", "later.env"]\n')
        assert token in late(home, token, FEW)
        for name in ("later.env", "here/.env"):
            (home.project / name).unlink()
        home.settings("")
    assert token not in late(home, token)


@BY_MOUNTS
def test_c348_cannot_have_a_link_covered_in_place_of_its_name(home: AgentHome, token: str) -> None:
    """
    What is covered is what lies at the name, through no link on the way: nothing else of the sandbox's is hidden, and
    no link keeps a name from being hidden afterwards.
    """
    attack = ("ln -s /etc here; ln -s /etc/passwd later.env; sleep 1; cat here/passwd >/dev/null && cat /etc/passwd"
              " >/dev/null && echo there; rm later.env; mkdir -p real; echo $0 >real/.env; for _ in $(seq 100); do"
              " cat real/.env >/dev/null 2>&1 || break; sleep 0.05; done; cat real/.env")
    with control():
        home.settings('[files]\ninclude = [".env"]\n')
        assert "sh" in within(home, attack.replace("ln -s /etc here; ", "").replace("sleep 1; ", "")
                              .replace("seq 100", f"seq {FEW}"))
        home.settings("")
        for name in ("real/.env",):
            (home.project / name).unlink()
    said = within(home, attack)
    assert "there" in said
    assert "real/.env: Permission denied" in said


def later(home: AgentHome, attack: str, name: str, token: str, looks: int = 200) -> str:
    """What an agent that has done *attack* reads of a name that the host makes then."""
    process = home.popen("start", "sh", ".", "--", "-c", f"{attack}; echo ready; read go; for _ in $(seq {looks});"
                         f" do cat {name} >/dev/null 2>&1 || break; sleep 0.05; done; cat {name}")
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    (home.project / name).parent.mkdir(exist_ok=True)
    (home.project / name).write_text(token)
    output, _ = process.communicate("\n", timeout=60)
    return output


@BY_MOUNTS
def test_c380_cannot_exhaust_the_covers_of_hidden_files(home: AgentHome, token: str) -> None:
    """
    A sandbox can have a bounded number of names hidden. An agent that makes more is ended, since the next name would
    be seen.
    """
    attack = "mkdir many; for i in $(seq 2100); do echo x >many/$i.env; done"
    with control():
        home.settings('[files]\ninclude = ["*.env"]\n')
        assert token in later(home, f"{attack}; rm -r many", "here/.env", token, FEW)
        home.settings("")
    got = home.run("start", "sh", ".", "--", "-c", f"{attack}; echo ready; exec sleep 1000")
    assert (1, "ready\n") == (got.returncode, got.stdout)
    assert "the agent is ended" in got.stderr


@pytest.mark.parametrize(("attack", "name"), [
    ("mkdir shut && chmod 300 shut", "shut/.env"),
    ("(for _ in $(seq 110); do mkdir d && cd d; done)", "here/.env")], ids=["unreadable", "deep"])
@BY_MOUNTS
def test_c381_cannot_keep_a_project_from_being_looked_at(home: AgentHome, token: str, attack: str, name: str) -> None:
    """By a folder that only those enter who know what is in it, or by folders within each other without end."""
    with control():
        home.settings('[files]\ninclude = [".env", "shut"]\n')
        assert token in later(home, attack, name, token, FEW)
        home.settings("")
        outside(home, "chmod -R 700 shut; rm -rf shut here d")
    assert token not in later(home, attack, name, token)
    outside(home, "chmod -R 700 shut")


@BY_MOUNTS
def test_c336_cannot_give_git_a_hook(home: AgentHome) -> None:
    """Where hooks are, none is written, nor its folder replaced; a repository made anew, or another hook path, is named."""
    hooks = home.project / ".git/hooks"
    hooks.mkdir(parents=True)
    attack = ("echo evil >.git/hooks/pre-commit; mv .git/hooks .git/old; rm -rf .git/hooks; ln -sfn /tmp .git/hooks;"
              " chmod 777 .git/hooks")
    with control():
        outside(home, "echo evil >.git/hooks/pre-commit")
        assert (hooks / "pre-commit").exists()
        (hooks / "pre-commit").unlink()
    within(home, attack)
    assert [] == os.listdir(hooks)
    within(home, "mv .git .old; mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit")  # nor by its folder's
    assert [] == os.listdir(hooks)
    assert ".old" not in os.listdir(home.project)
    hooks.rmdir()
    assert ".git/hooks" in within(home, "mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit")
    assert ".git/config" in within(home, "printf '[core]\\nhooksPath = x\\n' >>.git/config")


REPOSITORY = ("init() { mkdir -p $1/refs $1/objects $1/hooks; echo ref: refs/heads/m >$1/HEAD;"
              " printf '[core]\\nfsmonitor = touch %s/evil\\n' ~ >$1/config; };")


@BY_CLIENT
def test_c337_cannot_change_a_file_that_host_programs_obey_without_a_notice(home: AgentHome,
                                                                            daemon: LiveDaemon) -> None:
    """Editors, shells, other agents and package managers obey these files. A change of another file gives no notice."""
    with control(), leeward.Sandbox(socket=daemon.socket, profile="agent", mounts=[
            leeward.Mount(home.project, str(home.project), writable=True)]) as box:
        said = box.shell("echo evil >.envrc", cwd=str(home.project))
        assert "evil\n" == (home.project / ".envrc").read_text()
        assert "" == said.stdout_text + said.stderr_text
    (home.project / ".envrc").unlink()
    assert "execute or read on their own" not in within(home, "echo x >code.py")
    for path in (".envrc", ".vscode/tasks.json", ".npmrc", ".claude/settings.json", ".husky/pre-commit", ".Rprofile",
                 "lefthook-local.yml", ".venv/bin/python", "packages/app/.vscode/tasks.json", "deep/er/.unheard-of",
                 ".unheard-of/x", "a/Makefile", "eslint.config.js", "conftest.py", "build.rs", "package.json",
                 "sub/.hg/hgrc"):
        said = within(home, f"mkdir -p $(dirname {path}); echo evil >{path}")
        assert "execute or read on their own" in said, path
        assert any(f"'{path[:end]}'" in said for end in range(1, len(path) + 1)), said


@pytest.mark.parametrize(("before", "attack", "named"), [
    ("init bare", "echo evil >>bare/config", "bare"),
    ("init x; rm x/HEAD", "echo ref: refs/heads/m >x/HEAD", "x"),
    ("init x; mkdir y; echo ref: refs/heads/m >y/HEAD", "echo ../x >y/commondir", "y"),
    ("mkdir -p sub/.hg", "printf '[hooks]\npre-status = evil\n' >sub/.hg/hgrc", "sub/.hg"),
    (":", "mkdir .unheard-of; echo evil >.unheard-of/x", ".unheard-of"),
])
@BY_CLIENT
def test_c427_cannot_change_a_repository_of_any_name_without_a_notice(home: AgentHome, before: str, attack: str,
                                                                      named: str) -> None:
    outside(home, f"{REPOSITORY} {before}")
    said = within(home, attack)
    assert "execute or read on their own" in said
    assert f"'{named}'" in said
    with control():
        assert "execute or read on their own" not in within(home, "echo x >code.py")


@BY_CLIENT
def test_c428_cannot_change_its_own_settings_without_a_notice(home: AgentHome) -> None:
    """The next start of the agent, here or outside, runs what hooks in its state folder say."""
    home.define("mine", 'command = ["sh"]\nstate = ["~/.claude"]\n')
    (home.path / ".claude").mkdir()

    def start(line: str) -> str:
        got = home.run("start", "mine", ".", "--", "-c", line)
        assert 0 == got.returncode, got.stderr
        return got.stderr

    with control():
        assert "execute or read on their own" not in start("echo x >~/.claude/history.jsonl")
        assert (home.path / ".claude/history.jsonl").exists()
    for name in ("settings.json", "plugins", "skills"):
        assert str(home.path / ".claude" / name) in start(f"rm -rf ~/.claude/{name}; echo evil >~/.claude/{name}")


SETTING = 'git -C sub config core.fsmonitor "touch $HOME/evil"'
NESTED = "git init -q . && git init -q sub && git -C sub commit -q --allow-empty -m x && git add sub"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize(("attack", "named"), [
    ("init .foo; printf 'gitdir: ./.foo\\n' >.git", ".git"),
    ("init .foo; ln -s .foo .git", ".git"),
    (f"{NESTED}; {SETTING}", "sub/.git"),
    (f"{NESTED}; mkdir .git/modules; mv sub/.git .git/modules/m; echo gitdir: ../.git/modules/m >sub/.git; {SETTING}",
     ".git/modules/m"),
])
@BY_CLIENT
def test_c387_cannot_make_git_run_something_outside_without_a_notice(home: AgentHome, attack: str, named: str) -> None:
    """
    A person's next `git status` in the project obeys the settings of repositories that the agent has made: by a file
    for `.git`, or below the project, where the index names them.
    """
    author = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b;"
    said = within(home, f"{REPOSITORY} {author} {attack}")
    assert "execute or read on their own" in said
    assert f"'{named}'" in said
    with control():
        subprocess.run(["git", "status"], cwd=home.project, capture_output=True, check=False, env={
            "PATH": os.environ["PATH"], "HOME": str(home.path), "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"})
        assert (home.path / "evil").exists()
    said = within(home, "true")  # what was there at the start isn't told again
    assert "execute or read on their own" not in said


#: Writes something that no list of changes has, some time after the agent's end.
LATE_WRITE = "setsid sh -c 'echo x >seen; sleep 0.4; {}' >/dev/null 2>&1 </dev/null & until [ -e seen ]; do :; done"


@BY_CLIENT
def test_c318_cannot_add_a_change_after_a_person_has_seen_them(home: AgentHome, daemon: LiveDaemon) -> None:
    """
    By a process that the agent leaves behind, which goes on while the person is asked; or by anything else that runs in
    the sandbox then.
    """
    folder = leeward.Mount(home.project, str(home.project), overlay=True)
    with control(), leeward.Sandbox(socket=daemon.socket, profile="agent", mounts=[folder]) as box:
        box.shell(LATE_WRITE.format("echo evil >late"), cwd=str(home.project))
        assert ["seen"] == [change.path for change in box.diff()]
        box.shell("until [ -e late ]; do sleep 0.05; done", cwd=str(home.project))
        assert ["late", "seen"] == [change.path for change in box.apply()]
    for path in ("late", "seen"):
        (home.project / path).unlink()

    with home.on_terminal("start", "sh", str(home.project), "--overlay", "--", "-c",
                          LATE_WRITE.format("echo evil >late")) as screen:
        screen.until("Apply these 1 changes")
        box = leeward.Sandbox.attach(leeward.Sandbox.list(socket=daemon.socket)[0]["sandbox"], socket=daemon.socket)
        look = "for _ in $(seq 40); do [ -e late ] && break; sleep 0.05; done; echo evil >later"
        box.shell(look, cwd=str(home.project))  # without groups a process of another session may live on, and write
        box.detach()
        screen.types("y\r")
        assert 0 == screen.end(), screen.all
    assert ["seen"] == os.listdir(home.project)


@BY_CLIENT
def test_c319_cannot_write_after_the_notice(home: AgentHome, daemon: LiveDaemon) -> None:
    """By a process that the agent leaves behind. Large files that are compared, too, make the comparison take long."""
    evil = LATE_WRITE.format("echo evil >.exrc")
    with control(), leeward.Sandbox(socket=daemon.socket, profile="agent", mounts=[
            leeward.Mount(home.project, str(home.project), writable=True)]) as box:
        box.shell(evil, cwd=str(home.project))
        assert ["seen"] == os.listdir(home.project)
        box.shell("until [ -e .exrc ]; do sleep 0.05; done", cwd=str(home.project))
    for path in (".exrc", "seen"):
        (home.project / path).unlink()

    (home.project / ".zed").mkdir()  # which is compared after .exrc
    for name in range(100):
        with open(home.project / f".zed/{name}", "wb") as file:
            file.truncate(1 << 20)
    said = within(home, evil)
    assert not (home.project / ".exrc").exists() or ".exrc" in said


MINE = "git init -q .; git config user.name a; git config user.email a@b; {}"
BARE = "repositoryformatversion=0 bare=false worktree=."
EVIL = "printf '#!/bin/sh\\ntouch %s/evil\\n' ~ >"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize(("mine", "attack", "named"), [
    (MINE.format("echo : >check; chmod +x check; ln -s ../../check .git/hooks/pre-commit"), f"{EVIL}check",
     ".git/hooks"),
    (MINE.format("git config core.hooksPath tools/hooks"),
     f"mkdir -p tools/hooks; {EVIL}tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit", "tools/hooks"),
    (MINE.format("git config include.path ../shared; touch shared"),
     "git config -f shared core.fsmonitor 'touch ~/evil'", "shared"),
    ("true", f"init .; for one in {BARE}; do git config -f config core.${{one%=*}} ${{one#*=}}; done", "HEAD")],
    ids=["linked hook", "other folder of hooks", "included settings", "the project as a repository"])
@BY_CLIENT
def test_c320_cannot_change_what_git_is_told_to_run_without_a_notice(home: AgentHome, mine: str, attack: str,
                                                                      named: str) -> None:
    """
    Files of the project that git runs or obeys because the user's own settings say so; a project that becomes a
    repository without `.git`.
    """
    outside(home, mine)
    said = within(home, f"{REPOSITORY} {attack}")
    assert f"'{named}'" in said
    with control():
        env = {"PATH": os.environ["PATH"], "HOME": str(home.path), "GIT_CONFIG_COUNT": "1",
               "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        for line in (["git", "status"], ["git", "commit", "--allow-empty", "-m", "x"]):
            subprocess.run(line, cwd=home.project, env=env, check=False, capture_output=True)
        assert (home.path / "evil").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize("overlay", [False, True])
@BY_CLIENT
def test_c322_cannot_change_what_git_obeys_in_a_library_without_a_notice(home: AgentHome, overlay: bool) -> None:
    """A library that the agent may write to is the host's folder, also where the project is a copy."""
    library = home.path / "library"
    library.mkdir()
    outside(home, f"git init -q {library}")
    options = ["--library", f"{library}:/library:rw", *(["--overlay", "--no-apply"] if overlay else [])]
    assert "execute or read on their own" not in within(home, "echo x >/library/code.py", *options)
    said = within(home, f"git config -f /library/.git/config core.fsmonitor 'touch {home.path}/evil'", *options)
    assert f"'{library}/.git/config'" in said
    with control():
        subprocess.run(["git", "status"], cwd=library, capture_output=True, check=False)
        assert (home.path / "evil").exists()


@BY_CLIENT
def test_c338_cannot_widen_the_next_start(home: AgentHome) -> None:
    """
    Settings that an agent writes into the project are named at the end, and asked for at the next start; those that
    are there aren't written.
    """
    wish = '[hooks]\nsetup_host = ["touch $HOME/evil"]\n[network]\nallow = ["evil.example.org"]\n'
    with control():
        home.settings(wish)
        within(home, "true")
        assert (home.path / "evil").exists()
        (home.path / "evil").unlink()
        home.settings("")
    said = within(home, f"mkdir .leeward; printf '%s' '{wish}' >.leeward/agent.toml")
    assert ".leeward" in said
    got = home.run("start", "sh", ".", "--", "-c", "true")
    assert 0 != got.returncode
    assert not (home.path / "evil").exists()
    (home.project / ".leeward/agent.toml").write_text("")
    within(home, f"printf '%s' '{wish}' >.leeward/agent.toml; mv .leeward .x; rm -r .leeward")
    assert "" == (home.project / ".leeward/agent.toml").read_text()


@BY_MOUNTS
def test_c339_cannot_swap_the_project_for_a_link(home: AgentHome, token: str) -> None:
    """The folder is a mount: not renamed, not removed. A link in it leads to what the sandbox has by that name."""
    attack = (f"cd ..; mv project p; rmdir project; rm -rf project 2>/dev/null; ln -sfn {home.path} project;"
              f" cd project; ln -s {home.path}/private l; cat l; ln -s /proc/1/root r; cat r{home.path}/private;"
              " ls -A ..")
    with control():
        assert token in outside(home, f"cat {home.path}/private")
    assert token not in within(home, attack)
    assert home.project.is_dir()
    assert not home.project.is_symlink()


@BY_MOUNTS
def test_c340_cannot_read_or_write_the_home(home: AgentHome, token: str) -> None:
    """Start-up files of shells, keys and other projects aren't there; what is written there is gone."""
    for name in (".bashrc", ".ssh/id", ".aws/credentials", ".config/x"):
        (home.path / name).parent.mkdir(parents=True, exist_ok=True)
        (home.path / name).write_text(token)
    attack = ("cat ~/.bashrc ~/.ssh/id ~/.aws/credentials ~/.config/x ~/private; for f in .bashrc .ssh/authorized_keys"
              " .config/autostart/x .local/bin/ls; do mkdir -p ~/$(dirname $f); echo evil >>~/$f; done;"
              " find / -name id -path '*.ssh*' 2>/dev/null | xargs cat")
    with control():
        assert token in outside(home, f"cat {home.path}/.bashrc")
    assert token not in within(home, attack)
    assert token == (home.path / ".bashrc").read_text()
    assert not (home.path / ".local").exists()
    assert ["id"] == os.listdir(home.path / ".ssh")


@pytest.mark.smoke
@BY_MOUNTS
def test_c341_cannot_see_others_by_proc(home: AgentHome, daemon: LiveDaemon, token: str) -> None:
    """Neither the host's processes, with their variables, nor the roots of any."""
    attack = "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; cat /proc/*/root" + str(home.path / "private")
    with subprocess.Popen(["sleep", "1000"], env={"TOKEN": token}) as process:
        poll_until(Path(f"/proc/{process.pid}/environ").read_bytes, "exec closes Popen's pipe before it shows the variables")
        with control():
            assert token in outside(home, f"cat /proc/{process.pid}/environ")
        said = within(home, attack)
        process.kill()
    assert token not in said
    assert str(daemon.socket) not in said


@BY_NAMESPACE
def test_c342_cannot_speak_to_the_hosts_sockets(home: AgentHome) -> None:
    """Those of an ssh agent, of Docker, of the session's bus and of a display, by path and as abstract ones."""
    with tempfile.TemporaryDirectory(prefix="lw-s-", dir=packages.outside_tmp()) as folder:
        names = [f"{folder}/agent.sock", f"{folder}/bus", f"@lw-{secrets.token_hex(8)}-X0"]
        servers = [socket.socket(socket.AF_UNIX) for _ in names]
        for server, name in zip(servers, names, strict=True):
            server.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
            server.listen()
        os.chmod(folder, 0o755)
        (home.project / "connect.py").write_text(CONNECT)
        line = (f"python3 connect.py {' '.join(names)} /run/docker.sock /var/run/docker.sock /tmp/.X11-unix/X0"
                " @/tmp/.X11-unix/X0")
        try:
            with control():
                assert 3 <= outside(home, line).count("connected")
            got = home.run("start", "sh", ".", "--", "-c", f"{line}; env | grep -c -e SSH_AUTH -e DBUS -e DISPLAY",
                           SSH_AUTH_SOCK=names[0], DBUS_SESSION_BUS_ADDRESS=f"unix:path={names[1]}", DISPLAY=":0")
        finally:
            for server in servers:
                server.close()
    assert "connected" not in got.stdout
    assert "0" == got.stdout.splitlines()[-1]


@BY_NAMESPACE
def test_c343_cannot_reach_the_hosts_loopback_or_an_unnamed_host(home: AgentHome) -> None:
    """By the addresses of this host, by a name, past the broker by a name server or by a port."""
    heard = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def listen() -> None:
            with server.accept()[0]:
                heard.set()

        threading.Thread(target=listen, daemon=True).start()
        home.settings('[network]\nallow = ["web.example.org"]\n')
        attack = ("for a in 127.0.0.1 localhost web.example.org evil.example.org 169.254.169.254; do"
                  f" curl -sS -m 3 http://$a:{port}/; curl -sS -m 3 -x http://127.0.0.1:3128 http://$a:{port}/; done")
        said = within(home, attack)
        assert not heard.is_set(), said
        with control():
            outside(home, f"curl -sS -m 3 http://127.0.0.1:{port}/")
            assert heard.wait(10)


@BY_MOUNTS
def test_c344_cannot_change_a_staged_files_original(home: AgentHome) -> None:
    """It is a copy; a state folder is the host's, and that is what the page says."""
    home.define("sh", 'command = ["sh"]\nstate = ["~/.state"]\nstaged = ["~/.staged"]\n')
    (home.path / ".staged").write_text("before")
    attack = "cat ~/.staged; echo evil >~/.staged; ln -f ~/.staged x; mv ~/.staged y; echo kept >~/.state/kept"
    with control():
        assert "before" in within(home, attack)
        assert "kept\n" == (home.path / ".state/kept").read_text()
    assert "before" == (home.path / ".staged").read_text()


@BY_MOUNTS
def test_c345_a_hidden_file_is_still_readable_in_git_objects(home: AgentHome, token: str) -> None:
    """
    What git has of a hidden file in its objects is read, as docs/agent-command.md says: a user who commits a secret
    has to hide .git as well.
    """
    outside(home, "git init -q; git add -f .env; git -c user.name=a -c user.email=a@b commit -qm x")
    with control():
        assert token in within(home, "git -c safe.directory='*' show HEAD:.env")
    home.settings('[files]\nexclude = ["/.git"]\n')
    assert token not in within(home, "git -c safe.directory='*' show HEAD:.env; cat .env")


@BY_MOUNTS
def test_c346_cannot_reach_the_files_of_another_agents_start(home: AgentHome, daemon: LiveDaemon, token: str) -> None:
    """Two on one project share that, and neither the home nor the processes of the other."""
    with home.popen("start", "sh", ".", "--", "-c", f"echo {token} >~/mine; sleep 1000 & echo ready; wait") as other:
        assert other.stdout is not None
        assert "ready\n" == other.stdout.readline()
        rows = leeward.Sandbox.list(socket=daemon.socket)
        with control():
            box = leeward.Sandbox.attach(rows[0]["sandbox"], socket=daemon.socket)
            assert token in box.shell(f"cat {home.path}/mine").stdout_text
            box.detach()
        assert token not in within(home, "cat ~/mine; kill -9 -1; cat /proc/*/root$HOME/mine; cat /dev/shm/* /tmp/*")
        assert other.poll() is None
        other.terminate()
        other.communicate()
