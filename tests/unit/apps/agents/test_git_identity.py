"""Who a person is in git's settings, and nothing else of these."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leeward.apps.agents.git_identity import identity_of, settings_with


def identity(home: Path, project: str = "/p", **environ: str) -> dict[str, str]:
    return identity_of(project, {"HOME": str(home), **environ})


@pytest.mark.parametrize(("text", "name"), [
    ("[user]\n\tname = Ada Lovelace\n", "Ada Lovelace"),
    ("[User]\nNAME=\"Ada  Lovelace \" ; a comment\n", "Ada  Lovelace "),
    ("[core]\nname = no\n[user] name = Ada # a comment\n[user \"x\"]\nname = no\n", "Ada"),
    ("[user]\nname = Ada\\\n Lovelace\n", "Ada Lovelace"),
    ("[user]\nname = \\\"Ada\\\" \\\\ L\n", '"Ada" \\ L'),
    ("# [user]\n; name = no\n[user]\n  # name = no\n  name = Ada\n", "Ada"),
    ("[user]\nname = no\n[user]\nname = Ada\n", "Ada"),
    ("[user]\r\nname = Ada\r\n", "Ada"),
    ("[user]\nname = \u00c9va\n", "\u00c9va"),
])
def test_a_name_is_read_as_git_reads_it(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / ".gitconfig"
    file.write_bytes(text.encode())
    git = subprocess.run(["git", "config", "--file", str(file), "user.name"], capture_output=True, check=True)
    assert f"{name}\n" == git.stdout.decode()
    assert {"name": name} == identity(tmp_path)


@pytest.mark.parametrize("text", [
    "", "[user]\nname\n", "[user]\nname =\n", "[user]\nname = a\\nb\n", "[user]\nname = a\u202eb\n",
    f"[user]\nname = {'a' * 201}\n", "[user]\nsigningkey = x\n", "[credential]\nhelper = !x\n", "[user\nname = a\n"])
def test_what_is_no_plain_name_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / ".gitconfig").write_text(text)
    assert {} == identity(tmp_path)


def test_files_of_git_in_their_order(tmp_path: Path) -> None:
    (tmp_path / ".config/git").mkdir(parents=True)
    (tmp_path / ".config/git/config").write_text("[user]\nname = Before\nemail = before@example.org\n")
    (tmp_path / ".gitconfig").write_text("[user]\nname = After\n")
    (tmp_path / "own").write_text("[user]\nname = Own\n")
    assert {"name": "After", "email": "before@example.org"} == identity(tmp_path)
    assert {"name": "Own"} == identity(tmp_path, GIT_CONFIG_GLOBAL=str(tmp_path / "own"))


@pytest.mark.parametrize(("condition", "project", "holds"), [
    ("gitdir:~/work/", "work/a", True), ("gitdir:~/work/", "play/a", False), ("gitdir:~/work/**", "work/a/b", True),
    ("gitdir:~/work/a/.git", "work/a", True), ("gitdir:work/", "x/work/a", True), ("gitdir/i:~/WORK/", "work/a", True),
    ("gitdir:~/w*/", "work/a", True), ("gitdir:~/w?/", "work/a", False), ("onbranch:main", "work/a", False),
    ("gitdir:", "work/a", False)])
def test_includes_for_a_folder(tmp_path: Path, condition: str, project: str, holds: bool) -> None:
    (tmp_path / ".gitconfig").write_text(f'[user]\nname = A\n[includeIf "{condition}"]\npath = other\n')
    (tmp_path / "other").write_text("[user]\nname = B\n")
    assert {"name": "B" if holds else "A"} == identity(tmp_path, str(tmp_path / project))


def test_files_that_include_each_other_have_an_end(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[user]\nname = A\n[include]\npath = other\n")
    (tmp_path / "other").write_text("[include]\npath = ~/.gitconfig\n")
    assert {"name": "A"} == identity(tmp_path)


def test_a_file_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".gitconfig")
    assert {} == identity(tmp_path)


def test_the_agents_file_says_the_same_to_git(tmp_path: Path) -> None:
    who = {"name": 'Ada "the \\ first" ; #', "email": "ada@example.org"}
    file = tmp_path / "file"
    file.write_bytes(settings_with(who))
    for key, value in who.items():
        got = subprocess.run(["git", "config", "--file", str(file), f"user.{key}"], capture_output=True, check=True)
        assert f"{value}\n" == got.stdout.decode()
