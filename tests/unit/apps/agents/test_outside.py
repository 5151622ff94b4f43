"""What programs outside run by themselves, before and after."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leeward.apps.agents import outside


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
    """FIFOs, links to devices and huge files aren't opened, or not for long."""
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
    """A project's folder of an editor may be made so, by a stranger or by the agent."""
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
    before = outside.snapshot(str(tmp_path))
    assert {".git", ".real", "a/.git", "link/.git"} == set(before)
    (tmp_path / "a/.git/index").touch()  # which git writes with each commit
    assert [] == outside.changed(before, outside.snapshot(str(tmp_path)))
    for path in (".real", "a/.git", "link/real"):
        (tmp_path / path / "config").write_text("y")
    assert [".git", ".real", "a/.git", "link/.git"] == outside.changed(before, outside.snapshot(str(tmp_path)))
    (tmp_path / ".git").unlink()
    (tmp_path / ".git").mkdir()
    assert ".git" not in outside.snapshot(str(tmp_path))  # its parts are


@pytest.mark.parametrize("path", [
    ".newtool/config", "deep/er/.newrc", "packages/app/.vscode/tasks.json", "sub/Makefile", "build.rs", "Gemfile",
    "conftest.py", "setup.py", "eslint.config.js", "package.json", ".venv/bin/python", "bin/python3", "node_modules/.bin/x",
    "a/.GIT/config", "x.git/config", "a/.hg/hgrc", ".jj/repo/config.toml", ".pijul/config", "_darcs/prefs/defaults",
])
def test_every_new_or_changed_name_is_told(tmp_path: Path, path: str) -> None:
    for name in ("objects", "refs"):
        (tmp_path / "x.git" / name).mkdir(parents=True)
    (tmp_path / "x.git/HEAD").touch()
    for content in ("one", "two"):
        before = outside.snapshot(str(tmp_path))
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
        changed = outside.changed(before, outside.snapshot(str(tmp_path)))
        assert changed
        assert all(path.startswith(each) for each in changed), changed


def test_settings_in_a_state_folder(tmp_path: Path) -> None:
    folder = tmp_path / ".claude"
    (folder / "hooks").mkdir(parents=True)
    before = outside.state_snapshot(str(folder), str(tmp_path))
    (folder / "settings.json").write_text("{}")
    (folder / "hooks/x.sh").write_text("evil")
    (folder / "statusline.sh").write_text("evil")
    (folder / "history.jsonl").write_text("what was said")
    (folder / ".credentials.json").write_text("a token")
    assert [str(folder / name) for name in ("hooks", "settings.json", "statusline.sh")] == outside.changed(
        before, outside.state_snapshot(str(folder), str(tmp_path)))


def test_a_workspace_of_an_editors(tmp_path: Path) -> None:
    (tmp_path / "x.code-workspace").touch()
    (tmp_path / "y.sublime-project").touch()
    assert {"x.code-workspace", "y.sublime-project"} == set(outside.snapshot(str(tmp_path)))


def test_no_two_trees_have_one_digest(tmp_path: Path) -> None:
    """One file's content isn't taken for two files."""
    folder = tmp_path / ".husky"
    folder.mkdir(mode=0o755)
    (folder / "a").write_text("x")
    (folder / "b").write_text("y")
    before = outside.snapshot(str(tmp_path))
    (folder / "b").unlink()
    (folder / "a").write_text(f"x{(folder / 'a').stat().st_mode:o} 'b' y")
    assert [".husky"] == outside.changed(before, outside.snapshot(str(tmp_path)))


def test_a_link_is_followed_in_the_project_alone(tmp_path: Path) -> None:
    """Hooks of git's are often links to scripts of the project. Circles and long chains end."""
    project = tmp_path / "project"
    (project / ".git/hooks").mkdir(parents=True)
    for path in (project / "check", tmp_path / "other"):
        path.write_text("#!/bin/sh\n")
    (project / ".git/hooks/pre-commit").symlink_to("../../check")
    (project / ".npmrc").symlink_to("../other")
    (project / ".idea").symlink_to("1")
    for number in range(1, 3000):
        (project / f"{number}").symlink_to(f"{number + 1}")
    (project / ".zed").symlink_to(".helix")
    (project / ".helix").symlink_to(".zed")
    (project / ".vscode").mkdir()
    (project / ".vscode/up").symlink_to("../.vscode")
    before = outside.snapshot(str(project))
    assert [] == outside.changed(before, outside.snapshot(str(project)))
    for path in (project / "check", tmp_path / "other"):
        path.write_text("evil\n")
    assert [".git/hooks"] == outside.changed(before, outside.snapshot(str(project)))
    folder = os.open(project, os.O_PATH)
    try:
        assert outside.snapshot(f"/proc/self/fd/{folder}") == outside.snapshot(str(project))
    finally:
        os.close(folder)


@pytest.mark.parametrize(("settings", "path"), [
    ("[core]\n\thooksPath = tools/hooks\n", "tools/hooks"),
    ("[Core] HOOKSPATH=tools/hooks", "tools/hooks"),
    ('[include]\n\tpath = "../tools/settings"\n', "tools/settings"),
    ("[include]\n\tpath = settings\n", ".git/settings"),
    ("[filter \"x\"]\n\tclean = sh ./tools/clean.sh --to %f\n", "tools/clean.sh"),
    ("[alias]\n\tst = \"!./st\"\n", "st"),
    ("[core]\n\tfsmonitor = {project}/watch\n", "watch"),
])
def test_files_that_the_settings_of_git_name(tmp_path: Path, settings: str, path: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(settings.format(project=tmp_path))
    (tmp_path / path).parent.mkdir(exist_ok=True)
    before = outside.snapshot(str(tmp_path))
    (tmp_path / path).write_text("evil")
    folder = os.open(tmp_path, os.O_PATH)
    try:
        assert path in outside.snapshot(f"/proc/self/fd/{folder}")
    finally:
        os.close(folder)
    assert [path] == outside.changed(before, outside.snapshot(str(tmp_path)))
    after = outside.snapshot(str(tmp_path))
    (tmp_path / path).write_text("EVIL")
    assert [path] == outside.changed(after, outside.snapshot(str(tmp_path)))


def test_files_that_an_included_file_names(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[include]\n\tpath = ../more\n")
    (tmp_path / "more").write_text("[core]\n\tfsmonitor = ./watch\n[include]\n\tpath = more\n")
    (tmp_path / "watch").touch()
    assert {".git/config", "more", "watch"} == set(outside.snapshot(str(tmp_path)))


def test_usual_settings_of_git_name_nothing_of_the_project(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n\tbare = false\n[remote \"origin\"]\n\turl = main\n\tfetch ="
                                          " +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tmerge = main\n")
    (tmp_path / "main").touch()
    assert [".git/config"] == list(outside.snapshot(str(tmp_path)))


def test_a_project_that_becomes_a_repository_itself(tmp_path: Path) -> None:
    before = outside.snapshot(str(tmp_path))
    for name in ("objects", "refs"):
        (tmp_path / name).mkdir()
    (tmp_path / "config").write_text("[core]\n")
    assert [] == outside.changed(before, outside.snapshot(str(tmp_path)))
    (tmp_path / "HEAD").write_text("ref: refs/heads/x\n")
    assert ["HEAD"] == outside.changed(before, outside.snapshot(str(tmp_path)))
    before = outside.snapshot(str(tmp_path))
    (tmp_path / "config").write_text("[c0re]\n")
    assert ["HEAD"] == outside.changed(before, outside.snapshot(str(tmp_path)))


def test_more_files_than_are_compared_count_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent could fill a folder in one run, and change what isn't looked at in the next one."""
    monkeypatch.setattr(outside, "_MOST_ENTRIES", 10)
    (tmp_path / ".vscode").mkdir()
    for number in range(20):
        (tmp_path / f".vscode/{number}").touch()
    assert [".vscode"] == outside.changed(outside.snapshot(str(tmp_path)), outside.snapshot(str(tmp_path)))
