"""What of a view is found on the host, and the order of the steps that show it."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest

from leeward._native import mounts as native
from leeward._native.steps import Call, Gives, Step, returns
from leeward.errors import Bug, Unsupported
from leeward.isolation.template import Template, sources
from leeward.spec.sandbox import Bind, Scratch, Symlink, Text, View

MARK = returns(Call.GETPID)


def view(*binds: Bind, texts: tuple[Text, ...] = (), links: tuple[Symlink, ...] = ()) -> View:
    return View(binds, texts, links, Scratch(("/workspace", "/dev/shm")))


def steps(*binds: Bind, setattr: bool = True) -> list[Step]:
    with mock.patch.object(native, "sets_attributes", return_value=setattr):
        return list(Template(view(*binds), [], [MARK], [MARK]).table.steps)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    return tmp_path


@pytest.mark.parametrize(("name", "file", "have"), [
    ("missing", False, "ENOENT"),
    ("file/below", False, "ENOTDIR"),
    ("file", False, "a file"),
    ("folder", True, "a folder"),
    ("link", False, "a link to folder"),
    ("link", True, "a link to folder"),
])
def test_a_required_source_must_be_of_its_kind(host: Path, name: str, file: bool, have: str) -> None:
    with pytest.raises(Unsupported, match=have):
        list(sources(view(Bind(str(host / name), "/shown", file=file))))


@pytest.mark.parametrize(("name", "file"), [
    ("missing", False), ("file/below", True), ("file", False), ("folder", True)])
def test_a_missing_optional_source_is_left_out(host: Path, name: str, file: bool) -> None:
    assert [] == list(sources(view(Bind(str(host / name), "/shown", optional=True, file=file))))


def test_a_link_that_may_be_missing_is_shown_and_never_opened(host: Path) -> None:
    bind = Bind(str(host / "link"), "/etc/shown", optional=True)

    assert ["folder"] == [source.link for source in sources(view(bind))]
    made = steps(bind)
    assert not [step for step in made if step.call is Call.OPEN_TREE]
    assert ["folder"] == [step.arguments[0] for step in made if step.call is Call.SYMLINKAT]


def test_a_device_is_a_file(host: Path) -> None:
    assert 1 == len(list(sources(view(Bind(str(host / "file"), "/dev/null", device=True)))))
    with pytest.raises(Unsupported, match="need a file"):
        list(sources(view(Bind(str(host / "folder"), "/dev/null", device=True))))


@pytest.mark.parametrize("optional", [False, True])
def test_no_source_is_shown_without_its_attributes(host: Path, optional: bool) -> None:
    """
    The kernel may refuse to open an optional source. An opened one must get its attributes; where it did not, there
    is no descriptor, and no other refusal will do.
    """
    made = steps(Bind(str(host / "folder"), "/shown", optional=optional),
                 Bind(str(host / "file"), "/file", optional=optional, file=True))
    by_call = {call: [step for step in made if step.call is call] for call in Call}
    opened = by_call[Call.OPEN_TREE]
    cells = [step.into for step in opened]

    assert [Gives.ANYTHING if optional else Gives.SOMETHING] * 2 == [step.gives for step in opened]
    assert cells == [step.arguments[0] for step in by_call[Call.MOUNT_SETATTR]]
    allowed = (0, -errno.EBADF) if optional else (0,)
    for step in by_call[Call.MOUNT_SETATTR] + [step for step in by_call[Call.MOVE_MOUNT] if step.arguments[0] in cells]:
        assert (allowed, Gives.NOTHING) == (step.answers, step.gives)
    mark = made.index(MARK)
    assert all(made.index(step) < mark for step in by_call[Call.MOUNT_SETATTR])
    assert all(made.index(step) > mark for step in by_call[Call.MOVE_MOUNT])


def test_a_file_is_asked_whether_it_has_become_a_link(host: Path) -> None:
    """The kernel mounts a folder on nothing but a folder; a link it mounts on a file."""
    made = steps(Bind(str(host / "file"), "/file", file=True), Bind(str(host / "folder"), "/shown"))
    asked = [step for step in made if step.call is Call.READLINKAT]
    assert [((-errno.EINVAL, -errno.ENOENT), Gives.NOTHING)] == [(step.answers, step.gives) for step in asked]


def test_without_mount_setattr_no_step_sets_them(host: Path) -> None:
    """They are set one by one, between two parts of the table."""
    made = steps(Bind(str(host / "folder"), "/shown"), setattr=False)
    assert not [step for step in made if step.call is Call.MOUNT_SETATTR]


def test_no_link_is_followed_on_the_way_to_a_place(host: Path) -> None:
    """
    What is opened isn't followed. A path leads through folders alone that steps before have made, as new ones, and on which
    nothing was mounted since; below a bind or a link each folder is opened by its name in the one above it.
    """
    texts = Text("/a/text", b"x"), Text("/a/b/c/d/text", b"x"), Text("/a/b/text", b"x"), Text("/to/text/below", b"x")
    binds = Bind(str(host / "folder"), "/a/b/c"), Bind(str(host / "link"), "/to", optional=True)
    with mock.patch.object(native, "sets_attributes", return_value=True):
        made = Template(view(*binds, texts=texts, links=(Symlink("/a/link", "/b"),))).table.steps
    folders, alone = set[str](), 0
    at = {Call.OPENAT: 1, Call.MKDIRAT: 1, Call.SYMLINKAT: 2, Call.MOVE_MOUNT: 3}
    for step in made:
        path = step.arguments[at[step.call]] if step.call in at else "/tmp"
        if path in ("./proc", "/tmp"):
            continue
        assert isinstance(path, str)
        above = path.rpartition("/")[0]
        assert not above or above in folders
        if step.call is Call.OPENAT:
            assert isinstance(step.arguments[2], int)
            assert step.arguments[2] & 0o400000  # O_NOFOLLOW
        elif step.call is Call.MKDIRAT and step.answers == (0,):
            assert native.AT_FDCWD == step.arguments[0]
            folders.add(path)
        elif step.call is Call.MKDIRAT:
            assert path not in folders
            alone += 1
        elif step.call is Call.MOVE_MOUNT:
            folders = {each for each in folders if not f"{each}/".startswith(f"{path}/")}
    assert {"a", "a/b", "proc"} <= folders
    assert 4 == alone  # c and d, and to and text


def test_a_text_is_a_program_if_it_says_so() -> None:
    """By the mode that it is made with, of which no bit allows writing."""
    texts = (Text("/data", b""), Text("/program", b"", program=True))
    with mock.patch.object(native, "sets_attributes", return_value=True):
        made = Template(view(texts=texts)).table.steps
    modes = {step.arguments[1]: step.arguments[3] for step in made
             if step.call is Call.OPENAT and step.arguments[1] in ("data", "program")}
    assert {"data": 0o444, "program": 0o555} == modes


@pytest.mark.parametrize("target", ["/", "", "/a/../b", "/a/./b", "/a//b", "/a/.", "/a/..", "/a/"])
@pytest.mark.parametrize("kind", ["folder", "file", "text", "link"])
def test_a_place_is_a_path_from_the_root(host: Path, target: str, kind: str) -> None:
    asked = {
        "folder": view(Bind(str(host / "folder"), target)),
        "file": view(Bind(str(host / "file"), target, file=True)),
        "text": view(texts=(Text(target, b""),)),
        "link": view(links=(Symlink(target, "/b"),)),
    }[kind]
    with pytest.raises(Bug, match="a mount on"):
        Template(asked)


def test_the_root_comes_last_and_is_read_only(host: Path) -> None:
    made = steps(Bind(str(host / "folder"), "/shown"))
    calls = [step.call for step in made]
    end = len(calls) - 1
    assert calls[end - 5:] == [Call.PIVOT_ROOT, Call.UMOUNT2, Call.MOUNT, Call.CHDIR, Call.MOUNT, Call.GETPID]
    flags = made[end - 1].arguments[3]
    assert isinstance(flags, int)
    assert flags & native.MountAttr.RDONLY
