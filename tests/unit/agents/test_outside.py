"""
What programs outside run by themselves, before and after.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leeward.agents import outside


def test_every_kind_of_change_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/config").write_text("[core]\n")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/settings.json").write_text("{}")
    (tmp_path / ".npmrc").write_text("x")
    (tmp_path / "main.py").write_text("x")
    before = outside.snapshot(str(tmp_path))
    assert [] == outside.changed(before, outside.snapshot(str(tmp_path)))

    (tmp_path / "main.py").write_text("y")                      # the project's own
    (tmp_path / ".git/config").write_text("[cor3]\n")           # as long as before
    (tmp_path / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (tmp_path / ".vscode/settings.json").chmod(0o755)
    (tmp_path / ".npmrc").unlink()
    (tmp_path / ".envrc").symlink_to("/etc/passwd")
    assert [".envrc", ".git/config", ".git/hooks", ".npmrc", ".vscode"] == outside.changed(
        before, outside.snapshot(str(tmp_path)))


def test_hostile_entries_do_not_hang_the_search(tmp_path: Path) -> None:
    """
    FIFOs, links to devices and huge files aren't opened, or not for long.
    """
    (tmp_path / ".vscode").mkdir()
    os.mkfifo(tmp_path / ".vscode/fifo")
    (tmp_path / ".npmrc").symlink_to("/dev/zero")
    with (tmp_path / ".yarnrc").open("w") as file:
        file.truncate(1 << 40)
    for number in range(1200):
        (tmp_path / f".vscode/{number}").touch()
    assert {".vscode", ".npmrc", ".yarnrc"} == set(outside.snapshot(str(tmp_path)))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / ".idea").mkdir()
    before = outside.snapshot(str(tmp_path))
    (tmp_path / ".idea" / os.fsdecode(b"\xff")).touch()
    assert [".idea"] == outside.changed(before, outside.snapshot(str(tmp_path)))


@pytest.mark.timeout(30)
def test_a_tree_that_is_deeper_than_calls_is_looked_at(tmp_path: Path) -> None:
    """
    A project's folder of an editor may be made so, by a stranger or by the agent.
    """
    at = os.open(tmp_path, os.O_PATH)
    for name in (".vscode", *"a" * 1500):  # one by one: Path.mkdir calls itself for each
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    before = outside.snapshot(str(tmp_path))
    (tmp_path / ".vscode/a/tasks.json").write_text("x")

    assert [".vscode"] == outside.changed(before, outside.snapshot(str(tmp_path)))
    subprocess.run(["rm", "-rf", tmp_path / ".vscode"], check=True)  # which pytest can't


def test_what_git_obeys_is_found_in_each_form(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: .real\n")
    for path in (".real", "a/.git", "link/real"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "config").write_text("x")
    (tmp_path / "link/.git").symlink_to("real")
    there = ["a/.git", "link/.git"]
    before = outside.snapshot(str(tmp_path), there)
    assert {".git", *there} <= set(before)
    (tmp_path / "a/.git/index").touch()  # which git writes with each commit
    assert [] == outside.changed(before, outside.snapshot(str(tmp_path), there))
    for path in (".real", "a/.git", "link/real"):
        (tmp_path / path / "config").write_text("y")
    assert [".git", "a/.git", "link/.git"] == outside.changed(before, outside.snapshot(str(tmp_path), there))
    (tmp_path / ".git").unlink()
    (tmp_path / ".git").mkdir()
    assert ".git" not in outside.snapshot(str(tmp_path))  # its parts are


def test_a_workspace_of_an_editors(tmp_path: Path) -> None:
    (tmp_path / "x.code-workspace").touch()
    (tmp_path / "y.sublime-project").touch()
    assert {"x.code-workspace", "y.sublime-project"} == set(outside.snapshot(str(tmp_path)))


def test_no_two_trees_have_one_digest(tmp_path: Path) -> None:
    """
    One file's content isn't taken for two files.
    """
    folder = tmp_path / ".husky"
    folder.mkdir(mode=0o755)
    (folder / "a").write_text("x")
    (folder / "b").write_text("y")
    before = outside.snapshot(str(tmp_path))
    (folder / "b").unlink()
    (folder / "a").write_text(f"x{(folder / 'a').stat().st_mode:o} 'b' y")
    assert [".husky"] == outside.changed(before, outside.snapshot(str(tmp_path)))
