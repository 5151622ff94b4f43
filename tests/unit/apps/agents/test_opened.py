"""The folders of the host that an agent's sandbox mounts, as they are opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.apps.agents.request import AgentRequest, OpenedMounts
from leeward.client.mounts import Mount
from leeward.errors import RequestRejected


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    for name in ("lib", "keys", "own"):
        (tmp_path / name).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    yield tmp_path
    assert before == len(os.listdir("/proc/self/fd"))


def opened(home: Path, *mounts: Mount, state: tuple[str, ...] = ()) -> OpenedMounts:
    folders = tuple(str(home / name) for name in state)
    request = AgentRequest((), "/p", {"mounts": [*mounts, *(Mount(path, path) for path in folders)]}, folders=folders)
    return OpenedMounts(request, {"HOME": str(home)})


def test_each_source_is_a_descriptor_of_what_was_asked_for(home: Path) -> None:
    given = Mount("/proc/self/fd/0", "/p", writable=True)
    with opened(home, given, Mount(home / "lib", "/lib1"), state=("state/new",)) as found:
        assert given == found.mounts[0]
        assert [str(home / "lib"), str(home / "state/new")] == [os.readlink(each.source) for each in found.mounts[1:]]
        assert ["/p", "/lib1", str(home / "state/new")] == [each.target for each in found.mounts]


def test_a_link_that_came_since_is_not_followed(home: Path) -> None:
    (home / "lib").rmdir()
    (home / "lib").symlink_to("keys")
    (home / "keys/below").mkdir()
    for source in ("lib", "lib/below"):
        with pytest.raises(RequestRejected, match="has become a link"):
            opened(home, Mount(home / "own", "/own"), Mount(home / source, "/lib1"))


def test_a_state_folder_may_be_a_link_of_the_user(home: Path) -> None:
    (home / "state").symlink_to("own")
    with opened(home, state=("state",)) as found:
        assert str(home / "own") == os.readlink(found.mounts[0].source)


def test_what_is_gone_is_named(home: Path) -> None:
    with pytest.raises(RequestRejected, match="gone': no such file"):
        opened(home, Mount(home / "lib", "/lib1"), Mount(home / "gone", "/gone"))
