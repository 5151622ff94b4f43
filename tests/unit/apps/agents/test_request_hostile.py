"""What a start asks of the daemon, of hostile projects and of folders that no agent gets."""

from __future__ import annotations

import os

import pytest

from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.request import AgentOptions, request_of
from leeward.apps.agents.request import _small_file as small_file
from leeward.apps.agents.settings import AgentSettings, LibraryFolder
from leeward.errors import RequestRejected


@pytest.fixture
def home(tmp_path):
    for path in ("home/.config/leeward", "home/p", "main/.git/worktrees/p", "private/.git/worktrees/p"):
        (tmp_path / path).mkdir(parents=True)
    return tmp_path / "home"


NONE = AgentSettings()


def request(home, settings=NONE, project="p", **options):
    return request_of(AgentDefinition("sh", command=("sh",)), settings, AgentOptions(**options), str(home / project),
                      None, [], {"HOME": str(home)})


def sources(found):
    return [str(mount.source) for mount in found.options["mounts"]]


@pytest.mark.parametrize("project", ["", ".config", ".config/leeward", ".config/leeward/agents", ".local/state",
                                     ".local/state/leeward/agents/trust", ".local"])
def test_no_agent_may_write_the_settings_of_agents(home, project):
    with pytest.raises(RequestRejected, match=r"home folder|own settings"):
        request(home, project=project)


def test_no_writable_library_holds_the_settings_of_agents(home):
    library = LibraryFolder(str(home / ".config"), "/c", True)
    with pytest.raises(RequestRejected, match="own settings"):
        request(home, libraries=(library,))
    with pytest.raises(RequestRejected, match="own settings"):
        request(home, AgentSettings(libraries=(library,)))
    request(home, libraries=(LibraryFolder(str(home / ".config"), "/c"),))


def test_a_link_to_the_settings_is_the_settings(home):
    (home / "link").symlink_to(".config")
    with pytest.raises(RequestRejected, match="own settings"):
        request(home, libraries=(LibraryFolder(str(home / "link"), "/c", True),))


def test_a_worktree_shows_the_repository_that_knows_it(home):
    main = home.parent / "main/.git"
    (home / "p/.git").write_text(f"gitdir: {main}/worktrees/p\n")
    (main / "worktrees/p/gitdir").write_text(f"{home}/p/.git\n")

    assert [str(home / "p"), str(main)] == sources(request(home, AgentSettings(worktree_links=True)))
    assert [str(home / "p")] == sources(request(home))


def test_a_project_that_only_says_so_is_shown_no_repository(home):
    """Any folder named .git of the host would be."""
    private = home.parent / "private/.git"
    (home / "p/.git").write_text(f"gitdir: {private}/worktrees/p\n")
    for back in ("", f"{home}/other/.git\n"):
        (private / "worktrees/p/gitdir").write_text(back)

        assert [str(home / "p")] == sources(request(home, AgentSettings(worktree_links=True)))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_git_that_is_no_file_is_none(home, make):
    make(home / "p/.git")

    assert [str(home / "p")] == sources(request(home, AgentSettings(worktree_links=True)))


def test_the_folder_that_was_opened_is_mounted(home):
    found = request_of(AgentDefinition("sh"), AgentSettings(), AgentOptions(), str(home / "p"), None, [],
                       {"HOME": str(home)}, source="/proc/self/fd/7")

    assert ["/proc/self/fd/7"] == sources(found)
    assert str(home / "p") == found.options["mounts"][0].target


def test_a_state_folder_is_not_the_projects(home):
    """Neither around the project nor in its place: what is hidden in the project would be shown there."""
    for state, at in (("~/p", "/workspace"), ("~/p/x", ""), ("~/.s", f"{home}/.s")):
        with pytest.raises(RequestRejected, match="state folder"):
            request_of(AgentDefinition("sh", state=(state,)), AgentSettings(project_at=at), AgentOptions(),
                       str(home / "p/x/y"), None, [], {"HOME": str(home)})


def test_a_worktrees_repository_is_the_one_whose_file_was_read(home, monkeypatch):
    """The path that the project names leads through a link, which is changed between the look and the mount."""
    (home / "p/.git").write_text(f"gitdir: {home}/link/.git/worktrees/p\n")
    (home.parent / "main/.git/worktrees/p/gitdir").write_text(f"{home}/p/.git\n")
    (home / "link").symlink_to("../main")
    read = small_file

    def read_and_swap(path):
        found = read(path)
        if path.endswith("gitdir"):
            (home / "link").unlink()
            (home / "link").symlink_to("../private")
        return found

    monkeypatch.setattr("leeward.apps.agents.request._small_file", read_and_swap)
    shown = request_of(AgentDefinition("sh"), AgentSettings(worktree_links=True), AgentOptions(), str(home / "p"), None,
                       [], {"HOME": str(home)}).options["mounts"][-1]
    assert (f"{home.parent}/main/.git", f"{home}/link/.git") == (shown.source, shown.target)
