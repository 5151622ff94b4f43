"""`box.files` against a server whose process for file calls is the product's, under no lock."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import os
import signal
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.sandbox_stand import Stand
from leeward.base.closing import OwnedFd
from leeward.client.file_calls import chunks_in, read_many, write_many
from leeward.client.file_trees import stays_below
from leeward.errors import PeerError
from leeward.inside import file_content, file_tree
from leeward.wire.file_answers import CHUNK, MAX_ROWS, check_answer
from leeward.wire.file_batches import file_of, found_of


@pytest.fixture
def box(stand: Stand) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=stand.socket) as made:
        yield made


@pytest.fixture
def files(box: leeward.Sandbox) -> leeward.Files:
    return box.files


def test_written_files_are_read_back(files: leeward.Files) -> None:
    """With the folders that lead there; binary, empty, in one piece and in several."""
    for content in (b"", b"\0\xff\n", os.urandom(CHUNK), os.urandom(2 * CHUNK + 7)):
        assert len(content) == files.write("a/b/c", content)
        assert content == files.read("a/b/c")
    assert 3 == files.write("text", "ü!")
    assert 9 == files.write("stream", io.BytesIO(b"by a file"))
    assert 4 == files.write("pieces", iter([b"ab", b"", b"cd"]))
    assert 6 == files.append("pieces", b"ef")
    assert 2 == files.append("new/log", b"xy")
    assert ("ü!".encode(), b"by a file", b"abcdef", b"xy") == tuple(
        files.read(name) for name in ("text", "stream", "pieces", "new/log"))
    assert b"ce" == files.read("pieces", offset=2, size=3).replace(b"d", b"")
    assert (b"", b"") == (files.read("pieces", offset=99), files.read("pieces", size=0))
    with pytest.raises(OSError, match="the limit is") as large:
        files.read("a/b/c", limit=1000)
    assert 27 == large.value.errno


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_file_in_pieces_has_no_name_until_it_is_whole(files: leeward.Files, unnamed: bool,
                                                       monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where its file system can do that; else another one. Then it replaces what is there, keeping its mode, or nothing."""
    if not unnamed:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # EISDIR, as of a file system without them
    monkeypatch.chdir(tmp_path)
    handles, seen = file_content.Handles(), list[int]()
    Path("there").write_bytes(b"old")
    Path("there").chmod(0o640)

    def written(path: bytes, new: bool) -> None:
        call = {"path": path, "new": new, "mode": -1, "time": -1}
        number = file_content.write({**call, "handle": 0, "offset": 0, "data": b"1", "more": True}, handles)["handle"]
        seen.append(len([*tmp_path.rglob(".leeward-*")]))
        file_content.write({**call, "handle": number, "offset": 1, "data": b"2", "more": False}, handles)

    written(b"there", new=False)
    written(b"a/b", new=False)
    written(bytes(tmp_path / "new"), new=True)
    with pytest.raises(FileExistsError):
        written(b"new", new=True)

    assert [0 if unnamed else 1] * 3 == seen
    assert [b"12"] * 3 == [Path(name).read_bytes() for name in ("there", "a/b", "new")]
    assert 0o640 == Path("there").stat().st_mode & 0o777
    assert [] == [*tmp_path.rglob(".leeward-*")]


def test_many_files_are_written_and_read_by_one_call(files: leeward.Files) -> None:
    """More than a request takes, large ones among them, at any paths; what is there keeps its mode unless one is given."""
    files.write("there", b"old", mode=0o640)
    many: dict[str | bytes, bytes] = {f"d{number % 7}/{number}": b"%d" % number for number in range(MAX_ROWS + 5)}
    many |= {"large": os.urandom(CHUNK), "empty": b"", "there": b"new", b"\xff": b"1", "half": os.urandom(CHUNK // 2),
             "more": os.urandom(CHUNK // 2 + 9)}

    assert sum(map(len, many.values())) == files.write_many(many)

    assert many == files.read_many([*many, "large"])
    assert [0o640, 0o644] == [files.stat(name).mode for name in ("there", "empty")]
    assert 2 == files.write_many({"there": "ü"}, mode=0o600)
    assert (0o600, {}) == (files.stat("there").mode, files.read_many([]))
    assert 0 == files.write_many({})
    assert [] == files.glob("**/.leeward-*")


def test_folders_of_many_files_are_made_whatever_they_are_called(files: leeward.Files) -> None:
    """Below each other, twice under other names, deeper than any, and where the batch has a file of that name."""
    deep = "d/" * 70 + "f"
    many = {"p/q/r/1": b"1", "p/q/2": b"2", "p/q/r/../3": b"3", "./p/q/4": b"4", "p//q/5": b"5", "p/./q/2": b"new",
            "p/q/r/./1": b"also new", deep: b"7", "n/" + "n" * 255 + "/1": b"8"}
    files.write_many(many, mode=0o640)
    assert [b"3", b"4", b"5", b"new", b"also new", b"7", b"8"] == [
        *files.read_many(["p/q/3", "p/q/4", "p/q/5", "p/q/2", "p/q/r/1", deep, [*many][-1]]).values()]
    assert (0o640, 0o755) == (files.stat("p/q/r/1").mode, files.stat("p/q").mode)
    with pytest.raises(leeward.FilesFailed) as wrong:
        files.write_many({"new/a": b"1", "new/a/b": b"2", "new/..": b"3", "new/c/": b"4", "new/" + "x" * 256: b"5",
                          "new/" + "x" * 256 + "/1": b"6", "new/last": b"7"})
    assert {"new/a/b": errno.ENOTDIR, "new/..": errno.EISDIR, "new/c/": errno.EISDIR, "new/" + "x" * 256: errno.ENAMETOOLONG,
            "new/" + "x" * 256 + "/1": errno.ENAMETOOLONG} == {
        path: error.errno for path, error in wrong.value.errors.items()}  # type: ignore[attr-defined]  # an OSError
    assert [b"1", b"7"] == [*files.read_many(["new/a", "new/last"]).values()]
    assert [] == files.glob("**/.leeward-*")


def test_what_a_batch_has_left_whose_process_was_killed_is_removed_by_the_next_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not that of one that still runs, nor what others have called so: a folder, one behind a link, a file."""
    monkeypatch.chdir(tmp_path)
    batch = b"".join(b"".join(file_of(b"at/new/%d" % number, -1, b"x")) for number in range(9))
    Path("at").mkdir()
    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        file_content.write_many(batch, lambda _: {}, file_tree.remove)
    os.waitpid(child, 0)
    [left] = os.listdir("at")  # control
    assert 9 == len(os.listdir(f"at/{left}"))
    theirs, link, file, runs = (f"{left.rpartition('-')[0]}-{number}.tmp" for number in range(90, 94))
    for folder in ("far", f"at/{theirs}", f"at/{runs}"):
        Path(folder).mkdir()
        Path(folder, "kept").touch()
    for folder in ("far", f"at/{runs}"):
        os.chmod(folder, 0o1755)
    os.symlink("../far", f"at/{link}")
    Path("at", file).touch()
    with OwnedFd(os.open(f"at/{runs}", os.O_RDONLY)) as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        assert [] == file_content.write_many(batch, lambda _: {}, file_tree.remove)

    assert sorted(["new", theirs, link, file, runs]) == sorted(os.listdir("at"))
    assert [["kept"]] * 3 == [os.listdir(folder) for folder in ("far", f"at/{theirs}", f"at/{runs}")]
    assert 0 == os.stat("at/new").st_mode & stat.S_ISVTX


@pytest.mark.parametrize("meanwhile", ["folder", "link", "file"])
def test_a_folder_that_others_make_while_many_files_are_written_keeps_what_it_has(
        meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files get there still, through a link as well; where that is no folder each is told. Nothing else is left."""
    monkeypatch.chdir(tmp_path)
    rename = os.rename

    def made_before(old: bytes, new: bytes) -> None:
        monkeypatch.setattr(os, "rename", rename)
        if meanwhile == "file":
            Path("new").write_bytes(b"")
        else:
            Path("other" if meanwhile == "link" else "new").mkdir()
            Path("other" if meanwhile == "link" else "new", "theirs").write_bytes(b"theirs")
        if meanwhile == "link":
            os.symlink("other", "new")
        rename(old, new)

    monkeypatch.setattr(os, "rename", made_before)
    batch = b"".join(b"".join(file_of(name, -1, name)) for name in (b"new/theirs", b"new/below/1", b"new/2"))
    wrong = file_content.write_many(batch, lambda error: {"errno": getattr(error, "errno", 0), "why": ""}, file_tree.remove)
    if meanwhile == "file":
        assert [[number, errno.ENOTDIR, ""] for number in range(3)] == wrong
    else:
        assert ([], ["2", "below", "theirs"]) == (wrong, sorted(os.listdir("new")))
        assert (b"new/theirs", b"new/below/1") == (Path("new/theirs").read_bytes(), Path("new/below/1").read_bytes())
    assert [] == [*tmp_path.rglob(".leeward-*")]


def test_one_bad_file_of_many_keeps_no_other_back(files: leeward.Files) -> None:
    """Each error is told by its path, as the call for one file would have raised it."""
    files.mkdir("full")
    files.write("file", b"before")
    with pytest.raises(leeward.FilesFailed) as wrong:
        files.write_many({"full": b"", "a": b"1", "file/x": bytes(CHUNK), "file/y": b"", "b": b"2"})
    assert {"full": IsADirectoryError, "file/x": NotADirectoryError, "file/y": NotADirectoryError} == {
        path: type(error) for path, error in wrong.value.errors.items()}
    assert (21, True) == (wrong.value.errno, isinstance(wrong.value, OSError))
    assert "and 2 more" in str(wrong.value)

    with pytest.raises(leeward.FilesFailed) as wrong:
        files.read_many(["a", "no", "full", "b"])
    assert {"no": FileNotFoundError, "full": IsADirectoryError} == {
        path: type(error) for path, error in wrong.value.errors.items()}
    assert {"a": b"1", "b": b"2"} == wrong.value.found
    assert b"before" == files.read("file")
    for bad in ({"": b""}, {"a\0b": b""}, {"x" * 5000: b""}):
        with pytest.raises(ValueError, match="a path"):
            files.write_many({"never": b"", **bad})
    assert not files.exists("never")
    with pytest.raises(TypeError):
        files.write_many({"text": ["no", "bytes"]})  # type: ignore[dict-item]  # that is the test


def test_many_files_have_the_bounds_of_one(box: leeward.Sandbox) -> None:
    """FIFOs and devices are refused and don't hang, links are followed, and the limit is for all files together."""
    box.shell("mkfifo fifo; ln -s target link; ln -s loop loop; ln -s /dev/zero zero")
    box.shell("mkdir many; cd many; touch kept; chmod 640 kept; ln -s ../target link")
    box.files.write_many({"many/1": b"", "many/2": b"", "many/link": b"1", "many/kept": b"2", b"many/1": b"3"})
    assert {"target": b"1", "many/1": b"3", "many/kept": b"2"} == box.files.read_many(["target", "many/1", "many/kept"])
    assert 0o640 == box.files.stat("many/kept").mode
    box.files.write_many({"link": b"12", "plain": b"3456"})
    assert ("target", b"12") == (box.files.stat("link", follow=False).target, box.files.read("target"))
    for call in (lambda: box.files.read_many(["fifo", "loop", "zero", "plain"]),
                 lambda: box.files.write_many({"fifo": b"", "loop": b"", "zero": b""})):
        with pytest.raises(leeward.FilesFailed) as wrong:
            call()
        assert {"fifo": errno.EINVAL, "loop": errno.ELOOP, "zero": errno.EINVAL} == {
            path: error.errno for path, error in wrong.value.errors.items()}  # type: ignore[attr-defined]  # an OSError
    with pytest.raises(OSError, match="limit") as large:
        box.files.read_many(["link", "plain"], limit=5)
    assert errno.EFBIG == large.value.errno
    box.files.write("large", bytes(CHUNK))
    with pytest.raises(OSError, match="limit"):
        box.files.read_many(["plain", "large"], limit=CHUNK)


@pytest.mark.parametrize("answer", [
    {"data": b""}, {"data": found_of(0, b"1") * 3}, {"data": found_of(0, b"1")[:-1]}, {"failed": [[2, 1, ""]]},
    {"failed": [[1, 1, ""], [0, 1, ""]]}])
def test_answers_about_other_files_are_refused(answer: dict[str, Any]) -> None:
    """A sandbox chooses what it answers: too few, too many, cut short, or about what wasn't asked."""
    many = (read_many(["a", "b"]) if "data" in answer else write_many({"a": b"", "b": b""}))
    op, _ = next(many)
    with pytest.raises(PeerError):
        many.send(check_answer(op, answer))


def test_lines_are_read_alone(files: leeward.Files) -> None:
    """By their numbers, also where they lie far behind, and where there are none."""
    files.write("lines", b"".join(b"%d\n" % number for number in range(1, 300_001)))
    assert b"1\n" == files.read("lines", lines=(1, 1))
    assert b"250000\n250001\n" == files.read("lines", lines=(250_000, 250_001))
    assert b"300000\n" == files.read("lines", lines=(300_000, 400_000))
    assert b"" == files.read("lines", lines=(300_001, 300_002))
    files.write("open", b"a\nb")
    assert (b"b", b"a\n", b"a\nb") == tuple(files.read("open", lines=pair) for pair in ((2, 2), (1, 1), (1, 9)))
    for wrong in ((0, 1), (3, 2)):
        with pytest.raises(ValueError, match="lines"):
            files.read("open", lines=wrong)


def test_a_file_is_edited_where_the_text_is_once(files: leeward.Files) -> None:
    """And else not touched, with how many times it is there."""
    files.write("f", "aaa b", mode=0o640)
    for old, found in (("x", 0), ("aa", 2), ("a", 3)):
        with pytest.raises(leeward.EditError) as wrong:
            files.edit("f", old, "y")
        assert (found, "f") == (wrong.value.found, wrong.value.path)
        assert isinstance(wrong.value, ValueError)
    assert b"aaa b" == files.read("f")
    files.edit("f", "a b", b"\xff")
    assert (b"aa\xff", 0o640) == (files.read("f"), files.stat("f").mode)


def test_errors_are_pythons_own(files: leeward.Files) -> None:
    """With the path."""
    files.write("file", b"")
    files.mkdir("full/folder")
    for call, error in (
            (lambda: files.read("no"), FileNotFoundError), (lambda: files.read("full"), IsADirectoryError),
            (lambda: files.list("file"), NotADirectoryError), (lambda: files.write("file/x", b""), NotADirectoryError),
            (lambda: files.write("full", b""), IsADirectoryError), (lambda: files.mkdir("full"), FileExistsError),
            (lambda: files.write("file", b"", exclusive=True), FileExistsError),
            (lambda: files.stat("no"), FileNotFoundError), (lambda: files.remove("full"), OSError),
            (lambda: files.move("no", "x/y"), FileNotFoundError),
            (lambda: files.edit("no", "a", "b"), FileNotFoundError),
            (lambda: files.copy("full", "full/folder/in"), OSError)):
        with pytest.raises(error) as raised:
            call()
        assert raised.value.filename in ("no", "full", "file", "file/x")
    assert not files.exists("x")
    for wrong in ("", "a\0b", "x" * 5000):
        with pytest.raises(ValueError, match="a path"):
            files.read(wrong)


def test_names_are_made_moved_copied_and_removed(files: leeward.Files) -> None:
    """With what is in folders."""
    files.write("a/b/c", b"1", mode=0o600)
    files.copy("a", "copy")
    files.move("a", "to/there")
    assert (b"1", b"1", False) == (files.read("copy/b/c"), files.read("to/there/b/c"), files.exists("a"))
    assert 0o600 == files.stat("copy/b/c").mode
    assert files.stat("copy/b/c").mtime_ns == files.stat("to/there/b/c").mtime_ns
    files.mkdir("copy", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        files.mkdir("n/o", parents=False)
    files.remove("copy", recursive=True)
    files.remove("copy", missing_ok=True)
    assert ["to"] == [info.name for info in files.list()]
    assert files.list()[0].is_folder


def test_a_folder_of_any_size_is_listed(box: leeward.Sandbox) -> None:
    """In pages, in order, each name once."""
    names = sorted(f"{number:05}" for number in range(2 * MAX_ROWS + 3))
    box.shell(f"seq -f %05g 0 {len(names) - 1} | (mkdir d && cd d && xargs touch)", timeout=120)

    assert names == [info.name for info in box.files.list("d")]


def test_names_and_lines_are_found(files: leeward.Files) -> None:
    """As many as were asked for."""
    for name in ("a.py", "b/c.py", "b/d/e.py", "b/.hidden.py", "b/f.txt"):
        files.write(name, f"import os\n# {name}: TODO\n")
    files.write("binary", b"\0TODO")
    assert ["a.py", "b/c.py", "b/d/e.py"] == files.glob("**/*.py")
    assert (["b/c.py"], ["b"], ["b/.hidden.py"]) == tuple(map(files.glob, ("b/?.py", "[b]", "*/.h*")))
    assert ["b/c.py", "b/f.txt"] == files.glob("*.*", path="b")
    some = files.glob("**", limit=2)
    assert (2, True) == (len(some), some.more)
    found = files.grep(r"\w\.py: todo$", ignore_case=True)
    assert {("a.py", 2, "# a.py: TODO"), ("b/c.py", 2, "# b/c.py: TODO")} <= {(m.path, m.line, m.text) for m in found}
    assert (4, False) == (len(found), found.more)
    assert ["b/f.txt"] == [match.path for match in files.grep("TODO", path="b", include="*.txt")]
    assert [] == files.grep("t.d.", literal=True, ignore_case=True)
    few = files.grep("import", limit=3)
    assert (3, True) == (len(few), few.more)
    with pytest.raises(ValueError, match="no regular expression"):
        files.grep("(")


def test_a_pattern_that_takes_for_ever_is_ended(files: leeward.Files) -> None:
    """And what others have open stays so."""
    def halves() -> Iterator[bytes]:
        yield b"a" * 40
        with pytest.raises(TimeoutError):
            files.grep("(a+)+$", path="evil", timeout=0.2)
        yield b"b"

    files.write("evil", b"a" * 40 + b"!")
    files.write("meanwhile", halves())

    assert b"a" * 40 + b"b" == files.read("meanwhile")


def test_changes_are_seen(files: leeward.Files) -> None:
    """Each of them once."""
    files.write("d/old", b"1")
    files.write("d/gone", b"1")
    changes = files.watch("d", interval=0.01)
    files.write("d/old", b"22")
    files.write("d/new", b"")
    files.remove("d/gone")
    assert {("modified", "old"), ("created", "new"), ("deleted", "gone")} == {
        (change.kind, change.path) for change in (next(changes), next(changes), next(changes))}
    assert [] == list(files.watch("d", interval=0.01, timeout=0.02))
    with pytest.raises(FileNotFoundError):
        files.watch("no")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with all that one can have."""
    top = tmp_path / "tree"
    (top / "sub/empty").mkdir(parents=True)
    (top / "sub/file").write_bytes(os.urandom(CHUNK + 1))
    (top / "sub/file").chmod(0o750)
    (top / "line\nbreak").write_bytes(b"1")
    with open(os.fsencode(top) + b"/\xff", "wb"):
        pass
    (top / "sub/link").symlink_to("../sub/file")
    (top / "out").symlink_to("/etc/passwd")
    os.mkfifo(top / "fifo")
    os.utime(top / "sub/file", ns=(1, 1_234_567_891_000_000_001))
    (top / "sub").chmod(0o700)
    os.utime(top / "sub", ns=(1, 1_000_000_000))
    return top


def same(one: Path, other: Path) -> None:
    for name in ("sub/file", "line\nbreak", os.fsdecode(b"\xff"), "sub", "sub/empty"):
        here, there = (one / name).lstat(), (other / name).lstat()
        assert (here.st_mode, here.st_mtime_ns) == (there.st_mode, there.st_mtime_ns), name
    assert (one / "sub/file").read_bytes() == (other / "sub/file").read_bytes()
    assert "../sub/file" == os.readlink(other / "sub/link")


def test_a_folder_goes_in_and_comes_out(files: leeward.Files, tree: Path, tmp_path: Path) -> None:
    """With modes and times, and without what could lead out."""
    sent = files.upload(tree, "in/tree")
    assert (3, 3, 2, [(f"{tree}/fifo", "special")]) == (sent.files, sent.folders, sent.links, sent.left_out)
    got = files.download("in/tree", tmp_path / "back")
    assert (3, 3, 1, CHUNK + 2) == (got.files, got.folders, got.links, got.size)
    assert [("in/tree/out", "link")] == got.left_out
    same(tree, tmp_path / "back")
    assert not list((tmp_path / "back").rglob("*.tmp"))
    one = files.download("in/tree/sub/file", tmp_path / "one")
    assert (1, (tree / "sub/file").read_bytes()) == (one.files, (tmp_path / "one").read_bytes())
    with pytest.raises(IsADirectoryError):
        files.download("in/tree/sub/file", tmp_path)
    with pytest.raises(OSError, match="the limit is"):
        files.download("in/tree", tmp_path / "small", limit=10)


@pytest.mark.parametrize("what", ["file", "folder", "archive"])
def test_c438_cannot_lead_a_copy_elsewhere_by_another_users_link(files: leeward.Files, tmp_path: Path, what: str,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder in which all may make links."""
    (tmp_path / "home").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "out").symlink_to("../home")
    files.write("tree/file", b"x")

    def copied(to: Path) -> None:
        if what == "archive":
            files.export_tar("tree", to / "made")
        else:
            files.download("tree" if what == "folder" else "tree/file", to / "made")
    copied(shared / "out")  # control: one's own link
    assert ["made"] == os.listdir(tmp_path / "home")
    (tmp_path / "home/made").rename(tmp_path / "taken")
    _give_away(shared / "out", monkeypatch)
    for to in (shared / "out", shared / "out/new"):
        with pytest.raises(leeward.RequestRejected, match="is a link of user"):
            copied(to)
    assert [] == os.listdir(tmp_path / "home")


def _give_away(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make *link* another user's, or this process one of another user."""
    if os.geteuid():
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        os.lchown(link, 65534, 65534)


@pytest.mark.parametrize("name", ["file", "folder", "x.tar"])
def test_c439_cannot_fill_the_hosts_disk_with_holes(files: leeward.Files, tmp_path: Path, name: str) -> None:
    size = 64 << 20
    files.write("tree/sparse", b"begin" + bytes(size - 5))
    (tmp_path / "full").write_bytes(files.read("tree/sparse"))
    assert (tmp_path / "full").stat().st_blocks * 512 >= size  # control: what another program would write
    if name == "x.tar":
        files.export_tar("tree", tmp_path / name)
        with tarfile.open(tmp_path / name) as archive:
            content = archive.extractfile("sparse")
            assert content is not None
            assert b"begin" + bytes(size - 5) == content.read()
    else:
        files.download("tree/sparse" if name == "file" else "tree", tmp_path / name)
        there = tmp_path / name if name == "file" else tmp_path / name / "sparse"
        assert b"begin" + bytes(size - 5) == there.read_bytes()
    taken = sum(path.stat().st_blocks * 512 for path in [tmp_path / name, *(tmp_path / name).glob("*")])
    assert taken <= 1 << 20


def test_archives_go_out_and_in(files: leeward.Files, tree: Path, tmp_path: Path) -> None:
    """Plain and compressed, and as any tar reads them."""
    files.upload(tree, "tree")
    for name in ("x.tar", "x.tgz", "x.tar.xz"):
        done = files.export_tar("tree", tmp_path / name)
        assert (3, [("tree/out", "link")]) == (done.files, done.left_out)
        back = files.import_tar(tmp_path / name, f"from-{name}")
        assert (3, 1, []) == (back.files, back.links, back.left_out)
        files.download(f"from-{name}", tmp_path / f"unpacked-{name}")
        same(tree, tmp_path / f"unpacked-{name}")
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert {"sub", "sub/file", "sub/link", "sub/empty", "line\nbreak", "\udcff"} == set(archive.getnames())
    with pytest.raises(ValueError, match="archive"):
        files.import_tar(io.BytesIO(b"no archive" * 1000))
    assert ["x.tar", "x.tar.xz", "x.tgz"] == sorted(path.name for path in tmp_path.glob("x.*"))


def test_names_of_an_archive_stay_below(files: leeward.Files) -> None:
    """Those that lead out are left out and told."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("../up", "/abs", "a/../../b", "good"):
            archive.addfile(tarfile.TarInfo(name))
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "../up"
        archive.addfile(hard)
    data.seek(0)
    done = files.import_tar(data, "in/to")

    assert [("../up", "name"), ("a/../../b", "name"), ("hard", "link")] == done.left_out
    assert ["abs", "good"] == [info.name for info in files.list("in/to")]
    assert ["to"] == [info.name for info in files.list("in")]


@pytest.mark.parametrize(("target", "depth", "stays"), [
    (b"a", 0, True), (b"a/b", 0, True), (b".", 0, True), (b"../a", 1, True), (b"../../a", 2, True),
    (b"./../a", 1, True), (b"/a", 5, False), (b"../a", 0, False), (b"../../a", 1, False), (b"a/..", 5, False),
    (b"../a/../b", 5, False), (b"", 1, False), (b"a\0b", 1, False), (b"..", 0, False), (b"..", 1, True),
    (b"...", 0, True),
])
def test_a_link_that_stays_below(target: bytes, depth: int, stays: bool) -> None:
    assert stays is stays_below(target, depth)


def test_content_comes_in_pieces() -> None:
    """Of at most a chunk, and at least one."""
    assert [b""] == list(chunks_in(b""))
    assert [CHUNK, 1] == list(map(len, chunks_in(bytes(CHUNK + 1))))
    assert [b"ab"] == list(chunks_in(memoryview(b"ab")))
    with pytest.raises(TypeError):
        list(chunks_in(["text"]))  # type: ignore[list-item]


def test_asyncio_has_the_same_calls(stand: Stand, tree: Path, tmp_path: Path) -> None:
    """Side by side."""
    async def use() -> None:
        async with leeward.AsyncSandbox(socket=stand.socket) as box:
            files = box.files
            await asyncio.gather(*(files.write(f"d/{number}", bytes(number)) for number in range(20)))
            assert 20 == len(await files.list("d"))
            assert bytes(7) == await files.read("d/7")
            with pytest.raises(FileNotFoundError):
                await files.read("no")
            await files.write("d/7", iter([b"one ", b"two"]))
            await files.edit("d/7", "two", "three")
            assert 12 == await files.append("d/7", b"!!!")
            assert (await files.stat("d/7")).is_file
            assert ["d/7"] == [match.path for match in await files.grep("three!")]
            assert ["d/19"] == await files.glob("*/19")
            await files.copy("d", "e")
            await files.move("e", "f")
            await files.remove("f", recursive=True)
            await files.mkdir("g")
            assert not await files.exists("f")
            await files.upload(tree, "tree")
            await files.download("tree", tmp_path / "back")
            same(tree, tmp_path / "back")
            archive = io.BytesIO()
            await files.export_tar("tree", archive)
            archive.seek(0)
            assert 3 == (await files.import_tar(archive, "again")).files
            changes = files.watch("g", interval=0.01)
            later = asyncio.get_running_loop().create_task(anext(changes))
            while not later.done():
                await files.append("g/grows", b"x")
            assert "grows" == later.result().path

    asyncio.run(use())


def test_a_process_that_is_killed_is_made_again(stand: Stand, box: leeward.Sandbox) -> None:
    """What was open then is told as stale."""
    def killed() -> Iterator[bytes]:
        yield bytes(CHUNK)
        yield bytes(CHUNK)
        made = stand.pool.runners[-1].calls_made[0]
        stand.do(made.kill)
        while made in stand.pool.runners[-1].calls_made:
            stand.do(lambda: None)
        yield b"the rest"

    with pytest.raises(OSError, match="closed") as stale:
        box.files.write("f", killed())
    assert 116 == stale.value.errno
    assert not box.files.exists("f")


def test_the_end_of_the_sandbox_is_raised(stand: Stand) -> None:
    """To whoever waits, and then."""
    box = leeward.Sandbox(socket=stand.socket)
    box.files.write("evil", b"a" * 40 + b"!")
    told: list[BaseException] = []

    def search() -> None:
        try:
            box.files.grep("(a+)+$", timeout=100)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    sandbox = stand.do(lambda: stand.server.desk._registry.all()[-1].sandbox.sandbox)
    while not sandbox.files.calls:
        stand.do(lambda: None)
    box.kill()
    thread.join(30)
    assert ["SandboxOver"] == [type(error).__name__ for error in told]
    with pytest.raises(leeward.SandboxOver):
        box.files.exists("evil")
    box.close()
