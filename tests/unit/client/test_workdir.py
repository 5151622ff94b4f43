"""Paths of a work folder, and its files, without a daemon."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from leeward.client.workdir import MOST_CODE, check_code, heap_of
from leeward.client.workdir_files import WorkdirFiles, inside


@pytest.mark.parametrize(("path", "plain"), [
    ("a", "a"), ("./a//b/", "a/b"), ("a/../b", "b"), (".", "."), ("a/..", "."), ("...", "..."), (Path("a/b"), "a/b"),
    ("a/b/../../c", "c"), ("..a", "..a"),
])
def test_a_path_inside_is_made_plain(path: str | Path, plain: str) -> None:
    """Without looking at any file."""
    assert plain == inside(path)


@pytest.mark.parametrize("path", ["..", "../a", "a/../..", "a/../../b", "/", "/a", "//a", "./..", "../", Path("/etc")])
def test_a_path_that_leads_out_is_refused(path: str | Path) -> None:
    """With the path as it was given."""
    with pytest.raises(leeward.PathTraversal, match=r"^path traversal blocked: .* escapes sandbox root$") as caught:
        inside(path)
    assert str(path) == caught.value.path


def test_a_file_that_the_disk_has_no_room_for_stays_as_it_was(tmp_path: Path, files: WorkdirFiles) -> None:
    """By the limit on files: the kernel refuses the space as on a full disk."""
    (tmp_path / "a").write_text("old")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(leeward.WorkdirIoError):
            files.write("a", b"new" * (1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "old" == (tmp_path / "a").read_text()
    files.write("a", "newer")
    files.write("a", "x")
    assert "x" == (tmp_path / "a").read_text()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WorkdirFiles]:
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield WorkdirFiles(folder)
    os.close(folder)


def test_copied_files_are_bounded(files: WorkdirFiles, tmp_path: Path) -> None:
    """A file as large as the bound is copied whole; one byte or name more is refused."""
    files.write("a", b"12345")
    files.write("b", "")

    assert b"12345" == files.read("a", limit=5)
    assert ["a", "b"] == [entry.name for entry in files.list(".", limit=2)]
    for call in (lambda: files.read("a", limit=4), lambda: files.list(".", limit=1)):
        with pytest.raises(leeward.WorkdirIoError) as caught:
            call()  # type: ignore[operator]
        assert errno.EFBIG == caught.value.errno


def test_a_written_file_replaces_the_old_one(files: WorkdirFiles, tmp_path: Path) -> None:
    """Through a link that stays inside, too."""
    files.write("deep/er/file", b"x" * 3_000_000)
    files.write("deep/er/file", b"short")
    (tmp_path / "link").symlink_to("deep/er")

    assert 3 == files.write("link/file", "new")
    assert b"new" == (tmp_path / "deep/er/file").read_bytes() == files.read("link/file")
    assert 3 == files.write("link/more/file", "new")


def test_an_io_error_is_an_os_error(files: WorkdirFiles) -> None:
    """Of both families; its text is one line."""
    with pytest.raises(OSError, match=r"^none: no such file or directory$") as caught:
        files.read("none")
    assert isinstance(caught.value, leeward.WorkdirError)


def test_every_kind_of_error_has_its_own_word() -> None:
    """The same in all languages."""
    kinds = {kind.kind: kind for kind in (leeward.WorkdirError, *leeward.WorkdirError.__subclasses__())}

    assert {"other", "runtime", "io", "path_traversal", "command_not_found", "timeout", "destroyed",
            "toolbox_not_available", "networking_disabled", "fetch"} == set(kinds)


@pytest.mark.parametrize(("memory", "heap"), [(512, 384), (256, 160), (192, 104), (64, 16), (16, 16), (4096, 3520)])
def test_the_heap_leaves_room_for_node_itself(memory: int, heap: int) -> None:
    """In MiB."""
    assert heap == heap_of(memory << 20)


@pytest.mark.parametrize("memory", [1.5, None, b"512M", True])
def test_memory_of_another_type_is_refused(memory: object, tmp_path: Path) -> None:
    """As soon as the object is made, with the value and what is taken."""
    with pytest.raises(leeward.RequestRejected, match="memory is a whole number of bytes or a size such as"):
        leeward.WorkdirSandbox(tmp_path, memory=memory)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "says"), [
    (3, "code is JavaScript as text, not int"), (b"1", "not bytes"), ("\ud800", "code can't be sent"),
    ("x" * (MOST_CODE + 1), "code has 131072 bytes, and `node -e` takes 131071 at most: write_file"),
    ("\u20ac" * MOST_CODE, "code has 393213 bytes"),
])
def test_code_that_node_does_not_take_is_refused(code: object, says: str) -> None:
    with pytest.raises(leeward.RequestRejected, match=says):
        check_code(code)
    check_code("x" * MOST_CODE)


def test_an_overlay_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(leeward.RequestRejected, match="overlay=True needs no compare=True"):
        leeward.WorkdirSandbox(tmp_path, overlay=True, compare=True)


@pytest.mark.parametrize("compare", [True, False])
def test_a_comparison_needs_no_daemon(tmp_path: Path, compare: bool) -> None:
    """File calls and `diff` are this program's; the state is the one before the first of them."""
    (tmp_path / "was").write_text("1")
    with leeward.WorkdirSandbox(tmp_path, compare=compare, socket=tmp_path / "none") as work:
        (tmp_path / "before").write_text("the first call comes later")
        work.write_file("new/file", "2")
        work.write_file("was", "3")

        assert [("created", "new"), ("created", "new/file"), ("modified", "was")] == [
            (change.kind, change.path) for change in work.diff()]
        work.write_file("was", "1")
        assert ["new", "new/file", *(() if compare else ("was",))] == [change.path for change in work.diff()]

        moved = tmp_path.rename(tmp_path.with_name("moved"))
        try:
            with pytest.raises(leeward.WorkdirRuntimeError, match="no such file or directory"):
                work.diff()
        finally:
            moved.rename(tmp_path)
    with pytest.raises(leeward.Destroyed):
        work.diff()
