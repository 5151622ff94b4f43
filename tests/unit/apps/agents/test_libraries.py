"""What is hidden in an agent's libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.hiding import parse_pattern
from leeward.apps.agents.libraries import hidden_in_libraries
from leeward.apps.agents.settings import AgentSettings, Grant, LibraryFolder


def library(folder: Path, *names: str, own: str = "") -> LibraryFolder:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    if own:
        (folder / ".leeward").mkdir()
        (folder / ".leeward/agent.toml").write_text(own)
    return LibraryFolder(str(folder), "/lib", True)


def test_names_are_hidden_as_in_a_project(tmp_path: Path) -> None:
    """By the user's patterns and the library's own; of its other settings nothing is taken."""
    one = library(tmp_path, ".env", "src/.env.local", "src/a.py", "keys/a.pem", "private/x", own="""
        libraries = ["/"]
        [files]
        exclude = ["private"]
        include = [".env"]
        """)
    settings = AgentSettings(exclude=(parse_pattern("*.pem"),))
    hidden = ["/lib/.env", "/lib/keys/a.pem", "/lib/private", "/lib/src/.env.local"]
    assert (hidden, []) == hidden_in_libraries([one], settings)


def test_what_a_project_asks_to_show_is_not_shown_in_a_library(tmp_path: Path) -> None:
    one, include = library(tmp_path, ".env"), (parse_pattern(".env"),)
    assert ([], []) == hidden_in_libraries([one], AgentSettings(include=include))
    assert (["/lib/.env"], []) == hidden_in_libraries([one], AgentSettings(
        include=include, widening=(Grant("include", ".env"),)))


def test_a_folder_that_hides_by_its_place_is_pinned_where_it_can_be_moved(tmp_path: Path) -> None:
    one = library(tmp_path, "config/a.local")
    settings = AgentSettings(exclude=(parse_pattern("config/*.local"),))
    assert (["/lib/config/a.local"], ["/lib/config"]) == hidden_in_libraries([one], settings)
    assert (["/lib/config/a.local"], []) == hidden_in_libraries([LibraryFolder(str(tmp_path), "/lib")], settings)


def test_a_file_and_what_is_not_there_have_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ([], []) == hidden_in_libraries([LibraryFolder(str(tmp_path / name), "/lib") for name in ("file", "none")],
                                           AgentSettings())


@pytest.mark.parametrize("own", ["no TOML", "files = 1", "[files]\nexclude = 1", '[files]\nexclude = [""]'])
def test_settings_of_a_library_that_cannot_be_read_are_an_error(tmp_path: Path, own: str) -> None:
    with pytest.raises(SettingsError, match=r"\.leeward/agent\.toml"):
        hidden_in_libraries([library(tmp_path, own=own)], AgentSettings())
