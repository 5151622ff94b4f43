"""Which folders a sandbox may have, and where."""

from __future__ import annotations

import pytest

from leeward.base.dataclass import replace
from leeward.errors import BadRequest
from leeward.spec import folders
from leeward.spec.folders import MOST, Folder
from leeward.spec.sandbox import Bind, Scratch, Symlink, Text, View

VIEW = View((Bind("/opt/python", "/opt/python"),), (Text("/etc/passwd", b""), Text("/.note", b"")),
            (Symlink("/home/sandbox", "/workspace"),), Scratch(("/workspace", "/tmp", "/dev/shm")))


@pytest.mark.parametrize(("path", "target"), [
    ("/a", "/workspace"), ("/a/b", "/data"), ("/a", "/tmp/x"), ("/a", "/srv/a/b"), ("/processes", "/data"),
    ("/a b\n", "/d"),
])
def test_folders_that_are_taken(path: str, target: str) -> None:
    folders.check([Folder(path, target)])
    folders.fits([Folder(path, target)], VIEW)


@pytest.mark.parametrize(("folder", "why"), [
    (Folder("/", "/data"), "no sandbox is shown"), (Folder("/proc", "/data"), "no sandbox"),
    (Folder("/dev/shm/x", "/data"), "no sandbox"), (Folder("/sys/fs", "/data"), "no sandbox"),
    (Folder("a", "/data"), "not an absolute path"), (Folder("/a", "data"), "not an absolute path"),
    (Folder("/a", ""), "not an absolute"),
    (Folder("/a/../b", "/data"), "in it"), (Folder("/a", "/data/.."), "in it"), (Folder("/a", "//data"), "in it"),
    (Folder("/a", "/data/"), "in it"), (Folder("/a", "/da\0ta"), "not an absolute path"),
    (Folder("/" + "a" * 4096, "/data"), "not an absolute path"),
    (Folder("/a", "/"), "own"), (Folder("/a", "/usr"), "own"), (Folder("/a", "/usr/x"), "own"),
    (Folder("/a", "/tmp"), "own"),
    (Folder("/a", "/etc/x"), "own"), (Folder("/a", "/dev/shm/x"), "own"), (Folder("/a", "/lib64"), "own"),
    (Folder("/a", "/b", writable=True, overlay=True), "not both"),
    (Folder("/a", "/b", writable=True, file=True), "read-only"),
    (Folder("/a", "/b", overlay=True, file=True), "read-only"),
])
def test_folders_that_are_refused(folder: Folder, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        folders.check([folder])


@pytest.mark.parametrize("target", ["/opt", "/opt/python", "/opt/python/x", "/.note", "/home", "/home/sandbox"])
def test_a_folder_over_the_views_own_is_refused(target: str) -> None:
    """Nor below, nor around it."""
    folders.check([Folder("/a", target)])
    with pytest.raises(BadRequest, match="own"):
        folders.fits([Folder("/a", target)], VIEW)


def test_overlapping_and_too_many_folders_are_refused() -> None:
    for one, other in (("/data", "/data"), ("/data", "/data/x"), ("/workspace/x/y", "/workspace")):
        with pytest.raises(BadRequest, match="overlap"):
            folders.check([Folder("/a", one), Folder("/b", other)])
    folders.check([Folder("/a", f"/data{number}") for number in range(MOST)])
    with pytest.raises(BadRequest, match="may have"):
        folders.check([Folder("/a", f"/data{number}") for number in range(MOST + 1)])


def test_a_part_of_a_read_only_folder_may_be_written() -> None:
    """At its own place, named after the folder, and once."""
    whole, part = Folder("/a", "/data"), Folder("/a/x", "/data/x", writable=True)
    folders.check([whole, part, Folder("/a/y", "/data/y", overlay=True)])
    for rows in ([part, whole], [whole, replace(part, path="/b/x")], [whole, replace(part, writable=False)],
                 [replace(whole, writable=True), part], [replace(whole, overlay=True), part],
                 [whole, part, Folder("/a/x/z", "/data/x/z", writable=True)]):
        with pytest.raises(BadRequest, match="overlap"):
            folders.check(rows)


def test_a_home_has_others_in_it() -> None:
    """At its own path alone, before them, and once; it may hold what the view shows."""
    home, inner = Folder("/kept", "/home/a", writable=True), Folder("/p", "/home/a/p", writable=True)
    folders.check([home, inner, Folder("/q", "/home/a/q/r", overlay=True)], "/home/a")
    for rows, path in (([home, inner], ""), ([home, inner], "/home"), ([inner, home], "/home/a"), ([home, home], "/home/a"),
                       ([home, inner, Folder("/q", "/home/a/p/q")], "/home/a")):
        with pytest.raises(BadRequest, match="overlap"):
            folders.check(rows, path)
    view = replace(VIEW, binds=(Bind("/home/a/.pyenv", "/home/a/.pyenv"),))
    folders.fits([home], view, "/home/a")
    for folder in (home, Folder("/x", "/home/a/.pyenv/x")):
        with pytest.raises(BadRequest, match="own"):
            folders.fits([folder], view, "" if folder == home else "/home/a")


def test_a_deep_target_needs_a_folder_in_the_root() -> None:
    scratch = VIEW.scratch.targets
    assert [False, False, False, True, True] == [
        folders.is_deep(Folder("/a", target), scratch) for target in ("/workspace", "/workspace/x", "/tmp/x", "/data",
                                                                     "/workspaces")]
