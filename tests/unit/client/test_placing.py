"""A new file gets its place in one step, and nothing is left where it doesn't."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.client.placing import NewFile, put_link

TEMPORARY = b".leeward-x"


@pytest.fixture(params=[False, True], ids=["without a name", "with a temporary name"])
def parent(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    if request.param:  # as a file system that has no files without a name
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_WRONLY)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_a_file_replaces_another_or_nothing(parent: int, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name, replaces in ((b"old", True), (b"new", False)):
        file = NewFile(parent, TEMPORARY)
        os.write(file.fd, b"content")
        file.put(name, replaces=replaces)
        file.close()
    assert {"old": "content", "new": "content"} == {path.name: path.read_text() for path in tmp_path.iterdir()}


def test_nothing_is_replaced_unless_that_was_asked_for(parent: int, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    file = NewFile(parent, TEMPORARY)
    with pytest.raises(FileExistsError):
        file.put(b"old", replaces=False)
    file.close()
    with pytest.raises(FileExistsError):
        put_link(parent, TEMPORARY, b"old", b"to", replaces=False)
    assert {"old": "old"} == {path.name: path.read_text() for path in tmp_path.iterdir()}


def test_nothing_is_left_of_a_file_or_link_without_a_place(parent: int, tmp_path: Path) -> None:
    """A folder is in its place."""
    (tmp_path / "folder").mkdir()
    NewFile(parent, TEMPORARY).close()
    file = NewFile(parent, TEMPORARY)
    with pytest.raises(IsADirectoryError):
        file.put(b"folder", replaces=True)
    file.close()
    with pytest.raises(IsADirectoryError):
        put_link(parent, TEMPORARY, b"folder", b"to", replaces=True)
    assert ["folder"] == os.listdir(tmp_path)


def test_a_link_replaces_another_or_nothing(parent: int, tmp_path: Path) -> None:
    put_link(parent, TEMPORARY, b"link", b"one", replaces=False)
    put_link(parent, TEMPORARY, b"link", b"two", replaces=True)
    assert ["link"] == os.listdir(tmp_path)
    assert "two" == os.readlink(tmp_path / "link")
