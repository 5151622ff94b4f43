"""
Escapes by what programs on the host obey: a sandbox that can write a folder writes a setting there, and a program on
the host runs what it names.

What must hold: in a protected folder (`leeward mcp --workdir`, WorkdirSandbox with `protect`, the prefix for agents
outside) nothing that runs at once is there after the call that wrote it, and what was there before is as it was.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.box import control
from kit.live_daemon import LiveDaemon
from kit.skip_policy import require
from kit.waiting import poll_until
from leeward.client.protecting import AWAY
from leeward.spec.obeyed.lookup import obeyed_by
from leeward.spec.obeyed.table import AT_ONCE, ROWS

BY_MOUNTS = pytest.mark.no_single_lock("mounts cover it, which no capability and no system call takes away")
BY_CLIENT = pytest.mark.no_single_lock("the client's own process renames and refuses, and no lock of a job is about it")

pytestmark = pytest.mark.needs("user-namespaces")

#: The names of each row that run at once, but for the folders of repositories, in which these programs have to write.
ROWS_AT_ONCE = [(row.who, names) for row in ROWS if row.kind == AT_ONCE and (names := [
    name.replace("*", "x") for name in row.names
    if not name.startswith("~/") and name not in (".git", ".hg", ".sl", ".jj", ".svn", ".pijul", "_darcs", ".bzr")])]
BY_ROW = pytest.mark.parametrize("names", [names for _, names in ROWS_AT_ONCE], ids=[who for who, _ in ROWS_AT_ONCE])

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-obeyed-") as made:
        yield Path(made)


def run(project: Path, daemon: LiveDaemon, line: str, *, protect: bool) -> str:
    """Run *line* in the folder, and return what it has said."""
    with leeward.WorkdirSandbox(project, socket=daemon.socket, protect=protect) as work:
        got = work.exec("sh", ["-c", line])
    return got.stdout_text + got.stderr_text


def outside(project: Path, *words: str) -> None:
    """Run a program on the host, in the folder, as a person does."""
    subprocess.run(words, cwd=project, capture_output=True, check=False, timeout=60, env={
        "PATH": os.environ["PATH"], "HOME": str(project.parent / f"{project.name}-home"), "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", "GIT_CONFIG_KEY_1": "user.useConfigOnly",
        "GIT_CONFIG_VALUE_1": "false", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b"})


def obeyed_content(project: Path, text: str) -> list[str]:
    """The paths in the folder that run at once and have *text* in them, but for those that were put away."""
    found = [path for path in project.rglob("*") if path.is_file() and text in path.read_text(errors="replace")
             and not any(part.startswith(AWAY) for part in path.parts)]
    names = [str(path.relative_to(project)) for path in found]
    return [name for name in names if (row := obeyed_by(name)) is not None and row.kind == AT_ONCE]


@BY_ROW
@BY_MOUNTS
def test_c420_cannot_change_a_setting_that_is_there(project: Path, daemon: LiveDaemon, names: list[str]) -> None:
    """By a write, a removal, a rename, a folder in its place or in that of the folder above, a link."""
    attack, there = "", [project / place / name for name in names for place in ("", "packages/app")]
    for place in there:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("kept")
        attack += ("echo evil >'{0}'; rm -rf '{0}'; mkdir -p '{0}'; echo evil >'{0}/x'; echo evil >new; mv -T new '{0}';"
                   " ln '{0}' other; echo evil >other; ln -sfn new '{0}';").format(place.relative_to(project))
    run(project, daemon, attack + "mv .git g; mv packages p; cp -r p packages; mv .config c; mv mise m;", protect=True)
    assert ["kept"] * len(there) == [place.read_text() for place in there]
    with control():
        run(project, daemon, "".join(f"echo evil >'{name}';" for name in names), protect=False)
        assert ["evil\n"] * len(names) == [(project / name).read_text() for name in names]


@BY_ROW
@BY_CLIENT
def test_c421_cannot_make_a_setting(project: Path, daemon: LiveDaemon, names: list[str]) -> None:
    """In the folder itself, and in folders that were there and that the sandbox makes; as a file, and as a folder."""
    (project / "there").mkdir()
    attack = "".join(f"mkdir -p '{place}{os.path.dirname(name) or '.'}'; echo evil >'{place}{name}' ||"
                     f" {{ mkdir -p '{place}{name}'; echo evil >'{place}{name}/x'; }};"
                     for name in names for place in ("", "there/", "new/er/"))
    run(project, daemon, attack, protect=True)
    assert [] == obeyed_content(project, "evil")
    with control():
        run(project, daemon, attack, protect=False)
        assert 3 * len(names) == len(obeyed_content(project, "evil"))


@pytest.mark.parametrize("name", [".mcp.json", ".claude/settings.json", ".vscode/tasks.json", ".envrc", ".git/config"])
@pytest.mark.smoke
@BY_MOUNTS
def test_c422_cannot_make_a_setting_after_the_call(project: Path, daemon: LiveDaemon, name: str) -> None:
    """By a process that is left behind: in the folder itself the kernel refuses it."""
    attack = f"mkdir -p '{os.path.dirname(name) or '.'}'; echo evil >'{name}'; echo over >done"
    with leeward.WorkdirSandbox(project, socket=daemon.socket, protect=True) as work:
        work.exec("sh", ["-c", f"(until [ -e go ]; do sleep 0.05; done; {attack}) >/dev/null 2>&1 & :"], background=True)
        work.write_file("go", "")
        work.exec("sh", ["-c", "until [ -e done ]; do sleep 0.05; done"])
        assert [] == obeyed_content(project, "evil")
        assert [] == work.put_away
    with control():
        run(project, daemon, attack, protect=False)
        assert [name] == obeyed_content(project, "evil")


@pytest.mark.parametrize("end", ["destroy", "another sandbox"])
@BY_CLIENT
def test_c421_cannot_leave_a_setting_between_the_last_call_and_the_end(project: Path, daemon: LiveDaemon, end: str) -> None:
    """By a process that runs on."""
    (project / "app").mkdir()
    attack = "until [ -e go ]; do sleep 0.02; done; echo evil >app/.envrc; : >done"
    with leeward.WorkdirSandbox(project, socket=daemon.socket, protect=True) as work:
        work.exec("sh", ["-c", f"({attack}) >/dev/null 2>&1 & :"], background=True)
        (project / "go").touch()
        poll_until((project / "done").exists, "the process has written")
        assert ["app/.envrc"] == obeyed_content(project, "evil")
        if end == "another sandbox":
            leeward.Sandbox.attach(work._box.id, socket=daemon.socket).close()
            assert work.exec("true").ok
            assert [] == obeyed_content(project, "evil")
    assert [] == obeyed_content(project, "evil")
    assert ["app/.envrc"] == work.put_away
    with control():
        run(project, daemon, attack, protect=False)
        assert ["app/.envrc"] == obeyed_content(project, "evil")


#: Ways to have a program run `touch evil` on the host: the program, what it needs before, what the sandbox writes.
EVIL = "printf '#!/bin/sh\\ntouch \"%s\"/evil\\n' \"$PWD\" >{0}; chmod +x {0};"
RUNS = {
    "git's fsmonitor": (("git", "status"), ["git", "init", "-q"], "git config core.fsmonitor 'touch evil; false'"),
    "git's hook": (("git", "commit", "-q", "--allow-empty", "-m", "x"), ["git", "init", "-q"],
                   f"mkdir -p .git/hooks; {EVIL.format('.git/hooks/pre-commit')}"),
    "git's other folder": (("git", "status"), [], "git init -q .; git config core.fsmonitor 'touch evil; false'"),
    "git's file": (("git", "status"), [], ("git init -q x; mv x/.git store; git config -f store/config core.fsmonitor"
                                          " 'touch evil; false'; echo 'gitdir: store' >.git")),
    "a bare repository": (("git", "-C", "bare", "status"), [],
                          ("git init -q --bare bare; git config -f bare/config core.bare false; git config -f"
                          " bare/config core.worktree \"$PWD/bare\"; git config -f bare/config core.fsmonitor"
                          " \"touch '$PWD/evil'; false\"")),
    "the folder as a repository": (("git", "status"), [],
                                   ("git init -q --bare x; git -C x config core.bare false; git -C x config core.worktree"
                                   " .; git -C x config core.fsmonitor \"touch '$PWD/evil'; false\"; mv x/* .")),
    "another repository's settings": (("git", "-C", "sub", "status"), [],
                                      ("git init -q sub; git init -q other; git -C other config core.fsmonitor"
                                      " \"touch '$PWD/evil'; false\"; echo ../../other/.git >sub/.git/commondir")),
    "a submodule": (("git", "-C", "sub", "status"), ["git", "init", "-q"],
                    ("git init -q sub; mkdir -p .git/modules; mv sub/.git .git/modules/sub; git config -f"
                    " .git/modules/sub/config core.fsmonitor \"touch '$PWD/evil'; false\"; rm -rf sub/.git;"
                    " echo 'gitdir: ../.git/modules/sub' >sub/.git")),
    "a worktree's settings": (("git", "status"), ["sh", "-c", "git init -q; git config extensions.worktreeConfig true"],
                              "git config -f .git/config.worktree core.fsmonitor 'touch evil; false'"),
    "git's attributes": (("git", "add", "x"), ["sh", "-c", "git init -q; git config filter.f.clean 'touch evil; cat'"],
                         "mkdir -p .git/info; echo 'x filter=f' >.git/info/attributes; touch x"),
    "hooks in the project": (("git", "commit", "-q", "--allow-empty", "-m", "x"),
                             ["sh", "-c", "git init -q; mkdir h; git config core.hooksPath \"$PWD/h\""],
                             EVIL.format("h/pre-commit")),
    "hooks in a folder that is missing": (("git", "commit", "-q", "--allow-empty", "-m", "x"),
                                          ["sh", "-c", "git init -q; git config core.hooksPath h"],
                                          f"mkdir h; {EVIL.format('h/pre-commit')}"),
    "a hook that is a link": (("git", "commit", "-q", "--allow-empty", "-m", "x"),
                              ["sh", "-c", ("git init -q; mkdir s; echo >s/h; chmod +x s/h;"
                                            " ln -s ../../s/h .git/hooks/pre-commit")], EVIL.format("s/h")),
    "a hook that is a link to nothing": (("git", "commit", "-q", "--allow-empty", "-m", "x"),
                                         ["sh", "-c", "git init -q; ln -s ../../s/h .git/hooks/pre-commit"],
                                         f"mkdir s; {EVIL.format('s/h')}"),
    "an included file": (("git", "status"), ["sh", "-c", "git init -q; touch more; git config include.path ../more"],
                         "printf '[core]\\nfsmonitor = touch evil; false\\n' >more"),
    "a filter's script": (("git", "add", "x"),
                          ["sh", "-c", ("git init -q; git config filter.f.clean 'sh clean.sh'; echo cat >clean.sh;"
                                        " echo 'x filter=f' >.gitattributes")],
                          "echo 'touch evil; cat' >clean.sh; touch x"),
    "a submodule's hooks": (("git", "-C", "sub", "commit", "-q", "--allow-empty", "-m", "x"),
                            ["sh", "-c", "git init -q sub; git -C sub config core.hooksPath ../h; mkdir h"],
                            EVIL.format("h/pre-commit")),
    "Mercurial's settings": (("hg", "status"), ["hg", "init"], "printf '[hooks]\\npre-status = touch evil\\n' >.hg/hgrc"),
    "Mercurial's new repository": (("hg", "status"), [], ("mkdir -p .hg/store; echo revlogv1 >.hg/requires;"
                                   " printf '[hooks]\\npre-status = touch evil\\n' >.hg/hgrc")),
    "direnv": (("direnv", "exec", ".", "true"), ["sh", "-c", ("echo 'source_env_if_exists .direnvrc' >.envrc;"
                                                 " direnv allow")], "echo 'touch evil' >.direnvrc"),
    "pdb": (("python3", "-m", "pdb", "x.py"), ["sh", "-c", "echo pass >x.py"],
            "echo 'import os; os.system(\"touch evil\")' >.pdbrc"),
    "a shell of make": (("make",), ["sh", "-c", "git init -q; printf 'all:\\n\\tgit status\\n' >Makefile"],
                        "git config core.fsmonitor 'touch evil; false'"),
    "a script of node": (("node", "-e", "require('child_process').execSync('git status')"), ["git", "init", "-q"],
                         "git config core.fsmonitor 'touch evil; false'"),
}


@pytest.mark.parametrize("way", RUNS)
@BY_CLIENT
def test_c423_cannot_have_a_program_on_the_host_run_something(project: Path, daemon: LiveDaemon, way: str) -> None:
    """The programs themselves, which the test starts as a person does after the call."""
    words, before, attack = RUNS[way]
    require(f"usr-{words[0]}")
    if before:
        outside(project, *before)
    # In the sandbox git needs a home, and mustn't mind whose folder it is.
    attack = ("export HOME=/tmp GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; "
              + attack.replace("$PWD", str(project)))
    run(project, daemon, attack, protect=True)
    outside(project, *words)
    assert not (project / "evil").exists()
    with control():
        for name in os.listdir(project):
            subprocess.run(["rm", "-rf", project / name], check=True)
        if before:
            outside(project, *before)
        run(project, daemon, attack, protect=False)
        outside(project, *words)
        assert (project / "evil").exists()


@pytest.mark.parametrize("path", [".git/config", "sub/.envrc", ".VSCODE/tasks.json", "link/config", "bare/config",
                                  "half/refs/heads/x", ".g\u200cit/config", "hooks/new", "sub/hooks/new"])
@BY_CLIENT
def test_c424_cannot_write_a_setting_by_the_calls_of_the_folder(project: Path, daemon: LiveDaemon, path: str) -> None:
    """Whose paths a model may have chosen."""
    for name in (".git", "bare/objects", "bare/refs", "half"):
        (project / name).mkdir(parents=True)
    for name in ("bare/HEAD", "half/HEAD"):
        (project / name).touch()
    (project / "link").symlink_to(".git")
    (project / "hooks").mkdir()
    (project / ".git/config").write_text(f"[core]\nhooksPath = hooks\nhooksPath = {project}/sub/hooks\n")
    (project / "sub/hooks").mkdir(parents=True)
    with leeward.WorkdirSandbox(project, socket=daemon.socket, protect=True) as work:
        with pytest.raises(leeward.WorkdirIoError):
            work.write_file(path, "evil")
        work.write_file("src/new.py", "pass")
        assert {".git", "bare", "half", "hooks", "link", "src", "sub"} == {each.name for each in work.list_dir()}
    assert [] == [each for each in project.rglob("*") if each.is_file() and "evil" in each.read_text()]
    with control(), leeward.WorkdirSandbox(project, socket=daemon.socket) as work:
        work.write_file(path, "evil")
        assert "evil" == (project / path).read_text()


#: What a program on the host does with a protected name while a sandbox is open, by which the kernel takes the mount
#: away: before, what it does, and what the sandbox does then.
REPLACED = {
    "git config": ("git init -q", "git config user.name x", "git config -f .git/config core.fsmonitor evil"),
    "an editor": ("echo old >.envrc", "echo new >.e; mv .e .envrc", "echo evil >>.envrc"),
    "git clean": ("git init -q", "git clean -fdq", "mkdir -p .claude; echo evil >.claude/settings.json"),
    "another branch": ("mkdir -p app/.vscode; touch app/.vscode/tasks.json", "rm -rf old; mv app old; cp -r old app",
                       "mkdir -p app/.vscode; echo evil >app/.vscode/tasks.json"),
}


@pytest.mark.parametrize("way", REPLACED)
@BY_CLIENT
def test_c432_cannot_write_a_setting_that_the_host_has_replaced(project: Path, daemon: LiveDaemon, way: str) -> None:
    """Between two calls, after which the new one is protected, and by a process that runs meanwhile."""
    before, does, attack = REPLACED[way]
    outside(project, "sh", "-c", before)
    waits = ["-c", f"(until [ -e go ]; do sleep 0.02; done; {attack}; : >done) >/dev/null 2>&1 & :"]
    with leeward.WorkdirSandbox(project, socket=daemon.socket, protect=True) as work:
        outside(project, "sh", "-c", does)  # before there is a sandbox
        work.write_file("notes", "")
        assert work.exec("sh", ["-c", attack]).exit_code
        outside(project, "sh", "-c", does)
        assert work.exec("sh", ["-c", attack]).exit_code
        assert [] == work.put_away
        work.exec("sh", waits, background=True)
        outside(project, "sh", "-c", does)
        (project / "go").touch()
        work.exec("sh", ["-c", "until [ -e done ]; do sleep 0.02; done"])
        assert work.put_away
        work.exec("sh", ["-c", attack])  # in another sandbox
        assert [] == obeyed_content(project, "evil")
    with control():
        run(project, daemon, attack, protect=False)
        assert 1 == len(obeyed_content(project, "evil"))
