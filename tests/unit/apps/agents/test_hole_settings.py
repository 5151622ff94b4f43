"""What is used of `.hole/settings.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.hole_settings import HoleSettings, read_hole_settings
from leeward.apps.agents.settings import Grant, load_settings


@pytest.fixture
def project(tmp_path: Path) -> Iterator[int]:
    (tmp_path / ".hole").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def found(folder: Path, project: int, content: Any) -> HoleSettings:
    (folder / ".hole/settings.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_hole_settings(project, "/p/.hole/settings.json")


def test_excluded_files_and_hosts_are_used_and_the_rest_is_told(tmp_path: Path, project: int) -> None:
    """Those of the versions before 2.0 were patterns: what is no host isn't allowed."""
    got = found(tmp_path, project, {
        "$schema": "x", "files": {"exclude": [".env.local", "./dist/", "a/**/b"], "include": {"~/x": "/x"}},
        "network": {"allow": ["api.example.org", "db:5432"], "domainWhitelist": ["old.example.org", "googleapis\\.com", "*"],
                    "subnetPool": "10.0.0.0/16"},
        "hooks": {"setupHost": [{"script": "evil"}]}, "libraries": {"/": "/x"}})
    assert (".env.local", "dist", "a/**/b") == got.exclude
    assert ("api.example.org", "db:5432", "old.example.org") == got.hosts
    *refused, others = got.unused
    assert 2 == len(refused)
    assert all("isn't allowed" in each for each in refused)
    assert "/p/.hole/settings.json: not supported: files.include, network.subnetPool, hooks, libraries" == others


@pytest.mark.parametrize("content", [
    "no", "[]", "[" * 200_000, '{"a": ' * 20 + "1" + "}" * 20, {"files": 1}, {"files": {"exclude": "a"}},
    {"files": {"exclude": [""]}}, {"files": {"exclude": ["../a"]}}, {"network": {"allow": {}}}])
def test_what_cannot_be_read_starts_nothing(tmp_path: Path, project: int, content: Any) -> None:
    with pytest.raises(SettingsError, match=r"/p/\.hole/settings\.json"):
        found(tmp_path, project, content)


def test_a_link_is_not_followed(tmp_path: Path, project: int) -> None:
    (tmp_path / "other").write_text("{}")
    (tmp_path / ".hole/settings.json").symlink_to(tmp_path / "other")
    with pytest.raises(SettingsError, match="is a link"):
        read_hole_settings(project, "/p")


def test_its_hosts_are_grants_and_merged_with_leewards_own(tmp_path: Path, project: int) -> None:
    found(tmp_path, project, {"files": {"exclude": ["$HOME"]}, "network": {"allow": ["a.example.org"]}, "container": {}})
    (tmp_path / ".leeward").mkdir()
    (tmp_path / ".leeward/agent.toml").write_text('[files]\nexclude = ["b"]\n')
    got = load_settings(project, str(tmp_path), str(tmp_path / "config"), {"HOME": "/home/me"})
    assert ["$HOME", "b"] == [each.text for each in got.exclude]
    assert (Grant("host", "a.example.org"),) == got.widening
    assert [True] == ["not supported: container" in each for each in got.warnings]
