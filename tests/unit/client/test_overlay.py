"""How contents of an overlay are read for `apply`: small files many at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from leeward.client import overlay
from leeward.client.changes import FolderChange
from leeward.errors import BadReply, RequestRejected


class Layer:
    """The overlay's side that answers: *files* are there."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {os.fsencode(name): content for name, content in files.items()}
        self.asked: list[int] = []
        self.room = 1 << 30
        self.says = b""

    def fetch(self, _op: str, fields: Mapping[str, Any]) -> bytes:
        paths = [fields["path"], *fields["paths"]]
        self.asked.append(len(paths))
        if not set(paths) <= set(self.files):
            raise RequestRejected("it isn't there")
        found, left = b"", self.room
        for path in paths:
            left -= len(self.files[path])
            if left < 0:
                break
            found += msgpack.packb(self.files[path])
        return self.says or found

    def read(self, path: bytes, into: int, most: int) -> None:
        self.asked.append(1)
        if path not in self.files:
            raise RequestRejected("it isn't there")
        os.write(into, self.files[path][:most + 1])


def read(layer: Layer, *more: FolderChange) -> dict[str, bytes]:
    changes = [FolderChange(os.fsdecode(name), "created", "file", size=len(content)) for name, content in
               layer.files.items()] + [*more]
    contents, found = overlay.UpperContents(layer, overlay._sizes(changes)), {}  # type: ignore[arg-type]  # UpperLayer's two methods
    for change in changes:
        into = os.memfd_create("content")
        try:
            contents.read(os.fsencode(change.path), into, change.size)
            found[change.path] = os.pread(into, 1 << 20, 0)
        finally:
            os.close(into)
    return found


def test_small_files_are_read_together_and_others_alone() -> None:
    files = {f"{number:04}": b"%d" % number * (number % 3) for number in range(1200)}
    files["0700"] = b"l" * (overlay._SMALL + 1)
    layer = Layer(files)
    assert files == read(layer)
    assert [500, 200, 1, 499] == layer.asked


def test_what_has_no_room_is_read_next() -> None:
    layer = Layer({str(number): b"12345678" for number in range(10)})
    layer.room = 40
    assert 10 == len(read(layer))
    assert [10, 5] == layer.asked


def test_a_file_that_has_gone_is_the_one_that_fails() -> None:
    layer = Layer({"a": b"1", "b": b"2"})
    with pytest.raises(RequestRejected, match="isn't there"):
        read(layer, FolderChange("c", "created", "file", size=1))
    assert [3, 1, 1, 1] == layer.asked


def test_content_that_is_larger_than_it_was_is_cut_behind_the_size() -> None:
    """So that it is noticed."""
    layer = Layer({"a": b"1", "b": b"2"})
    changes = [FolderChange(name, "created", "file", size=1) for name in "ab"]
    layer.files[b"a"] = b"12345"
    into = os.memfd_create("content")
    overlay.UpperContents(layer, overlay._sizes(changes)).read(b"a", into, 1)  # type: ignore[arg-type]
    assert b"12" == os.pread(into, 100, 0)
    os.close(into)


@pytest.mark.parametrize("says", [b"\xc1", b"\x01\x02", b"\xa1a\xa1b"])
def test_an_answer_that_is_something_else(says: bytes) -> None:
    layer = Layer({"a": b"1", "b": b"2"})
    layer.says = says
    with pytest.raises(BadReply):
        read(layer)
