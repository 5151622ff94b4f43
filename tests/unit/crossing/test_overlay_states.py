"""Copies of an upper folder: what is kept of each entry, what is refused, and what is left of one that failed."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from leeward.crossing import layers, overlay_states
from leeward.errors import LeewardError

MOST = 1 << 60


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / layers.UPPER.format(0)).mkdir()
    return tmp_path


def keep(scratch: Path, name: str = "a", most: int = MOST) -> Path:
    fd = os.open(scratch, os.O_PATH)
    try:
        overlay_states.keep(fd, 0, name, overlay_states.Room(fd, most))
    finally:
        os.close(fd)
    return scratch / "kept.0" / name


def test_a_copy_has_the_files_of_the_original(scratch: Path) -> None:
    """Content, holes, modes, times, links of both kinds, names that are no text, and special files."""
    upper = scratch / "upper.0"
    (upper / "d/e").mkdir(parents=True)
    (upper / "d/e/f").write_bytes(b"content")
    os.link(upper / "d/e/f", upper / "again")
    os.utime(upper / "again", ns=(1, 2))
    os.mkfifo(upper / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(upper / "sock"))
    (upper / "link").symlink_to("/etc/passwd")
    with open(upper / "huge", "wb") as file:
        file.seek(1 << 38)
        file.write(b"x")
    open(os.fsencode(upper) + b"/bad\xff\n", "w").close()
    (upper / "d/e").chmod(0o511)
    os.utime(upper / "d", ns=(3, 4))
    upper.chmod(0o710)
    found = keep(scratch)

    def told(folder: Path) -> dict[str, tuple[object, ...]]:
        rows = {}
        for path in (folder, *folder.rglob("*")):
            about = path.lstat()
            is_file = stat.S_ISREG(about.st_mode)
            rows[str(path.relative_to(folder))] = (about.st_mode, about.st_mtime_ns, is_file and about.st_nlink,
                                                   is_file and about.st_size, path.is_symlink() and os.readlink(path))
        return rows

    assert told(upper) == told(found)
    assert b"content" == (found / "again").read_bytes()
    assert (found / "again").stat().st_ino == (found / "d/e/f").stat().st_ino
    assert (found / "huge").stat().st_blocks * 512 < 1 << 20
    with open(found / "huge", "rb") as file:
        file.seek(1 << 38)
        assert b"x" == file.read()


def test_attributes_are_kept(scratch: Path) -> None:
    """The marks of opaque folders are some."""
    upper = scratch / "upper.0"
    (upper / "d").mkdir()
    (upper / "f").touch()
    try:
        os.setxattr(upper / "d", "user.overlay.opaque", b"y")
        os.setxattr(upper / "f", "user.mine", b"\0\xff")
    except OSError as error:
        pytest.skip(f"needs: user attributes in {scratch} ({error})")
    found = keep(scratch)
    assert b"y" == os.getxattr(found / "d", "user.overlay.opaque")
    assert b"\0\xff" == os.getxattr(found / "f", "user.mine")


def test_a_name_gets_another_content_once_it_is_whole(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that doesn't fit leaves what was kept, and nothing of its own."""
    upper = scratch / "upper.0"
    (upper / "one").write_text("1")
    found = keep(scratch)
    (upper / "two").write_bytes(bytes(1 << 20))
    about = os.statvfs(scratch)
    used = (about.f_blocks - about.f_bfree) * about.f_frsize
    with pytest.raises(LeewardError, match="doesn't fit"):
        keep(scratch, most=used + (1 << 19))
    assert ["one"] == os.listdir(found)
    monkeypatch.setattr(overlay_states, "MOST_ENTRIES", 1)
    with pytest.raises(LeewardError, match="1 entries"):
        keep(scratch)
    monkeypatch.undo()
    assert ["one"] == os.listdir(found)
    assert {"upper.0", "kept.0", "trash.0"} >= set(os.listdir(scratch))
    keep(scratch)
    assert ["one", "two"] == sorted(os.listdir(found))
    assert [] == os.listdir(scratch / "trash.0")


def test_folders_deeper_than_a_path_are_refused_and_removed(scratch: Path) -> None:
    """A job makes them step by step."""
    upper = scratch / "upper.0"
    (upper / "one").touch()
    found, home = keep(scratch), os.open(".", os.O_PATH)
    try:
        os.chdir(upper)
        for _ in range(60):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.fchdir(home)
        os.close(home)
    with pytest.raises(OSError, match="too long"):
        keep(scratch)
    assert ["one"] == os.listdir(found)
    os.rename(upper, found / "deep")
    upper.mkdir()
    keep(scratch)
    assert ([], []) == (os.listdir(found), os.listdir(scratch / "trash.0"))


def test_a_file_system_without_inodes_has_no_room(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said as of one that is full, and what was copied so far is gone."""
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (scratch / "upper.0/link").symlink_to("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", full)
        with pytest.raises(LeewardError, match="doesn't fit"):
            keep(scratch)
    assert ["kept.0", "trash.0", "upper.0"] == sorted(os.listdir(scratch))
    assert [] == os.listdir(scratch / "kept.0")
