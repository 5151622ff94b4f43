"""A snapshot in a file: what is written is read, what is damaged is refused, and nothing is left of a failure."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leeward.client.snapshot_files import SnapshotReader, facts_of, snapshot_written
from leeward.errors import SnapshotFailed
from leeward.wire.sandbox_fields import MAX_WRITE

HEAD = {"key": {"kernel": "6.1"}, "sizes": [MAX_WRITE + 8192, 4096], "made": 3.5, "facts": facts_of("3.11", {}, [])}
CONTENT = os.urandom(MAX_WRITE + 12288)


def written(path: Path, head: dict[str, object] = HEAD) -> bytes:
    with snapshot_written(path, head) as write:
        write(CONTENT[:5000])
        write(CONTENT[5000:])
    return path.read_bytes()


def read(data: bytes) -> bytes:
    return b"".join(SnapshotReader(io.BytesIO(data)).pieces())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """By its user alone; an older file is replaced at the end."""
    (tmp_path / "state").write_text("older")
    data = written(tmp_path / "state")
    assert (HEAD, CONTENT) == (SnapshotReader(io.BytesIO(data)).head, read(data))
    assert 0o100600 == (tmp_path / "state").stat().st_mode
    assert ["state"] == os.listdir(tmp_path)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("older")
    with pytest.raises(KeyError), snapshot_written(tmp_path / "state", HEAD):
        raise KeyError
    assert [("state", "older")] == [(each, (tmp_path / each).read_text()) for each in os.listdir(tmp_path)]


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data[:-1], "damaged"),
    (lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], "damaged"),
    (lambda data: data + b"x", "damaged"),
    (lambda data: data[:-5000], "too early"),
    (lambda data: data[:10], "too early"),
    (lambda data: b"#!/bin/sh" + data, "holds no snapshot"),
    (lambda data: data[:19] + b"\xff" + data[20:], "too large"),
    (lambda data: data[:23] + b"\xc1" + data[24:], "can't be read"),
])
def test_another_file_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    data = written(tmp_path / "state")
    with pytest.raises(SnapshotFailed, match=said):
        read(change(data))


@pytest.mark.parametrize("head", [{**HEAD, "sizes": ["a"]}, {**HEAD, "more": 1}, {"key": {}}, {**HEAD, "made": "1"}])
def test_another_head_is_refused(tmp_path: Path, head: dict[str, object]) -> None:
    data = written(tmp_path / "state", head)
    with pytest.raises(SnapshotFailed, match="isn't that of a snapshot"):
        read(data)


def test_no_more_is_read_of_it_than_it_should_have(tmp_path: Path) -> None:
    """It may be anybody's, and as long as that likes."""
    file = io.BytesIO(written(tmp_path / "state") + bytes(MAX_WRITE))
    with pytest.raises(SnapshotFailed, match="damaged"):
        list(SnapshotReader(file).pieces())
    assert file.tell() <= len(file.getvalue()) - MAX_WRITE + 1
