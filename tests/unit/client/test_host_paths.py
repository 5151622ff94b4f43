"""Paths of the host that a user names: whose links are followed, what is made, and holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.client.host_paths import end_sparse, is_folder, open_folder, open_own, write_sparse
from leeward.errors import RequestRejected


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a link of another user's, in the eyes of this program."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    if os.geteuid():
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        os.lchown(tmp_path / "link", 65534, 65534)
    return tmp_path


def test_another_users_link_is_not_followed(others: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(others)
    for path in (str(others / "link"), "link", "link/below", "there/../link", "./link/"):
        for make in (False, True):
            with pytest.raises(RequestRejected, match="and isn't followed"):
                open_folder(path, make=make)
        with pytest.raises(RequestRejected, match="and isn't followed"):
            is_folder(path)
    assert [] == os.listdir(others / "there")


def test_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").symlink_to("real/deep")
    for path in ("a/b/c", "mine/x", "", "."):
        fd = open_folder(path, make=True)
        assert os.path.samestat(os.fstat(fd), os.stat(path or "."))
        os.close(fd)
    assert (tmp_path / "real/deep/x").is_dir()
    with pytest.raises(FileNotFoundError):
        open_folder("no/folder")
    (tmp_path / "file").touch()
    for path in ("file", "file/x"):
        with pytest.raises(NotADirectoryError):
            open_folder(path, make=True)
    assert not is_folder("file")
    assert not is_folder("no")
    assert is_folder("mine")
    os.close(open_own("file"))


PIECES = st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 3 * 4096).map(bytes)), max_size=6)


@given(PIECES)
def test_what_is_written_is_what_was_there(pieces: list[bytes]) -> None:
    fd = os.memfd_create("x")
    try:
        for piece in pieces:
            write_sparse(fd, piece)
        end_sparse(fd)
        assert b"".join(pieces) == os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def test_zeros_take_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb", buffering=0) as file:
        write_sparse(file.fileno(), bytes(8 << 20))
        write_sparse(file.fileno(), b"end")
        write_sparse(file.fileno(), bytes(8 << 20))
        end_sparse(file.fileno())
    about = (tmp_path / "x").stat()
    assert (16 << 20) + 3 == about.st_size
    assert about.st_blocks * 512 <= 64 << 10
