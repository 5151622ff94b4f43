from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leeward.apps.approvals.git import git_host
from leeward.apps.approvals.git.git_host import GitFailed, GitIntake, git, is_local, resolved_remote, without_password
from leeward.errors import Busy


def test_passwords_of_addresses_are_left_out() -> None:
    said = "fatal: unable to access 'https://me:secret@example.org/x.git/': no, https://token@b.example"

    assert "fatal: unable to access 'https://example.org/x.git/': no, https://b.example" == without_password(said)
    assert "git@example.org:x.git" == without_password("git@example.org:x.git")


@pytest.mark.parametrize(("remote", "local"), [
    ("/srv/x.git", True), ("./x:y", True), ("x", True), ("../x", True), ("file:///srv/x", True),
    ("FILE:///srv/x", True),
    ("https://example.org/x", False), ("git@example.org:x.git", False), ("host:/srv/x", False), ("ssh://h/x", False)])
def test_remotes_that_are_folders_of_this_host_are_local(remote: str, local: bool) -> None:
    assert local is is_local(remote)


@pytest.mark.parametrize(("remote", "found"), [
    ("../r.git", "/home/me/r.git"), ("r", "/home/me/project/r"), ("/srv/r.git", "/srv/r.git"),
    ("file:///srv/r", "file:///srv/r"), ("git@example.org:r", "git@example.org:r"),
    ("https://example.org/../r", "https://example.org/../r"), ("", "")])
def test_a_folder_is_named_from_the_project_on(remote: str, found: str) -> None:
    assert found == resolved_remote("/home/me/project", remote)


def test_a_failed_push_says_why(tmp_path: Path) -> None:
    """Not the advice that git gives behind it."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(GitFailed) as raised:
        git("fetch", "--", str(tmp_path / "none"), folder=str(tmp_path))
    assert "fatal: " in str(raised.value)
    assert "none" in str(raised.value)
    rejected = (b"To https://me:pw@example.org/x\n ! [rejected]        a -> a (fetch first)\n"
                b"error: failed to push some refs to 'https://me:pw@example.org/x'\nhint: Updates were rejected\n")
    assert ("! [rejected]        a -> a (fetch first); error: failed to push some refs to 'https://example.org/x'"
            == git_host._why(rejected, 1))
    assert "last words" == git_host._why(b"first\n\nlast words\n\n", 1)
    assert "exit status 3" == git_host._why(b"", 3)


def test_a_failure_has_the_words_of_git(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(GitFailed, match=r"git rev-parse: |git: no such file"):
        git("rev-parse", "--verify", "HEAD", folder=str(tmp_path_factory.mktemp("none")))


class Repositories:
    """A project, and what a sandbox has made of a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project, self.copy = folder, str(folder / "project"), str(folder / "copy")
        self.git("init", "-q", "-b", "main", self.project)
        self.first = self.commit("first", self.project)
        self.git("update-ref", "refs/remotes/origin/main", self.first)

    def git(self, *words: str, within: str = "") -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-C", within or self.project]
        where = who[:-2] if "init" == words[0] or "clone" == words[0] else who
        return subprocess.run(["git", *where, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def commit(self, name: str, within: str, content: bytes = b"x\n") -> str:
        Path(within, name).write_bytes(content)
        self.git("add", name, within=within)
        self.git("commit", "-qm", name, within=within)
        return self.git("rev-parse", "HEAD", within=within)

    def pushed(self, branch: str) -> bytes:
        """The bundle of a branch of the copy."""
        out = self.folder / "bundle"
        self.git("bundle", "create", "-q", str(out), f"refs/heads/{branch}", within=self.copy)
        return out.read_bytes()

    def intake(self) -> GitIntake:
        return GitIntake(str(self.folder / "state"), self.project)


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    return Repositories(tmp_path)


def test_commits_that_the_operator_has_not_pushed_are_shown(repositories: Repositories) -> None:
    """A branch on top of them takes them to the remote."""
    repositories.commit("private", repositories.project)
    repositories.git("clone", "-q", repositories.project, repositories.copy)
    repositories.git("checkout", "-qb", "work", within=repositories.copy)
    repositories.commit("public", repositories.copy)
    intake = repositories.intake()
    tip = intake.take_in(repositories.pushed("work"), "box", "work")

    base = intake.base_of("work", tip)
    commits, diff, _ = intake.about(base, tip)

    assert repositories.first == base
    assert ["public", "private"] == [line.rpartition(" ")[2] for line in commits]
    assert "b/private" in diff


def test_no_program_of_the_project_runs_for_a_missing_object(repositories: Repositories) -> None:
    """A partial clone fetches what is missing by a program that its own configuration names."""
    repositories.git("clone", "-q", repositories.project, repositories.copy)
    tip = repositories.commit("more", repositories.copy)
    intake = repositories.intake()
    assert tip == intake.take_in(repositories.pushed("main"), "box", "main")
    canary = repositories.folder / "canary"
    for key, value in (("core.repositoryformatversion", "1"), ("extensions.partialClone", "origin"),
                       ("remote.origin.promisor", "true"), ("remote.origin.url", repositories.project),
                       ("remote.origin.uploadpack", f"touch {canary}; git-upload-pack")):
        repositories.git("config", key, value)
    Path(repositories.project, ".git/refs/remotes/origin/main").write_text("1" * 40 + "\n")

    assert "" == intake.base_of("main", tip)

    assert not canary.exists()


def test_a_diff_is_read_up_to_its_bound(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> None:
    repositories.git("clone", "-q", repositories.project, repositories.copy)
    repositories.commit("large", repositories.copy, b"0123456\n" * (1 << 16))
    monkeypatch.setattr(git_host, "MOST_PRINTED", 1 << 12)
    intake = repositories.intake()
    tip = intake.take_in(repositories.pushed("main"), "box", "main")

    commits, diff, remarks = intake.about(repositories.first, tip)

    assert (1, 1 << 12) == (len(commits), len(diff))
    assert "the diff is longer than what is shown" in remarks
    with pytest.raises(GitFailed, match="printed more than"):
        git("cat-file", "blob", f"{tip}:large", folder=intake.path)


@pytest.mark.parametrize("ending", [b"", b"\n", b"/\n"])
def test_c352_cannot_push_from_another_repository_of_the_host(repositories: Repositories, ending: bytes) -> None:
    """By a `.git` file in place of the bundle. The control: git itself follows the file."""
    private = str(repositories.folder / "private")
    repositories.git("init", "-q", "-b", "work", private)
    secret = repositories.commit("secret", private, b"a key")
    intake, pushed = repositories.intake(), f"gitdir: {private}/.git".encode() + ending
    with pytest.raises(GitFailed, match="no bundle"):
        intake.take_in(pushed, "box", "work")

    file = repositories.folder / "pushed"
    file.write_bytes(pushed)
    intake._make()
    with pytest.raises(GitFailed):
        git("cat-file", "-e", secret, folder=intake.path)
    git("fetch", "--quiet", str(file), "refs/heads/work", folder=intake.path)
    git("cat-file", "-e", secret, folder=intake.path)


@pytest.mark.parametrize("first", [b"# v2 git bundle\n", b"# v3 git bundle\n"])
def test_c352_a_bundle_that_names_a_repository_is_a_broken_bundle(repositories: Repositories, first: bytes) -> None:
    repositories.git("init", "-q", "-b", "work", str(repositories.folder / "private"))
    repositories.commit("secret", str(repositories.folder / "private"))
    with pytest.raises(GitFailed, match="git fetch"):
        repositories.intake().take_in(first + f"gitdir: {repositories.folder}/private/.git\n".encode(), "box", "work")


def test_a_sandbox_fills_so_much_of_the_disk(repositories: Repositories, monkeypatch: pytest.MonkeyPatch) -> None:
    repositories.git("clone", "-q", repositories.project, repositories.copy)
    repositories.commit("one", repositories.copy, os.urandom(1 << 12))
    monkeypatch.setattr(git_host, "MOST_TAKEN", 1 << 12)
    intake, bundle = repositories.intake(), repositories.pushed("main")
    tip = intake.take_in(bundle, "box", "main")

    with pytest.raises(Busy):
        intake.take_in(bundle, "box", "main")

    assert tip == repositories.intake().take_in(bundle, "other", "main")


def test_git_and_its_children_have_limits(tmp_path: Path) -> None:
    said = git("-c", "alias.limits=!cat /proc/self/limits", "limits", folder=str(tmp_path)).decode()
    found = {line[:25].strip(): line[26:].split()[:2] for line in said.splitlines()}
    assert [str(git_host.MOST_CPU_S)] * 2 == found["Max cpu time"]
    assert [str(git_host.MOST_FILE)] * 2 == found["Max file size"]
    assert [str(git_host.MOST_MEMORY)] * 2 == found["Max address space"]
    assert ["0"] * 2 == found["Max core file size"]


def test_c364_cannot_take_the_processor_the_memory_or_the_disk_of_the_host_by_git(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What a bundle makes git do may be any of these; here a program stands for it. The control: within the limits it
    comes to its end.
    """
    spin = "i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo done"
    fill = "head -c %d /dev/zero > file && echo done"
    hold = f"{sys.executable} -c \'print(len(bytearray(%d)) and \"done\")\'"

    def run(line: str, most: int) -> bytes:
        return git("-c", f"alias.attack=!{line % most}", "attack", folder=str(tmp_path))
    for line, small, large in ((spin, 10, 1_000_000_000), (fill, 10, 20 << 20), (hold, 10, 1 << 30)):
        monkeypatch.setattr(git_host, "MOST_CPU_S", 1)
        monkeypatch.setattr(git_host, "MOST_FILE", 1 << 20)
        monkeypatch.setattr(git_host, "MOST_MEMORY", 512 << 20)
        assert b"done\n" == run(line, small)
        with pytest.raises(GitFailed):
            run(line, large)


def test_c300_c511_cannot_hide_a_change_in_a_push(repositories: Repositories) -> None:
    """
    A mode bit, a link, a submodule, a file that git obeys, a name and a content with characters that aren't seen, and
    line ends alone: each is in the diff, and what a diff doesn't show well in the remarks.
    """
    copy = repositories.copy
    for name, content in (("run", b"x\n"), ("lines", b"a\nb\n")):
        repositories.commit(name, repositories.project, content)
    base = repositories.git("rev-parse", "HEAD")
    repositories.git("clone", "-q", repositories.project, copy)
    repositories.git("checkout", "-qb", "work", within=copy)
    Path(copy, "run").chmod(0o755)
    Path(copy, "link").symlink_to("/etc/passwd")
    Path(copy, ".gitattributes").write_text("* filter=x\n")
    Path(copy, "tidy\u202egnp.sh").write_text("true\n")
    Path(copy, "seen").write_text("if x:\u200b\n")
    Path(copy, "lines").write_bytes(b"a\r\nb\r\n")
    Path(copy, "Makefile").write_text("all:" + " " * 60 + "; true\n# p\u0430ypal\n")
    Path(copy, "\u0430bc").touch()
    Path(copy, ".git", "hooks", "pre-commit").write_text("#!/bin/sh\n")  # it isn't part of any commit
    repositories.git("add", "-A", within=copy)
    repositories.git("update-index", "--add", "--cacheinfo", f"160000,{base},vendor", within=copy)
    repositories.git("commit", "-qm", "tidy up", within=copy)
    intake = repositories.intake()
    tip = intake.take_in(repositories.pushed("work"), "box", "work")

    commits, diff, remarks = intake.about(base, tip)

    assert [commits[0]] == commits
    for said in ("'run' can be run", "'link' is a link", "'vendor' is a submodule",
                 "'.gitattributes': git obeys such a file", "the name has characters that can't be seen",
                 "characters in what is added can't be seen", "'Makefile': obeyed on the host by make",
                 "goes on behind 60 blanks", "a word that is added has letters", "the name has letters of another alphabet"):
        assert any(said in remark for remark in remarks), (said, remarks)
    for said in ("old mode 100644\nnew mode 100755", "+/etc/passwd", f"+Subproject commit {base}", "+a\r", "-a\n"):
        assert said in diff, said
    assert "pre-commit" not in diff
