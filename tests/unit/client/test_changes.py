"""What has changed in a copy of a folder, and how it comes onto the host: with rows as a sandbox could have made them."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from leeward.client.apply_journal import ApplyJournal
from leeward.client.applying import Applying, chosen, finish_interrupted, leads_out
from leeward.client.changes import FolderChange, HostFolder, UpperRow, changes, entries, next_tick
from leeward.errors import BadReply, RequestRejected, SandboxOver, Stale
from leeward.spec.folders import FILE_CLOCK


def row(path: bytes, kind: str = "file", content: bytes = b"", *, mode: int = 0o644, link: bytes = b"",
        hides: bool = False) -> UpperRow:
    digest = hashlib.sha256(content).digest() if "file" == kind else None
    return UpperRow(path, kind, mode, len(content), len(content), 0, digest, link, hides)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/leeward/applying"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "host/sub").mkdir(parents=True)
    (tmp_path / "host/file").write_text("old")
    (tmp_path / "host/sub/in").write_text("in")
    (tmp_path / "host/link").symlink_to("file")
    (tmp_path / "host/kind").write_text("kind")
    for path in (tmp_path / "host").rglob("*"):
        if not path.is_symlink() and path.is_file():
            path.chmod(0o644)
    return tmp_path / "host"


@pytest.fixture
def host(folder: Path) -> Iterator[HostFolder]:
    next_tick()
    about = folder.stat()
    made = HostFolder({"path": str(folder), "device": about.st_dev, "inode": about.st_ino,
                       "since": time.clock_gettime_ns(FILE_CLOCK)})
    yield made
    made.close()


def told(rows: list[UpperRow], host: HostFolder) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in changes(sorted(rows, key=lambda one: one.path), host)]


def test_every_kind_of_change_is_reported(host: HostFolder) -> None:
    """By comparison with the host's file."""
    assert [] == told([row(b"file", content=b"old"), row(b"sub", "folder", mode=0o755), row(b"none", "gone"),
                       row(b"link", "link", link=b"file")], host)
    assert [("modified", "file")] == told([row(b"file", content=b"new")], host)
    assert [("mode", "file")] == told([row(b"file", content=b"old", mode=0o755)], host)
    assert [("created", "x"), ("created", "x/y")] == told([row(b"x", "folder"), row(b"x/y")], host)
    assert [("deleted", "sub"), ("deleted", "sub/in")] == told([row(b"sub", "gone")], host)
    assert [("modified", "link")] == told([row(b"link", "link", link=b"other")], host)
    assert [("created", "sub/new"), ("deleted", "sub/in")] == sorted(
        told([row(b"sub", "folder", mode=0o755, hides=True), row(b"sub/new")], host))
    assert [("modified", "sub"), ("deleted", "sub/in")] == told([row(b"sub", content=b"flat")], host)
    assert [("created", "fifo")] == told([row(b"fifo", "special")], host)


def test_no_file_is_searched_outside_the_folder(host: HostFolder, folder: Path) -> None:
    """A folder of the host that is a link counts as absent."""
    (folder / "away").symlink_to("/etc")
    assert [("created", "away/passwd")] == told([row(b"away/passwd", content=b"x")], host)
    with pytest.raises(Stale):
        Applying(host, lambda _path, _fd, _most: None, {}).apply(changes([row(b"away/passwd")], host))


@pytest.mark.parametrize("bad", [b"\xc1", b"\x01", msgpack.packb([]), msgpack.packb({}), b"\x99",
                                 *(msgpack.packb([path, "file", 0, 0, 0, 0, None, b"", False])
                                   for path in (b"", b"/etc", b"a/../b", b"..", b"a//b", b"a\0", "text")),
                                 msgpack.packb([b"a", "strange", 0, 0, 0, 0, None, b"", False]),
                                 msgpack.packb([b"a", "file", "0", 0, 0, 0, None, b"", False]),
                                 msgpack.packb([b"a", "file", 0, 0, 0, 0, b"short", b"", False])])
def test_a_malformed_row_is_refused(bad: bytes) -> None:
    with pytest.raises(BadReply):
        entries(bad + msgpack.packb(None))


def test_any_bytes_are_rows_or_refused() -> None:
    """Nothing else comes out, whatever goes in."""
    seeds = random.Random(42)
    good = msgpack.packb([b"a/b", "file", 0o644, 1, 512, 7, bytes(32), b"", False])
    assert [b"a/b"] == [one.path for one in entries(good + msgpack.packb(None))]
    for cut in range(len(good)):
        with pytest.raises(BadReply):
            entries(good + good[:cut])
    for _ in range(3000):
        data = bytearray(good * seeds.randint(1, 3))
        for _ in range(seeds.randint(1, 4)):
            data[seeds.randrange(len(data))] = seeds.randrange(256)
        try:
            entries(bytes(data))
        except BadReply:
            pass


def test_a_selection_has_the_named_paths_and_their_folders() -> None:
    """Named paths, all below them, and the folders that they need."""
    all_of_them = [FolderChange(path, "created", kind) for path, kind in (
        ("a", "folder"), ("a/b", "folder"), ("a/b/c", "file"), ("a/d", "file"), ("e", "file"))]
    assert all_of_them == chosen(all_of_them, None)
    assert ["a", "a/b", "a/b/c"] == [one.path for one in chosen(all_of_them, ["a/b/c"])]
    assert ["a", "a/b", "a/b/c", "a/d"] == [one.path for one in chosen(all_of_them, ["a/"])]
    with pytest.raises(RequestRejected, match="has not changed"):
        chosen(all_of_them, ["e", "f"])


def test_a_file_without_a_hash_counts_as_changed_and_is_not_applied_as_seen(host: HostFolder, folder: Path) -> None:
    """Also one with the size and the time of the host's."""
    about = (folder / "file").stat()
    found = changes([UpperRow(b"file", "file", 0o644, about.st_size, 4096, about.st_mtime_ns, None, b"", False)], host)
    assert [("modified", False)] == [(change.kind, change.is_compared) for change in found]
    for kind, change in (("file", row(b"new")), ("link", row(b"new", "link", link=b"file"))):
        assert [(kind, True)] == [(one.type, one.is_compared) for one in changes([change], host)]
    with pytest.raises(RequestRejected, match="without a hash"):
        Applying(host, wrote(b"new"), {}).apply(found, seen=True)
    assert ["file"] == [*Applying(host, wrote(b"new"), {}).conflicts(found)]
    Applying(host, wrote(b"new"), {}).apply(found)
    assert "new" == (folder / "file").read_text()


@pytest.mark.parametrize(("path", "text", "out"), [
    ("l", "file", False), ("a/l", "../file", False), ("a/l", "../../file", True), ("l", "..", True),
    ("l", "/etc", True), ("l", "", True), ("a/b/l", "../../x/..", True), ("l", "a/../../x", True),
    ("l", "deep/link/../x", True), ("a/b/l", "../../x", False), ("a/l", "./../b/c", False),
])
def test_links_that_lead_out(path: str, text: str, *, out: bool) -> None:
    assert out == leads_out(FolderChange(path, "created", "link", link=text))


def wrote(content: bytes) -> Callable[[bytes, int, int], None]:
    def read(_path: bytes, fd: int, most: int) -> None:
        os.write(fd, content[:most + 1])
    return read


def test_all_changes_are_applied_or_none(host: HostFolder, folder: Path) -> None:
    """One that is stale, or that nobody wants, keeps the others away."""
    for bad in (row(b"fifo", "special"), row(b"out", "link", link=b"/etc"),
                UpperRow(b"holes", "file", 0o644, 1 << 40, 0, 0, None, b"", False)):
        with pytest.raises(RequestRejected):
            Applying(host, wrote(b"new"), {}).apply(changes([row(b"file", content=b"new"), bad], host))
    (folder / "sub/in").write_text("by somebody")
    with pytest.raises(Stale) as stale:
        Applying(host, wrote(b"new"), {}).apply(changes([row(b"file", content=b"new"),
                                                         row(b"sub/in", content=b"new")], host))
    assert "sub/in" == stale.value.path
    assert "old" == (folder / "file").read_text()


@pytest.mark.parametrize("count", [3, 450])
def test_a_file_is_on_the_disk_before_it_has_a_name(host: HostFolder, folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                    count: int) -> None:
    """Many wait for the disk together. A folder is synced once, after its last entry."""
    synced: list[str] = []
    there: list[int] = []

    def sync(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), folder))
        there.append(len(os.listdir(folder / "many")) if (folder / "many").exists() else 0)
        about = os.fstat(fd)
        assert stat.S_ISDIR(about.st_mode) or 0 == about.st_nlink or synced[-1].endswith(".journal")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr("leeward.client.applying.sync_all", sync)
    monkeypatch.setattr("leeward.client.applying._FILES", 200)
    rows = [row(b"many", "folder"), *(row(b"many/%03d" % number, content=b"new") for number in range(count))]
    Applying(host, wrote(b"new"), {}).apply(changes(rows, host))
    assert all(name.endswith(".journal") for name in synced[:2])
    assert {".", "many"} == set(synced[-2:])
    assert ([0] * 3 if 3 == count else [0, 200, 400]) == there[2:-2]
    assert count == len(os.listdir(folder / "many"))


def test_a_folder_that_the_host_has_no_more_keeps_all_of_them_away(host: HostFolder, folder: Path) -> None:
    """Before the first of them is put there: what is new in it has no place. One that is made anew is a place."""
    found = changes([row(b"file", content=b"new"), row(b"sub", "folder", mode=0o755), row(b"sub/new", content=b"new")],
                    host)
    for swap in (lambda: None, lambda: (folder / "sub").write_text("a file"), lambda: (
            (folder / "sub").unlink(), (folder / "sub").symlink_to("."))):
        if (folder / "sub").is_dir() and not (folder / "sub").is_symlink():
            (folder / "sub/in").unlink()
            (folder / "sub").rmdir()
        swap()
        with pytest.raises(Stale, match="the folder of 'sub/new'"):
            Applying(host, wrote(b"new"), {}).apply(found)
        assert "old" == (folder / "file").read_text()
    (folder / "sub").unlink()
    found = changes([row(b"sub", "folder", mode=0o755), row(b"sub/new", content=b"new")], host)
    Applying(host, wrote(b"new"), {}).apply(found)
    assert "new" == (folder / "sub/new").read_text()


def test_names_that_are_longer_than_a_path_may_be(host: HostFolder) -> None:
    """A sandbox can make them step by step. They cost the diff nothing, and aren't applied."""
    long = b"/".join([b"d" * 200] * 30) + b"/l"
    found = changes([row(long, "link", link=b"x"), row(b"file", content=b"new")], host)
    assert {"created", "modified"} == {change.kind for change in found}
    with pytest.raises(Stale):
        Applying(host, wrote(b"new"), {}).apply(found)


def test_a_file_that_vanishes_during_the_walk_is_skipped(host: HostFolder, folder: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir

    def listdir(fd: int) -> list[str]:
        return [*listed(fd), "gone"]

    monkeypatch.setattr(os, "listdir", listdir)
    assert [b"sub/in"] == host.below(b"sub")


def test_bits_and_content(host: HostFolder, folder: Path) -> None:
    """Set-id bits stay away; content that isn't what was shown is no change to apply; no file of ours is left."""
    found = changes([row(b"file", content=b"new", mode=0o6755)], host)
    for content in (b"neW", b"new+", b""):
        with pytest.raises(Stale, match="meanwhile"):
            Applying(host, wrote(content), {}).apply(found)
    done: dict[bytes, tuple[int, int]] = {}
    Applying(host, wrote(b"new"), done).apply(found)
    assert ("new", 0o755) == ((folder / "file").read_text(), stat.S_IMODE((folder / "file").stat().st_mode))
    assert ["file", "kind", "link", "sub"] == sorted(os.listdir(folder))
    Applying(host, wrote(b"newer"), done).apply(changes([row(b"file", content=b"newer")], host))
    assert "newer" == (folder / "file").read_text()
    with pytest.raises(Stale):
        Applying(host, wrote(b"x"), {}).apply(changes([row(b"file", content=b"x")], host))


def test_another_folder_is_stale(folder: Path) -> None:
    about = folder.stat()
    where = {"path": str(folder), "device": about.st_dev, "inode": about.st_ino + 1, "since": 0}
    with pytest.raises(Stale, match="another folder"):
        HostFolder(where)
    with pytest.raises(Stale):
        HostFolder({**where, "path": str(folder / "link")})


def many(host: HostFolder) -> list[FolderChange]:
    """Of each kind, in a folder with `file`, `sub/in` and `link`."""
    rows = [row(b"file", content=b"new"), row(b"link", "link", link=b"sub"), row(b"made", "folder", mode=0o750),
            row(b"made/in", content=b"new", mode=0o755), row(b"made/link", "link", link=b"in"), row(b"sub", "gone"),
            row(b"kind", "folder", mode=0o700), row(b"kind/in", content=b"new")]
    return changes(sorted(rows, key=lambda one: one.path), host)


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): (os.readlink(path) if path.is_symlink() else
                                            f"{path.read_text() if path.is_file() else ''}"
                                            f" {stat.S_IMODE(path.stat().st_mode):o}")
            for path in sorted(folder.rglob("*"))}


AFTER = {"file": "new 644", "kind": " 700", "kind/in": "new 644", "link": "sub", "made": " 750", "made/in": "new 755",
         "made/link": "in"}
#: The calls that change the host.
CALLS = ("link", "rename", "rmdir", "unlink", "mkdir", "symlink", "fchmod")


def killed_at(host: HostFolder, step: int, *, after: bool) -> bool:
    """
    Apply `many` in a child that is killed before or after its call number *step* once the journal is complete. Returns
    False if it made fewer.
    """
    child = os.fork()
    if not child:
        count = [-1000]
        complete = ApplyJournal.complete

        def begin(journal: ApplyJournal, *given: Any) -> None:
            complete(journal, *given)
            count[0] = 0

        ApplyJournal.complete = begin  # type: ignore[method-assign,assignment]

        def call(inner: Callable[..., object], *given: object, **named: object) -> object:
            count[0] += 1
            if count[0] == step and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = inner(*given, **named)
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        for name in CALLS:
            setattr(os, name, functools.partial(call, getattr(os, name)))
        try:
            Applying(host, wrote(b"new"), {}).apply(many(host), seen=True)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def test_the_next_program_finishes_what_a_killed_one_has_begun(host: HostFolder, folder: Path, state: Path) -> None:
    """Killed before and after each call that changes something; and again, which changes nothing."""
    kept, before = folder.parent / "kept", tree(folder)
    step, halves = 0, 0
    while True:
        step += 1
        for after in (False, True):
            shutil.copytree(folder, kept, symlinks=True)
            if not killed_at(host, step, after=after):
                assert (AFTER, []) == (tree(folder), os.listdir(state))
                assert halves > 10
                return
            halves += tree(folder) not in (before, AFTER)
            found = finish_interrupted()  # nothing is found if it was killed after its last call
            assert [((), str(folder))] * len(found) == [(one.left, one.folder) for one in found]
            assert AFTER == tree(folder)
            assert ([], []) == (finish_interrupted(), os.listdir(state))
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(kept)
            next_tick()
            host.since = time.clock_gettime_ns(FILE_CLOCK)
            host.row = {**host.row, "since": host.since}


def test_what_the_host_has_changed_since_is_not_finished(host: HostFolder, folder: Path, state: Path) -> None:
    assert killed_at(host, 1, after=False)
    (folder / "file").write_text("by somebody")
    (folder / "made").write_text("by somebody")
    [finished] = finish_interrupted()
    assert ["file", "made", "made/in", "made/link"] == sorted(error.path for error in finished.left)
    assert ("by somebody", "by somebody") == ((folder / "file").read_text(), (folder / "made").read_text())
    assert "sub" == os.readlink(folder / "link")
    assert [] == os.listdir(state)


def test_nothing_is_finished_in_another_folder_or_while_its_program_lives(host: HostFolder, folder: Path,
                                                                          state: Path) -> None:
    def look(_path: bytes, fd: int, _most: int) -> None:
        assert ([], 1) == (finish_interrupted(), len(os.listdir(state)))
        os.write(fd, b"new")

    Applying(host, look, {}).apply(changes([row(b"x", content=b"new")], host))
    assert killed_at(host, 3, after=False)
    os.rename(folder, folder.parent / "away")
    folder.mkdir()
    [finished] = finish_interrupted()
    assert ((), [str(folder)]) == (finished.done, [error.path for error in finished.left])
    assert ([], []) == (os.listdir(folder), os.listdir(state))


def test_an_incomplete_journal_is_removed_and_a_strangers_is_not_read(host: HostFolder, folder: Path,
                                                                      state: Path) -> None:
    state.mkdir(mode=0o700, parents=True)
    (state / "x.journal").write_bytes(b"half")
    (state / "fifo").mkdir()
    assert [] == finish_interrupted()
    assert ["fifo"] == os.listdir(state)
    state.chmod(0o755)
    (state / "y.journal").write_bytes(b"half")
    assert [] == finish_interrupted()
    Applying(host, wrote(b"new"), {}).apply(changes([row(b"file", content=b"new")], host))
    assert ["fifo", "y.journal"] == sorted(os.listdir(state))
    assert "new" == (folder / "file").read_text()


def test_nothing_was_changed_when_a_content_cannot_be_fetched(host: HostFolder, folder: Path, state: Path) -> None:
    def read(path: bytes, fd: int, _most: int) -> None:
        if b"made/in" == path:
            raise SandboxOver("lost", "lost")
        os.write(fd, b"new")

    before = tree(folder)
    with pytest.raises(SandboxOver):
        Applying(host, read, {}).apply(many(host))
    assert (before, []) == (tree(folder), os.listdir(state))


def test_an_error_says_what_was_applied(host: HostFolder, folder: Path, state: Path) -> None:
    """Another program writes after the check."""
    def read(path: bytes, fd: int, _most: int) -> None:
        os.write(fd, b"new")
        if b"made/in" == path:
            (folder / "made").mkdir()

    with pytest.raises(Stale) as failed:
        Applying(host, read, {}).apply(many(host))
    # Files come to their places together, after what has no content.
    assert ("made", ("sub/in", "sub", "kind", "link")) == (failed.value.path, failed.value.applied)
    assert "old" == (folder / "file").read_text()
    assert [] == os.listdir(state)


def test_where_no_file_is_without_a_name_it_has_a_temporary_one(host: HostFolder, folder: Path, state: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file is removed as well, when its program was killed."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_WRONLY)  # refused with EISDIR
    assert killed_at(host, 3, after=False)
    assert [path for path in folder.iterdir() if path.name.startswith(".leeward-")] or (folder / "made").exists()
    finish_interrupted()
    assert (AFTER, []) == (tree(folder), os.listdir(state))


def test_nothing_is_changed_when_there_is_no_room_for_the_contents(host: HostFolder, folder: Path, state: Path) -> None:
    def read(_path: bytes, _fd: int, _most: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = tree(folder)
    with pytest.raises(RequestRejected, match="no space left on device; nothing was applied"):
        Applying(host, read, {}).apply(many(host))
    assert (before, []) == (tree(folder), os.listdir(state))
