"""What a folder was like, and what has changed there, without a sandbox."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.client import folder_state
from leeward.client.changes import next_tick
from leeward.client.folder_state import BeforeFirstCall, FolderState
from leeward.errors import RequestRejected, Stale


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    for name in ("same", "content", "mode", "gone", "kind", "sub/deep"):
        (made / name).write_text(name)
    (made / "link").symlink_to("same")
    return made


@pytest.fixture
def fd(folder: Path) -> Iterator[int]:
    found = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    yield found
    os.close(found)


def test_every_kind_of_change_is_reported(folder: Path, fd: int) -> None:
    """Sorted by path; what is as it was isn't there."""
    state = FolderState(fd)
    assert [] == state.diff()
    (folder / "same").write_text("same")  # written anew, with the same content
    (folder / "content").write_text("CONTENT")  # of the same length
    os.utime(folder / "content", ns=(0, (folder / "same").stat().st_mtime_ns))
    (folder / "mode").chmod(0o600)
    (folder / "gone").unlink()
    (folder / "kind").unlink()
    (folder / "kind").mkdir()
    (folder / "link").unlink()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "sub/deep").unlink()
    (folder / "sub").rmdir()
    (folder / "new").mkdir()
    (folder / "new/file").write_text("x")
    os.mkfifo(folder / "new/fifo")
    os.mkdir(os.fsencode(folder) + b"/new/\xff\n")

    found = {change.path: change for change in state.diff()}

    assert [("content", "modified"), ("gone", "deleted"), ("kind", "modified"), ("link", "modified"),
            ("mode", "mode"), ("new", "created"), ("new/fifo", "created"), ("new/file", "created"),
            ("new/\udcff\n", "created"), ("sub", "deleted"), ("sub/deep", "deleted")] == [
        (change.path, change.kind) for change in found.values()]
    assert hashlib.sha256(b"CONTENT").hexdigest() == found["content"].sha256
    assert ("folder", "special", "file", 8) == (found["kind"].type, found["new/fifo"].type, found["sub/deep"].type,
                                               found["sub/deep"].size)
    assert "/etc/passwd" == found["link"].link


def test_a_large_file_is_compared_by_size_and_a_time_that_nobody_sets(folder: Path, fd: int,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """And is marked."""
    monkeypatch.setattr(folder_state, "LARGE", 5)
    state = FolderState(fd)
    assert [] == state.diff()
    about = (folder / "content").stat()
    next_tick()
    (folder / "content").write_text("CONTENT")
    os.utime(folder / "content", ns=(about.st_atime_ns, about.st_mtime_ns))
    [change] = state.diff()

    assert ("content", "modified", True, None) == (change.path, change.kind, change.large, change.sha256)


def test_a_lazy_state_reads_what_has_changed_alone(folder: Path, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a file that was rewritten with its size and mtime, in the same tick of the clock, or replaced by a rename."""
    read, content = [], folder_state._content

    def noted(at: int, name: bytes, about: os.stat_result) -> tuple[os.stat_result, bytes | None]:
        read.append(name)
        return content(at, name, about)
    monkeypatch.setattr(folder_state, "_content", noted)
    (folder / "content").write_text("before")
    about = (folder / "content").stat()
    state = FolderState(fd, lazy=True)
    (folder / "content").write_text("BEFORE")
    os.utime(folder / "content", ns=(about.st_atime_ns, about.st_mtime_ns))
    (folder / "gone").rename(folder / "same")
    (folder / "new").write_text("x")
    (folder / "sub/deep").chmod(0o600)
    found = {change.path: change for change in state.diff()}

    assert {b"content", b"same", b"new", b"deep"} == set(read)
    assert [("content", "modified"), ("gone", "deleted"), ("new", "created"), ("same", "modified"),
            ("sub/deep", "modified")] == [(change.path, change.kind) for change in found.values()]
    assert hashlib.sha256(b"BEFORE").hexdigest() == found["content"].sha256


def test_a_lazy_state_fails_when_it_is_asked(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never asks for changes may have a folder of any size."""
    monkeypatch.setattr(folder_state, "MOST", 3)
    state = FolderState(fd, lazy=True)
    with pytest.raises(RequestRejected, match="more than 3 files and folders"):
        state.diff()


def test_no_link_leads_out(folder: Path, fd: int, tmp_path: Path) -> None:
    """Neither one that was there before, nor one that is put in a folder's place."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "outside")
    state = FolderState(fd)
    (folder / "sub/deep").unlink()
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(tmp_path / "outside")
    (tmp_path / "outside/secret").write_text("another")

    assert [("sub", "modified"), ("sub/deep", "deleted")] == [(change.path, change.kind) for change in state.diff()]


def test_a_file_that_vanishes_during_the_walk_is_skipped(folder: Path, fd: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is a FIFO by the time it is opened isn't waited for, and a folder that is a link isn't entered."""
    seen, turned = folder_state._content, []

    def meanwhile(at: int, name: bytes, about: os.stat_result) -> tuple[os.stat_result, bytes | None]:
        if name in (b"content", b"same", b"gone"):
            (folder / os.fsdecode(name)).unlink()
            turned.append(name)
            if name == b"content":
                os.mkfifo(folder / "content")
            elif name == b"same":
                (folder / "same").symlink_to("/etc/passwd")
        return seen(at, name, about)

    monkeypatch.setattr(folder_state, "_content", meanwhile)
    found = folder_state.look(fd)

    assert {b"content", b"same", b"gone"} == set(turned)
    assert "special" == found[b"content"].type
    assert not {b"same", b"gone"} & found.keys()


def test_a_folder_is_bounded(folder: Path, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_state, "MOST", 8)
    FolderState(fd)
    (folder / "more").touch()
    with pytest.raises(RequestRejected, match="more than 8 files and folders"):
        FolderState(fd)


def test_a_tree_deeper_than_a_path_is_refused(folder: Path, fd: int) -> None:
    """It would be a place to hide changes in."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=at)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(RequestRejected, match="can't be compared: File name too long"):
        FolderState(fd)


def test_another_folder_is_stale(folder: Path, fd: int) -> None:
    state = FolderState(fd)
    folder.rename(folder.with_name("moved"))
    with pytest.raises(Stale, match="no such file"):
        state.diff()
    folder.mkdir()
    with pytest.raises(Stale, match="another folder"):
        state.diff()


def test_the_first_call_reads_and_the_next_do_not(folder: Path) -> None:
    """The descriptor that each was given is closed."""
    before, given = BeforeFirstCall(), []

    def opened() -> int:
        given.append(os.open(folder, os.O_PATH | os.O_DIRECTORY))
        return given[-1]

    first = before.of(opened)

    assert first is before.of(opened)
    assert 1 == len(given)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given[0])
