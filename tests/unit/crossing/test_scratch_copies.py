"""Files of one sandbox made anew in another: what is kept of each entry, and what can't lead out of a folder."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from leeward.crossing import scratch_copies, walk
from leeward.errors import LeewardError


def given(source: Sequence[Path], write: int) -> None:
    """As a porter gives them."""
    folders = [os.open(path, os.O_RDONLY) for path in source]
    scratch_copies.give(folders, write)
    for fd in (*folders, write):
        os.close(fd)


def tops(target: Sequence[Path], path: str = "", *, merges: bool = False) -> list[scratch_copies.Top]:
    return [scratch_copies.Top(path or str(each), os.open(each, os.O_RDONLY), merges) for each in target]


def copied(source: Sequence[Path], target: Sequence[Path]) -> int:
    """Through a pipe, by two threads in place of two porters."""
    read, write = os.pipe()
    giver = threading.Thread(target=given, args=(source, write))
    giver.start()
    try:
        return scratch_copies.take(tops(target), read)
    finally:
        os.close(read)
        giver.join()


def taken(target: Path, *rows: object, path: str = "", merges: bool = False, mounted: Sequence[str] = ()) -> int:
    """Take *rows* as they are, and what is after the last one; *target* is at *path*."""
    read, write = os.pipe()
    packed = [msgpack.packb(row) for row in rows]
    os.write(write, b"".join(struct.pack(">I", len(row)) + row for row in packed))
    os.close(write)
    try:
        return scratch_copies.take(tops([target], path, merges=merges), read, mounted)
    finally:
        os.close(read)


def told(folder: Path) -> dict[str, tuple[object, ...]]:
    rows = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        is_file = stat.S_ISREG(about.st_mode)
        rows[os.fsencode(path.relative_to(folder)).decode("latin-1")] = (
            about.st_mode, about.st_mtime_ns, is_file and about.st_nlink, is_file and about.st_size,
            path.is_symlink() and os.readlink(path), about.st_size < 1 << 20 and is_file and path.read_bytes())
    return rows


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("from/work", "from/tmp", "to/work", "to/tmp"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_all_that_is_there_is_made_anew(place: Path) -> None:
    """Content, holes, modes, times, links of both kinds also between folders, names that are no text, special files."""
    work, tmp = place / "from/work", place / "from/tmp"
    (work / "d/e").mkdir(parents=True)
    (work / "d/e/f").write_bytes(os.urandom(600_000))
    os.link(work / "d/e/f", tmp / "again")
    os.mkfifo(work / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(work / "sock"))
    (work / "link").symlink_to("/etc/passwd")
    with open(tmp / "huge", "wb") as file:
        file.seek(1 << 38)
        file.write(b"x")
    (work / "empty").touch()
    os.setxattr(work / "empty", b"user.bad\xff", b"\xff")
    open(os.fsencode(work) + b"/bad\xff\n", "w").close()
    (work / "d/e").chmod(0o511)
    os.utime(work / "d", ns=(3, 4))
    os.utime(work / "link", ns=(5, 6), follow_symlinks=False)
    os.utime(work, ns=(7, 8))
    work.chmod(0o711)
    assert 10 == copied([work, tmp], [place / "to/work", place / "to/tmp"])
    for name in ("work", "tmp"):
        assert told(place / "from" / name) == told(place / "to" / name)
    assert (0o40711, 8) == ((about := (place / "to/work").stat()).st_mode, about.st_mtime_ns)
    assert (place / "to/tmp/huge").stat().st_blocks < 64
    assert b"\xff" == os.getxattr(place / "to/work/empty", b"user.bad\xff")
    assert os.path.samefile(place / "to/work/d/e/f", place / "to/tmp/again")


@pytest.mark.parametrize("time", [2**65, -2**65])
def test_a_time_that_no_row_holds_is_the_next_one_in_the_copy(time: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        source, target = Path(place, "from"), Path(place, "to")
        for folder in (source, target):
            folder.mkdir()
        (source / "a").touch()
        os.utime(source / "a", ns=(time, time))
        assert 1 == copied([source], [target])
        assert (2**63 - 1 if time > 0 else 1 - 2**63) == (target / "a").stat().st_mtime_ns


@pytest.mark.parametrize("path", [b"../out", b"link/out", b"/out", b"a/../../out", b"..", b"", b"a/"])
def test_nothing_leads_out_of_its_folder(place: Path, path: bytes) -> None:
    target = place / "to/work"
    (target / "link").symlink_to(place)
    (target / "a").mkdir()
    before = sorted(map(str, place.rglob("*")))
    with pytest.raises((OSError, LeewardError)):
        taken(target, [0, path, "file", 0o644, [1, 2], [3, []]], None)
    assert before == sorted(map(str, place.rglob("*")))


def test_what_is_there_is_not_replaced(place: Path) -> None:
    target = place / "to/work"
    (target / "a").write_text("mine")
    with pytest.raises(FileExistsError):
        taken(target, [0, b"a", "file", 0o644, [1, 2], [0, []]], None)
    assert "mine" == (target / "a").read_text()


def test_in_an_overlay_what_is_there_makes_room(place: Path) -> None:
    """For what replaces it, is gone or hides it; folders become one. What is mounted there, and what links lead to, stays."""
    target = place / "to/work"
    for name in ("gone/a/b", "hidden/old", "one/old", "file/old", "dev"):
        (target / name).mkdir(parents=True)
    (target / "dev/null").touch()
    (target / "link").symlink_to(place / "from")
    marks, times = [("user.overlay.opaque", b"y"), ("user.mine", b"1"), ("user.overlay.overlay.x", b"2")], [1, 2]
    rows = [[0, b"gone", "gone", 0, [], None], [0, b"none", "gone", 0, [], None],
            [0, b"hidden", "folder", 0o755, times, marks], [0, b"one", "folder", 0o700, times, marks[1:2]],
            [0, b"file", "file", 0o644, times, [0, []]],
            [0, b"dev", "folder", 0o755, times, []], [0, b"link", "folder", 0o755, times, []]]
    os.setxattr(target / "one", "user.old", b"1")
    assert 6 == taken(target, *rows, None, path="/", merges=True)
    assert ["dev", "file", "hidden", "link", "one"] == sorted(os.listdir(target))
    assert ([], ["old"], ["null"]) == tuple(os.listdir(target / name) for name in ("hidden", "one", "dev"))
    assert [["user.mine", "user.overlay.x"], ["user.mine"]] == [
        sorted(os.listxattr(target / name)) for name in ("hidden", "one")]
    assert not (target / "link").is_symlink()
    assert ["tmp", "work"] == sorted(os.listdir(place / "from"))
    (target / "out").symlink_to(place / "from")
    with pytest.raises(NotADirectoryError):
        taken(target, [0, b"out/work", "gone", 0, [], None], None, path="/", merges=True)
    assert ["tmp", "work"] == sorted(os.listdir(place / "from"))


def test_what_is_mounted_has_its_place_already(place: Path) -> None:
    """A file, a folder, and the folders above them, which a process may have renamed in the other sandbox."""
    target, times = place / "to/work", [1, 2]
    (target / "a/b/c").mkdir(parents=True)
    (target / "file").touch()
    rows = [[0, b"a", "folder", 0o711, times, []], [0, b"a/b", "folder", 0o700, times, []],
            [0, b"a/b/c", "folder", 0o700, times, []], [0, b"file", "file", 0o600, times, [3, []]],
            [0, b"", "data", 0, [], [0, b"abc"]]]
    assert 2 == taken(target, *rows, None, path="/here", mounted=["/here/a/b/c", "/here/file"])
    assert ([], b"") == (os.listdir(target / "a/b/c"), (target / "file").read_bytes())
    assert 0o40711 == (target / "a").stat().st_mode
    with pytest.raises(LeewardError, match="lies where"):
        taken(target, [0, b"file/x", "folder", 0o711, times, []], None, path="/here", mounted=["/here/file"])
    with pytest.raises(FileExistsError):
        taken(target, rows[0], None, path="/here")
    with pytest.raises(FileExistsError):
        taken(target, [0, b"a", "link", 0o777, times, b"/"], None, path="/here", mounted=["/here/a/b/c"])


def test_a_hidden_folder_may_be_deep(place: Path) -> None:
    """As deep as a path is long: deeper than calls are nested, and than there are descriptors."""
    target = place / "to/work"
    for depth in range(1500):
        os.mkdir(target / "deep" / "/".join(["d"] * depth))
    assert 1 == taken(target, [0, b"deep", "gone", 0, [], None], None, merges=True)
    assert [] == os.listdir(target)


def test_rows_that_end_early_or_are_too_long_are_refused(place: Path) -> None:
    target = place / "to/work"
    for rows in ((), ([0, b"a", "folder", 0o755, [1, 2], []],)):
        with pytest.raises(LeewardError, match="to their end"):
            taken(target, *rows)
    read, write = os.pipe()
    os.write(write, struct.pack(">I", 1 << 30))
    os.close(write)
    with pytest.raises(LeewardError, match="to their end"):
        scratch_copies.take(tops([target]), read)
    os.close(read)


def test_what_goes_meanwhile_is_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is a link when it is opened, and a folder that has gone."""
    work = place / "from/work"
    for name in ("a", "b"):
        (work / name).write_text(name)
    (work / "d").mkdir()
    regular, listed = walk.regular, os.listdir

    def replaced(top: int, path: bytes) -> int:
        if path == b"a":
            (work / "a").unlink()
            (work / "a").symlink_to("/etc/passwd")
            (work / "d").rmdir()
        return regular(top, path)

    monkeypatch.setattr(walk, "regular", replaced)
    monkeypatch.setattr(os, "listdir", lambda fd: sorted(listed(fd)))
    copied([work], [place / "to/work"])
    assert ["b"] == [path.name for path in (place / "to/work").iterdir()]


def test_a_pipe_that_nobody_reads_ends_it(place: Path) -> None:
    (place / "from/work/a").write_bytes(b"x" * (4 << 20))
    read, write = os.pipe()
    os.close(read)
    given([place / "from/work"], write)


def test_a_number_of_an_inode_is_of_one_file_system(place: Path) -> None:
    """The root of an image may be on a disk, and other folders on a tmpfs: equal numbers there are no names of one file."""
    (place / "from/work/a").symlink_to("x")
    linked: dict[Any, Any] = {}
    with walk.opened(os.open(place / "from/work", os.O_RDONLY)) as fd:
        told = (place / "from/work/a").lstat()
        of = [SimpleNamespace(st_mode=told.st_mode, st_nlink=2, st_ino=9, st_dev=device, st_atime_ns=1, st_mtime_ns=2)
              for device in (1, 2, 1)]
        kinds = [row[2] for about in of for row in scratch_copies._given(fd, fd, b"a", [0, b"a"], about, linked)]

    assert ["link", "link", "name"] == kinds
