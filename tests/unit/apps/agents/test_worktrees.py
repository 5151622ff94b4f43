"""Projects whose `.git` leads elsewhere: which repositories are believed, what is shown of them, what a person is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leeward.apps.agents import worktrees
from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.request import AgentOptions, AgentRequest, request_of
from leeward.apps.agents.settings import AgentSettings

PARTS = ["", "/worktrees/p", "/objects", "/refs", "/logs"]


def repository(folder: Path, project: Path) -> None:
    """What git makes of a worktree *project* in the repository *folder*."""
    for name in ("worktrees/p", "objects", "refs", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "worktrees/p/gitdir").write_text(f"{project}/.git\n")
    (folder / "worktrees/p/commondir").write_text("../..\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "p").mkdir(parents=True)
    repository(tmp_path / "main/.git", home / "p")
    (home / "p/.git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/p\n")
    return home


def request(home: Path, *, links: bool = True, overlay: bool = False) -> AgentRequest:
    return request_of(AgentDefinition("sh", command=("sh",)), AgentSettings(worktree_links=links),
                      AgentOptions(overlay=overlay), str(home / "p"), None, [], {"HOME": str(home)})


def shown(found: AgentRequest) -> list[str]:
    return [str(each.source) for each in found.options["mounts"][1:]]


@pytest.mark.parametrize("name", ["main/.git", "bare"])
def test_a_worktree_gets_its_repository_with_what_a_commit_writes(home: Path, name: str) -> None:
    main = home.parent / name
    if name == "bare":
        repository(main, home / "p")
        (home / "p/.git").write_text(f"gitdir: {main}/worktrees/p\n")
    found = request(home)
    assert [f"{main}{part}" for part in PARTS] == shown(found)
    assert [(False, False), (True, False), (True, False), (True, False), (False, True)] == [
        (each.writable, each.overlay) for each in found.options["mounts"][1:]]
    assert [f"{main}{part}" for part in PARTS[1:4]] == list(found.written[1:])
    assert () == found.warnings


def test_a_worktree_by_relative_paths(home: Path) -> None:
    """As git makes them with worktree.useRelativePaths."""
    (home / "p/.git").write_text("gitdir: ../../main/.git/worktrees/p\n")
    (home.parent / "main/.git/worktrees/p/gitdir").write_text("../../../../home/p/.git\n")
    assert [f"{home.parent}/main/.git{part}" for part in PARTS] == shown(request(home))


def test_a_person_is_told_the_settings_name(home: Path) -> None:
    found = request(home, links=False)
    assert [] == shown(found)
    assert [True] == [": `worktree_links = true` below [git] in" in line for line in found.warnings]


def test_with_a_copy_of_the_project_the_repository_is_only_read(home: Path) -> None:
    found = request(home, overlay=True)
    assert [f"{home.parent}/main/.git"] == shown(found)
    assert ["it can't commit"] == [line.split(": ")[-1] for line in found.warnings]


@pytest.mark.parametrize("release", ["6.1.0-37-amd64", "5.15.0"])
def test_without_overlays_no_reflog_is_written(home: Path, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "x", release, "", "x86_64")))
    found = request(home)
    assert [f"{home.parent}/main/.git{part}" for part in PARTS[:4]] == shown(found)
    assert [f"{home.parent}/main/.git/logs"] == found.options["hide"]
    assert "core.logAllRefUpdates" == found.options["env"]["GIT_CONFIG_KEY_0"]


@pytest.mark.parametrize(("wrong", "why"), [
    (("worktrees/p/gitdir", ""), "doesn't list it"), (("worktrees/p/gitdir", "/other/.git\n"), "doesn't list it"),
    (("worktrees/p/gitdir", None), "doesn't list it"), (("worktrees/p/commondir", "/elsewhere\n"), "files elsewhere"),
    (("HEAD", None), "files elsewhere"), (("refs", None), "files elsewhere"), (("refs", "/usr"), "files elsewhere")])
def test_a_repository_that_says_otherwise_is_not_shown(home: Path, wrong: tuple[str, str | None], why: str) -> None:
    """A project's `.git` could name any folder of the host."""
    name, text = wrong
    path = home.parent / "main/.git" / name
    if path.is_dir():
        path.rmdir()
        if text is not None:
            path.symlink_to(text)
    elif text is None:
        path.unlink()
    else:
        path.write_text(text)
    found = request(home)
    assert [] == shown(found)
    assert [why] == [why for line in found.warnings if why in line]


@pytest.mark.parametrize("place", ["/etc", "{main}", "{main}/worktrees/..", "{main}/worktrees/p/../../..", "/",
                                   "{main}/modules/p", "/\x1b[2J/x", "/\udcff/worktrees/p"])
def test_a_git_that_names_no_worktree_shows_nothing(home: Path, place: str) -> None:
    (home / "p/.git").write_bytes(os.fsencode(f"gitdir: {place.format(main=home.parent / 'main/.git')}\n"))
    found = request(home)
    assert [] == shown(found)
    assert [True] == [line.isprintable() for line in found.warnings]


def test_a_repository_in_the_project_or_around_it_is_not_shown_twice(home: Path) -> None:
    """Hidden files could be read there."""
    (home / "p/sub").mkdir()
    os.rename(home.parent / "main/.git", home / "p/sub/.git")
    (home.parent / "link").symlink_to(home / "p/sub")
    for place in (home / "p/sub", home.parent / "link"):
        (home / "p/.git").write_text(f"gitdir: {place}/.git/worktrees/p\n")
        assert [] == shown(request(home))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_git_that_is_no_file_is_none(home: Path, make: Callable[[Path], None]) -> None:
    (home / "p/.git").unlink()
    make(home / "p/.git")
    assert ([], ()) == (shown(found := request(home)), found.warnings)


def test_the_repository_is_the_one_whose_file_was_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that the project names leads through a link, which is changed between the look and the mount."""
    (home / "p/.git").write_text(f"gitdir: {home}/link/.git/worktrees/p\n")
    (home / "link").symlink_to("../main")
    read = worktrees._small_file

    def read_and_swap(path: str) -> str:
        found = read(path)
        if path.endswith("gitdir"):
            (home / "link").unlink()
            (home / "link").symlink_to("../private")
        return found

    monkeypatch.setattr(worktrees, "_small_file", read_and_swap)
    first = request(home).options["mounts"][1]
    assert (f"{home.parent}/main/.git", f"{home}/link/.git") == (first.source, first.target)


def test_links_in_what_the_agent_writes_are_found(home: Path) -> None:
    found = request(home).worktree
    assert found is not None
    assert {} == found.links()
    main = home.parent / "main/.git"
    (main / "objects/info").mkdir()
    for name in ("objects/info/commit-graph", "refs/heads", "worktrees/p/index"):
        (main / name).symlink_to("/x")
    assert {f"{main}/objects/info/commit-graph", f"{main}/refs/heads", f"{main}/worktrees/p/index"} == set(found.links())
