"""The commits and the files of a push."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kit.approvals_pictures import AFTER, BEFORE, picture, repository
from leeward.apps.approvals.git import pushed_changes as module
from leeward.apps.approvals.git.pushed_changes import PushedChanges, pushed_changes
from leeward.errors import BadRequest


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> PushedChanges:
    return pushed_changes(*repository(tmp_path_factory.mktemp("push") / "repository"))


def test_a_push_has_its_commits_and_files(pushed: PushedChanges) -> None:
    """Names as they are, also those that git would quote."""
    assert ["A script, a new logo, and a name in other words", "Write the settings file atomically"] == [
        each.subject for each in pushed.commits]
    assert {"empty": "add", "logo.png": "change", "run.sh": "add", "settings.py": "change",
            "\u00fcberblick.txt": "rename"} == {each.path: each.verb for each in pushed.files}
    by_path = {each.path: each for each in pushed.files}
    assert ("old name.txt", ()) == (by_path["\u00fcberblick.txt"].was, by_path["\u00fcberblick.txt"].patch)
    assert ("100755", ("@@ -0,0 +1,2 @@", "+#!/bin/sh", "+exec python3 settings.py")) == (
        by_path["run.sh"].mode, by_path["run.sh"].patch)
    assert [True] == [each.is_binary for each in pushed.files if each.path == "logo.png"]
    place = [each.path for each in pushed.files].index("logo.png")
    assert (picture(64, 40, 90), picture(64, 40, 200)) == (pushed.content(place, "before"), pushed.content(place, "after"))


def test_one_commit_has_its_own_files(pushed: PushedChanges) -> None:
    tip, first = pushed.commits
    one = pushed_changes(pushed.repository, first.parent, tip.commit, first.commit)
    assert ["settings.py"] == [each.path for each in one.files]
    changed = [line for line in one.files[0].patch if line[0] in "+-"]
    assert {line for line in AFTER.splitlines() if line not in BEFORE} == {
        line[1:] for line in changed if line[0] == "+" and line[1:] not in BEFORE}
    for commit in (first.parent, "HEAD", "--output=x"):
        with pytest.raises(BadRequest):
            pushed_changes(pushed.repository, first.parent, tip.commit, commit)


def test_a_file_that_becomes_a_link_and_content_like_a_patch_stay_one_file_each(tmp_path: Path) -> None:
    path, _, base = repository(tmp_path / "repository")
    folder = Path(path)
    (folder / "run.sh").unlink()
    (folder / "run.sh").symlink_to("settings.py")
    (folder / "a\nb\t\"c").write_text("diff --git a/x b/x\n@@ -1 +1 @@\n--- a/x\n")
    (folder / "z.txt").write_text("last\n")
    run = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*run, "add", "-A"], cwd=folder, check=True)
    subprocess.run([*run, "commit", "-qm", "x\x1b[31m\ny"], cwd=folder, check=True)
    tip = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    found = pushed_changes(path, base, tip)

    assert [("a\nb\t\"c", "add"), ("run.sh", "change"), ("z.txt", "add")] == [(each.path, each.verb) for each in found.files]
    strange, link, last = found.files
    assert ("@@ -0,0 +1,3 @@", "+diff --git a/x b/x", "+@@ -1 +1 @@", "+--- a/x") == strange.patch
    assert ("120000", "100755") == (link.mode, link.base_mode)
    assert {"-exec python3 settings.py", "+settings.py"} <= set(link.patch)
    assert not any(line.startswith(("--- ", "+++ ")) for line in link.patch)
    assert ("@@ -0,0 +1 @@", "+last") == last.patch


def test_a_long_patch_is_cut(pushed: PushedChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PATCH", 600)
    found = pushed_changes(pushed.repository, pushed.commits[-1].parent, pushed.commits[0].commit)
    assert len(pushed.files) == len(found.files)
    assert found.files[-1].is_cut
    assert not found.files[0].is_cut
