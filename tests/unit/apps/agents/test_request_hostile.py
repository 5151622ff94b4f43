"""What a start asks of the daemon, of hostile projects and of folders that no agent gets."""

from __future__ import annotations

import pytest

from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.request import AgentOptions, request_of
from leeward.apps.agents.settings import AgentSettings, LibraryFolder
from leeward.errors import RequestRejected


@pytest.fixture
def home(tmp_path):
    for path in ("home/.config/leeward", "home/p"):
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
