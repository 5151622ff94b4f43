"""What a protected folder shows and loses; without a sandbox, by a program that writes it as one would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward import Mount, WorkdirSandbox
from leeward.client import protecting
from leeward.client.protecting import AWAY, PLACES, FolderGuard, Unprotected
from leeward.errors import RequestRejected
from leeward.spec.obeyed.repositories import SIGNS


@pytest.fixture
def guards() -> Iterator[list[FolderGuard]]:
    made: list[FolderGuard] = []
    yield made
    for guard in made:
        guard.close()


def never() -> None:
    raise AssertionError("the sandbox needn't end")


def repository(folder: Path) -> None:
    for name in ("objects", "refs", "hooks", "info"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/x\n")
    (folder / "config").write_text("[core]\n")


def test_what_is_there_and_what_is_missing_is_protected(tmp_path: Path, guards: list[FolderGuard]) -> None:
    repository(tmp_path / ".git")
    repository(tmp_path / "vendor/bare")
    (tmp_path / "packages/app/.vscode").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.git").write_text("gitdir: ../.git/modules/sub\n")
    (tmp_path / ".envrc").touch()
    before = sorted(os.listdir(tmp_path))
    guards.append(FolderGuard(tmp_path))
    names = set(guards[0].names)
    assert {".envrc", ".mcp.json", ".claude", ".codex", ".vscode", ".git/config", ".git/config.worktree", ".git/hooks",
            ".git/info/attributes", ".git/modules", "packages/app/.vscode", "sub/.git", "vendor/bare/config",
            "vendor/bare/hooks"} <= names
    assert not {".git", "vendor/bare", ".git/HEAD"} & names
    assert [] == guards[0].put_away(never)
    guards.pop().close()
    assert before == sorted(os.listdir(tmp_path))
    assert ["HEAD", "config", "hooks", "info", "objects", "refs"] == sorted(os.listdir(tmp_path / ".git"))


def test_git_works_beside_what_was_made(tmp_path: Path, guards: list[FolderGuard]) -> None:
    def git(*words: str, where: Path = tmp_path) -> str:
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=where, check=True,
                              capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "inner").mkdir()
    guards += [FolderGuard(tmp_path), FolderGuard(tmp_path / "inner")]
    assert "" == git("status", "--porcelain")
    assert "" == git("status", "--porcelain", where=tmp_path / "inner")  # which has an empty .git now
    git("commit", "-q", "--allow-empty", "-m", "x")


@pytest.mark.parametrize(("made", "away"), [
    ("a/.vscode/tasks.json", "a/.vscode"), ("a/b/.envrc", "a/b/.envrc"), ("opencode.json", "opencode.json"),
    ("sub/.git", "sub/.git"), (".VSCODE/tasks.json", ".VSCODE"), ("x.code-workspace", "x.code-workspace"),
    ("a/.Git /hooks/pre-commit", "a/.Git /hooks"), (".github/hooks/x.json", ".github/hooks"),
    (".git/sl/config", ".git/sl/config"),
])
def test_what_was_made_is_put_away(tmp_path: Path, guards: list[FolderGuard], made: str, away: str) -> None:
    guards.append(FolderGuard(tmp_path))
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).write_text("evil")
    (tmp_path / "a.py").touch()
    assert [away] == guards[0].put_away(never)
    assert not os.path.lexists(tmp_path / away)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_text() == "evil"]
    assert 1 == len(kept)
    assert AWAY in str(kept[0])
    assert [] == guards[0].put_away(never)


@pytest.mark.parametrize("signs", SIGNS, ids=["git", "worktree", "svn"])
def test_a_folder_that_became_a_repository_is_none_afterwards(tmp_path: Path, guards: list[FolderGuard],
                                                              signs: frozenset[str]) -> None:
    guards.append(FolderGuard(tmp_path))
    for name in signs:
        (tmp_path / "bare" / {"head": "HEAD"}.get(name, name)).mkdir(parents=True)
    assert 1 == len(guards[0].put_away(never))
    assert [] == guards[0].put_away(never)


def test_a_repository_that_was_made_keeps_its_objects_and_loses_its_settings(tmp_path: Path,
                                                                             guards: list[FolderGuard]) -> None:
    guards.append(FolderGuard(tmp_path))
    repository(tmp_path / "sub/.git")
    assert ["sub/.git/config", "sub/.git/hooks"] == guards[0].put_away(never)
    assert {"HEAD", "objects", "refs", f"{AWAY}config.txt"} <= set(os.listdir(tmp_path / "sub/.git"))
    (tmp_path / "sub/.git/commondir").write_text("../../elsewhere")
    assert ["sub/.git/commondir"] == guards[0].put_away(never)


def test_what_lies_in_a_folder_that_is_put_away_is_put_away_as_well(tmp_path: Path, guards: list[FolderGuard]) -> None:
    guards.append(FolderGuard(tmp_path))
    (tmp_path / "a/.vscode/b").mkdir(parents=True)
    (tmp_path / "a/.vscode/b/.envrc").touch()
    assert ["a/.vscode", f"a/{AWAY}vscode.txt/b/.envrc"] == guards[0].put_away(never)


def test_what_lies_deeper_than_is_searched_for_is_an_error(tmp_path: Path, guards: list[FolderGuard]) -> None:
    guards.append(FolderGuard(tmp_path))
    (tmp_path / "a" / "/".join([".vscode"] * 20)).mkdir(parents=True)
    with pytest.raises(Unprotected, match="vscode"):
        guards[0].put_away(never)


@pytest.mark.parametrize("name", ["\u00e4" * 120 + ".iml", ".envrc"])
def test_what_is_put_away_finds_a_name_whatever_its_own_is_and_others_are(tmp_path: Path, guards: list[FolderGuard],
                                                                          name: str) -> None:
    (tmp_path / "a").mkdir()
    guards.append(FolderGuard(tmp_path))
    (tmp_path / "a" / name).write_text("evil")
    for number in range(1001):
        (tmp_path / f"a/{AWAY}{f'{number}.' if number else ''}envrc.txt").touch()
    assert [f"a/{name}"] == guards[0].put_away(never)
    assert 1001 + 1 == len(os.listdir(tmp_path / "a"))


def test_nothing_is_renamed_through_a_link(tmp_path: Path, guards: list[FolderGuard]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/.envrc").touch()
    project = tmp_path / "project"
    project.mkdir()
    guards.append(FolderGuard(project))
    (project / "a").symlink_to("../outside")
    (project / "b").mkdir()
    (project / "b/.vscode").symlink_to("../../outside")
    assert ["b/.vscode"] == guards[0].put_away(never)
    assert [".envrc"] == os.listdir(tmp_path / "outside")


def test_what_cannot_be_searched_is_not_written_and_a_new_one_is_an_error(tmp_path: Path, guards: list[FolderGuard],
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join("d" * 102)
    (tmp_path / deep).mkdir(parents=True)
    guards.append(FolderGuard(tmp_path))
    assert "/".join("d" * 101) in guards[0].names
    assert [] == guards[0].put_away(never)
    (tmp_path / deep.replace("d", "e")).mkdir(parents=True)
    with pytest.raises(Unprotected, match="can't be put away"):
        guards[0].put_away(never)


def test_a_link_and_too_many_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.claude").symlink_to("x")
    with pytest.raises(RequestRejected, match="is a link"):
        FolderGuard(tmp_path)
    (tmp_path / "a/.claude").unlink()
    monkeypatch.setattr(protecting, "_MOST", 10)
    with pytest.raises(RequestRejected, match="no more than 10"):
        FolderGuard(tmp_path)
    assert ["a"] == os.listdir(tmp_path)  # nothing that was made is left


def test_two_sandboxes_and_one_that_was_killed(tmp_path: Path, guards: list[FolderGuard]) -> None:
    first, second = FolderGuard(tmp_path), FolderGuard(tmp_path)
    guards.append(second)
    first.close()
    assert ".claude" in os.listdir(tmp_path)  # the other one needs it
    os.close(guards.pop()._folder)  # as a kill -9 does
    third = FolderGuard(tmp_path)
    assert set(PLACES) <= set(third.names)
    third.close()
    assert [] == os.listdir(tmp_path)


def test_what_a_person_has_put_into_an_empty_folder_stays(tmp_path: Path) -> None:
    guard = FolderGuard(tmp_path)
    (tmp_path / ".claude/settings.json").write_text("{}")
    assert [] == guard.put_away(never)
    guard.close()
    assert [".claude"] == os.listdir(tmp_path)


@pytest.mark.parametrize("does", ["rmdir .claude", "rmdir .claude && mkdir -m 1755 .claude && touch .claude/x",
                                  "cp .envrc .e && mv .e .envrc", "mv a b && cp -r b a", "rm -r a; ln -s b a"])
def test_what_the_host_replaces_ends_the_sandbox_and_counts_as_its_own(tmp_path: Path, guards: list[FolderGuard],
                                                                        does: str) -> None:
    """Since the mount over it is gone. What is written in place stays, with its mount."""
    (tmp_path / "a/.vscode").mkdir(parents=True)
    (tmp_path / ".envrc").touch()
    guards.append(FolderGuard(tmp_path))
    (tmp_path / ".envrc").write_text("more")
    (tmp_path / "a/.vscode/x").touch()
    assert guards[0].holds()
    subprocess.run(["sh", "-c", does], cwd=tmp_path, check=True)
    assert not guards[0].holds()
    ended: list[int] = []
    moved = guards[0].put_away(lambda: ended.append(len(os.listdir(tmp_path))))
    assert [len(os.listdir(tmp_path))] == ended  # nothing was renamed before
    assert moved or not {".claude", ".envrc", "a"} <= set(os.listdir(tmp_path)) or (tmp_path / "a").is_symlink()
    assert [] == guards[0].put_away(never)


@pytest.mark.parametrize(("line", "away"), [
    ('[branch "x"]\n\tremote = origin\n\tmerge = refs/heads/x\n', []), ('[branch "x"] fsmonitor = evil\n', [".git/config"]),
    ('[branch "x"]\n\tremote = https://evil\n', [".git/config"]), ("[core]\n\tfsmonitor = evil\n", [".git/config"]),
    ('[branch "x"]\n\tremote = a\\\n[core]\n\tfsmonitor = evil\n', [".git/config"]),
    ('[branch "x"]\n[core]\n\tmerge = evil\n', [".git/config"]), ('[branch "x"]\n\tremote = --evil\n', [".git/config"]),
    pytest.param(f'[branch "{"x" * (protecting._MOST_SETTINGS - 19)}"]\n[core]\n\tfsmonitor = evil\n', [".git/config"],
                 id="beyond what is read"),
])
def test_settings_in_which_only_branches_were_changed_stay(tmp_path: Path, guards: list[FolderGuard], line: str,
                                                           away: list[str]) -> None:
    """As `git push -u` changes them, by a new file."""
    repository(tmp_path / ".git")
    guards.append(FolderGuard(tmp_path))
    (tmp_path / "new").write_text((tmp_path / ".git/config").read_text() + line)
    (tmp_path / "new").rename(tmp_path / ".git/config")
    ended: list[bool] = []
    assert away == guards[0].put_away(lambda: ended.append(True))
    assert [True] == ended
    assert [] == guards[0].put_away(never)


@pytest.mark.parametrize("added", ["", "\n", "\tremote = origin\n"])
def test_a_branch_takes_no_setting_from_another_section(tmp_path: Path, guards: list[FolderGuard], added: str) -> None:
    repository(tmp_path / ".git")
    (tmp_path / ".git/config").write_text("[core]\n\thooksPath = /dev/null\n")
    guards.append(FolderGuard(tmp_path))
    (tmp_path / "new").write_text(f'[core]\n[branch "x"]\n{added}\thooksPath = /dev/null\n')
    (tmp_path / "new").rename(tmp_path / ".git/config")

    assert [".git/config"] == guards[0].put_away(lambda: None)


@pytest.mark.parametrize(("source", "kinds"), [
    ("", {"writable": True}), ("sub", {"writable": True}), ("..", {"writable": True}), ("link", {"writable": True}),
    ("sub", {}), ("sub", {"overlay": True}), ("../other", {"writable": True})])
def test_no_mount_leads_around_the_protection(tmp_path: Path, source: str, kinds: dict[str, bool]) -> None:
    (tmp_path / "p/sub").mkdir(parents=True)
    (tmp_path / "p/link").symlink_to("../p")
    mount = Mount(tmp_path / "p" / source, "/x", **kinds)
    if kinds.get("writable") and source != "../other":
        with pytest.raises(RequestRejected, match="'/x' would let write"):
            WorkdirSandbox(tmp_path / "p", [mount], socket="/none", protect=True)
    else:
        protecting.check_beside(str(tmp_path / "p"), [mount])


def test_what_an_included_file_names_is_protected(tmp_path: Path, guards: list[FolderGuard]) -> None:
    """Also where it includes others, and itself."""
    repository(tmp_path / ".git")
    (tmp_path / ".git/config").write_text("[include]\n\tpath = ../.gitconfig\n")
    (tmp_path / ".gitconfig").write_text("[include]\npath = conf/more\npath = .gitconfig\n[core]\nhooksPath = tools/hooks\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/more").write_text("[interactive]\ndiffFilter = conf/filter --x\n")
    (tmp_path / "conf/filter").touch()
    (tmp_path / "tools/hooks").mkdir(parents=True)
    guards.append(FolderGuard(tmp_path))
    assert {".gitconfig", "conf/more", "conf/filter", "tools/hooks"} <= set(guards[0].names)
