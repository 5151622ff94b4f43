"""Files that are opened below a folder, and none outside of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leeward._native.beneath import open_beneath

pytestmark = pytest.mark.needs("not-emulated")  # the qemu-user of Debian 12 has no openat2(2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "in").mkdir(parents=True)
    (made / "in/file").write_text("inside")
    (made / "link").symlink_to("in/file")
    (made / "out").symlink_to("../outside")
    (tmp_path / "outside").write_text("outside")
    return made


def opened(folder: Path, path: bytes, *, links: bool = False) -> bytes:
    here = os.open(folder, os.O_PATH)
    try:
        fd = open_beneath(here, path, os.O_RDONLY, links=links)
        assert not os.get_inheritable(fd)
        with os.fdopen(fd, "rb") as file:
            return file.read()
    finally:
        os.close(here)


def test_a_file_below_is_opened(folder: Path) -> None:
    assert b"inside" == opened(folder, b"in/file") == opened(folder, b"in/../in/file")
    assert b"inside" == opened(folder, b"link", links=True)


@pytest.mark.parametrize(("path", "links", "number"), [
    (b"../outside", False, errno.EXDEV), (b"../outside", True, errno.EXDEV), (b"/etc/passwd", False, errno.EXDEV),
    (b"link", False, errno.ELOOP), (b"out", False, errno.ELOOP), (b"out", True, errno.EXDEV),
    (b"gone", False, errno.ENOENT), (b"in/file\0.txt", False, errno.EINVAL)])
def test_nothing_else_is(folder: Path, path: bytes, links: bool, number: int) -> None:
    assert b"outside" == (folder / "../outside").read_bytes()  # control: it can be read
    with pytest.raises(OSError, match=os.strerror(number)) as refused:
        opened(folder, path, links=links)

    assert (number, os.fsdecode(path)) == (refused.value.errno, refused.value.filename)


def test_a_file_is_made_with_its_mode(folder: Path) -> None:
    here = os.open(folder, os.O_PATH)
    os.close(open_beneath(here, b"in/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.close(here)

    assert 0o600 == (folder / "in/new").stat().st_mode & 0o777
