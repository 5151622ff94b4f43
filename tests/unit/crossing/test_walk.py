"""The walk of an upper folder: what is listed, and what is never opened."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import tracemalloc
from pathlib import Path

import msgpack
import pytest

from leeward._native.beneath import open_beneath
from leeward.crossing import walk
from leeward.errors import LeewardError


def listed(folder: Path) -> dict[bytes, list[object]]:
    upper, into = os.open(folder, os.O_PATH), os.memfd_create("rows")
    try:
        count = walk.rows(upper, into)
        with os.fdopen(os.dup(into), "rb") as file:
            file.seek(0)
            *found, end = msgpack.Unpacker(file)
        assert end is None
    finally:
        os.close(upper)
        os.close(into)
    assert count == len(found)
    return {row[0]: row[1:] for row in found}


def test_every_entry_is_listed_and_no_special_file_is_opened(tmp_path: Path) -> None:
    """A FIFO that is opened would stop it; a link that is followed would lead out."""
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(b"content")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock"))
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "circle").symlink_to("circle")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    open(os.fsencode(tmp_path) + b"/bad\xff\n", "w").close()
    rows = listed(tmp_path)

    assert {b"d", b"d/e", b"d/e/f", b"fifo", b"sock", b"link", b"circle", b"huge", b"bad\xff\n"} == set(rows)
    assert hashlib.sha256(b"content").digest() == rows[b"d/e/f"][5]
    assert ["special", "special", "link"] == [rows[name][0] for name in (b"fifo", b"sock", b"link")]
    assert b"/etc" == rows[b"link"][6]
    assert [1 << 40, 0] == rows[b"huge"][2:4]
    assert rows[b"huge"][5] is None


@pytest.mark.parametrize("time", [-1, 2**63, 2**64, 2**65])
def test_a_time_that_no_row_holds_is_told_as_the_next_one(time: int) -> None:
    """Such as that of the year 3000: a program sets any where a tmpfs keeps it, and the list isn't lost for it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder, "a").touch()
        os.utime(Path(folder, "a"), ns=(time, time))
        assert time == Path(folder, "a").stat().st_mtime_ns
        assert (0 if time < 0 else 2**63 - 1) == listed(Path(folder))[b"a"][4]


def test_files_have_hashes_whatever_their_size_until_the_time_for_it_is_over(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(51 << 20)
    (tmp_path / "large").write_bytes(content)
    assert hashlib.sha256(content).digest() == listed(tmp_path)[b"large"][5]
    monkeypatch.setattr(walk, "HASH_S", -1.0)
    assert None is listed(tmp_path)[b"large"][5]


def test_the_number_of_rows_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(walk, "MOST_ROWS", 5)
    assert 5 == len(listed(tmp_path))
    monkeypatch.setattr(walk, "MOST_ROWS", 4)
    with pytest.raises(LeewardError, match="more has changed"):
        listed(tmp_path)


def test_pieces_of_regular_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beneath the folder, by no link."""
    (tmp_path / "upper/d").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "upper/d/f").write_bytes(b"0123456789")
    (tmp_path / "upper/out").symlink_to("../secret")
    (tmp_path / "upper/up").symlink_to("..")
    os.mkfifo(tmp_path / "upper/fifo")
    upper = os.open(tmp_path / "upper", os.O_PATH)
    monkeypatch.setattr(walk, "PIECE", 4)

    def piece(path: bytes, offset: int) -> bytes:
        into = os.memfd_create("piece")
        try:
            walk.piece(upper, path, offset, into)
            return os.pread(into, 100, 0)
        finally:
            os.close(into)

    assert [b"0123", b"4567", b"89", b""] == [piece(b"d/f", offset) for offset in (0, 4, 8, 12)]
    for path in (b"out", b"up/secret", b"../secret", b"d/../../secret", b"fifo", b"d", b"none", b"/etc/passwd"):
        with pytest.raises((OSError, LeewardError)):
            piece(path, 0)
    os.close(upper)


def test_whole_files_as_many_as_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None in part, and nothing that isn't a regular file."""
    for name, content in (("a", b"01"), ("empty", b""), ("b", b"23"), ("large", b"45678")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link").symlink_to("a")
    upper = os.open(tmp_path, os.O_PATH)
    monkeypatch.setattr(walk, "PIECE", 4)

    def whole(*paths: bytes) -> list[bytes]:
        into = os.memfd_create("whole")
        try:
            count = walk.whole_files(upper, paths, into)
            unpacker = msgpack.Unpacker()
            unpacker.feed(os.pread(into, 100, 0))
            found = list(unpacker)
        finally:
            os.close(into)
        assert len(found) == count
        return found

    assert [b"01", b"", b"23"] == whole(b"a", b"empty", b"b", b"a")
    assert [b"01"] == whole(b"a", b"large", b"b")
    assert [] == whole(b"large", b"a")
    for path in (b"link", b"../x", b"none"):
        with pytest.raises((OSError, LeewardError)):
            whole(b"a", path)
    os.close(upper)


def test_a_folder_is_weighed_with_its_names(tmp_path: Path) -> None:
    """A file of two names once, holes not; what no path reaches is an error. Folders below a long path take no path each."""
    def weight() -> int:
        with walk.opened(os.open(tmp_path, os.O_PATH)) as fd:
            return walk.weight(fd)

    (tmp_path / "a").write_bytes(bytes(8192))
    before = weight()
    assert (tmp_path / "a").stat().st_blocks * 512 + 512 == before
    os.link(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    assert before + 2 * 512 == weight()
    at = os.open(tmp_path, os.O_RDONLY)
    for deep in range(20):
        for number in range(500 if deep == 12 else 0):
            os.mkdir(f"{number}", dir_fd=at)
        os.mkdir("x" * 250, dir_fd=at)
        below = os.open("x" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        if deep == 12:
            tracemalloc.start()
            assert weight() > before + 500 * 512
            assert tracemalloc.get_traced_memory()[1] < 500_000
            tracemalloc.stop()
    os.close(at)
    with pytest.raises(OSError, match="too long"):
        weight()


@pytest.mark.parametrize("by", ["nothing", "file", "link"])
def test_a_folder_that_is_replaced_while_it_is_weighed_has_no_weight(by: str, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what programs do, and a sandbox that can't be weighed is ended."""
    (tmp_path / "top/in").mkdir(parents=True)
    looks = []

    def opens(folder: int, path: bytes, flags: int) -> int:
        looks.append(path)
        if path.endswith(b"in"):
            (tmp_path / "top").rename(tmp_path / "moved")
            {"nothing": lambda: None, "file": (tmp_path / "top").touch,
             "link": lambda: (tmp_path / "top").symlink_to("moved")}[by]()
        return open_beneath(folder, path, flags)

    monkeypatch.setattr(walk, "open_beneath", opens)
    with walk.opened(os.open(tmp_path, os.O_PATH)) as fd:
        assert walk.weight(fd) >= 2 * 512
    assert 3 == len(looks)
