"""Orders for files: what each becomes, and what a person is told that a diff doesn't show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.carrying import orders
from leeward.apps.approvals.carrying.orders import (
    NOTHING,
    FileOrder,
    FileState,
    change_order,
    delete_order,
    digest,
    edit_order,
    file_request,
    is_hidden,
    remarks,
    unpacked,
    write_order,
)
from leeward.apps.approvals.queue.subjects import ProjectPath
from leeward.client.changes import FolderChange
from leeward.errors import BadRequest, EditError


def file(content: bytes, mode: int = 0o644) -> FileState:
    return FileState("file", mode, digest(content))


@given(st.text(min_size=1), st.binary(), st.text())
def test_an_order_is_kept_as_it_is(path: str, content: bytes, link: str) -> None:
    for order in (write_order(path, NOTHING, content), FileOrder(path, file(content), FileState("link", link=link)),
                  FileOrder("\udcff", file(b""), NOTHING)):
        assert order == unpacked(order.packed())


def test_a_file_keeps_its_mode_and_gets_no_set_id_bit() -> None:
    assert 0o755 == write_order("a", file(b"", 0o755), b"x").goal.mode
    assert 0o644 == write_order("a", NOTHING, b"x").goal.mode
    assert 0o755 == write_order("a", NOTHING, b"x", 0o6755).goal.mode
    assert 0o755 == change_order(FolderChange("a", "created", "file", 0o4755, 1, digest(b"x")), NOTHING, b"x").goal.mode


@pytest.mark.parametrize(("before", "old", "new", "after"), [
    (b"a.b.c", b".b", b"-", b"a-.c"), (b"a*b", b"*", b"\\1", b"a\\1b"), (b"[x]\r\n", b"[x]", b"$1", b"$1\r\n"),
    (b"\xff\x00y", b"\x00", b"", b"\xffy")])
def test_an_edit_takes_its_text_as_it_is(before: bytes, old: bytes, new: bytes, after: bytes) -> None:
    assert after == edit_order("a", file(before), before, old, new).content


@pytest.mark.parametrize(("old", "found"), [(b"x", 0), (b"a", 3), (b"aa", 2), (b"A", 0)])
def test_an_edit_is_of_one_place(old: bytes, found: int) -> None:
    with pytest.raises(EditError) as refused:
        edit_order("a", file(b"aaa"), b"aaa", old, b"")
    assert found == refused.value.found


def test_an_order_that_changes_nothing_is_refused() -> None:
    for call in (lambda: edit_order("a", file(b"x"), b"y", b"y", b""),
                 lambda: edit_order("a", file(b"x"), b"x", b"", b""),
                 lambda: edit_order("a", NOTHING, b"", b"x", b""), lambda: delete_order("a", NOTHING),
                 lambda: write_order("a", FileState("folder", 0o755), b""),
                 lambda: write_order("a", FileState("link", link="b"), b""),
                 lambda: write_order("a", NOTHING, b"x" * (orders.MOST_CONTENT + 1)),
                 lambda: change_order(FolderChange("a", "created", "special"), NOTHING),
                 lambda: change_order(FolderChange("a", "created", "link", link="../x"), NOTHING),
                 lambda: change_order(FolderChange("a", "created", "link", link="/etc"), NOTHING),
                 lambda: change_order(FolderChange("a", "created", "file", 0o644, 1, digest(b"y")), NOTHING, b"x"),
                 lambda: change_order(FolderChange("a", "created", "file", 0o644, 1, None), NOTHING, b"x")):
        with pytest.raises(BadRequest):
            call()


TEXT = b"one\ntwo\n"
HIDDEN: tuple[tuple[FileOrder, bytes, str], ...] = (
    (FileOrder("run.sh", file(TEXT), file(TEXT, 0o755), TEXT), TEXT, "it can be run: rwxr-xr-x"),
    (FileOrder("run.sh", file(TEXT, 0o755), file(TEXT), TEXT), TEXT, "it can't be run any more"),
    (FileOrder("key", file(TEXT, 0o600), file(TEXT), TEXT), TEXT, "the mode rw------- becomes rw-r--r--"),
    (FileOrder("a", file(TEXT), FileState("link", link="b")), TEXT, "a file becomes a link"),
    (FileOrder("a", NOTHING, FileState("link", link="b")), b"", "it is a link"),
    (FileOrder("a", FileState("folder", 0o755), file(TEXT), TEXT), b"", "a folder becomes a file"),
    (write_order(".git/hooks/pre-commit", NOTHING, TEXT), b"", "repository's own"),
    (write_order("sub/.GIT/config", NOTHING, TEXT), b"", "repository's own"),
    (write_order(".gitmodules", NOTHING, TEXT), b"", "obeyed on the host by git"),
    (write_order("a\nb", NOTHING, TEXT), b"", "the name has characters"),
    (write_order("a\u202etxt.exe", NOTHING, TEXT), b"", "the name has characters"),
    (write_order("a\u00a0b", NOTHING, TEXT), b"", "the name has characters"),
    (write_order("a\udcff", NOTHING, TEXT), b"", "the name has characters"),
    (write_order("a", file(TEXT), b"one\r\ntwo\r\n"), TEXT, "only the ends of lines differ"),
    (write_order("a", file(TEXT), "on\u200be\ntwo\n".encode()), TEXT, "1 character more"),
    (write_order("a", file(TEXT), "one\u2066\u202e\ntwo\n".encode()), TEXT, "2 characters more"),
    (write_order("a", file(TEXT), b"one\x1b[8mx\ntwo\n"), TEXT, "1 character more"),
    (write_order("a", file(TEXT), "one\U000e0041\n".encode()), TEXT, "1 character more"),
    (write_order("a", file(TEXT), "one\ufe01\n".encode()), TEXT, "1 character more"),
    (write_order("a", file(TEXT), "p\u0430ssword = 1\n".encode()), TEXT, "letters of another alphabet"),
    (write_order("a", file(TEXT), "\uff50rint(1)\n".encode()), TEXT, "letters of another alphabet"),
    (write_order("p\u0430ypal.py", NOTHING, TEXT), b"", "the name has letters of another alphabet"),
    (write_order("a", file(TEXT), b"x = 1;" + b" " * 60 + b"evil()\n"), TEXT, "goes on behind 60 blanks"),
    (write_order("a", file(TEXT), b"\t" * 15 + b"evil()\n"), TEXT, "goes on behind 60 blanks"),
)


@pytest.mark.parametrize(("order", "before", "said"), HIDDEN, ids=range(len(HIDDEN)))
def test_c300_c511_cannot_hide_a_change(order: FileOrder, before: bytes, said: str) -> None:
    """In a mode bit, a link, a file of git's, a name, the ends of lines or characters that aren't seen."""
    assert any(said in each for each in remarks(order, before)), remarks(order, before)
    # The control: an ordinary change has no remark.
    assert [] == remarks(write_order("src/caf\u00e9.py", file(TEXT), "one\n\tdrei \u00fc\n".encode()), TEXT)
    assert [] == remarks(write_order("a.py", file(TEXT), "\u0394x = 3  # \u043f\u0440\u0438\u0432\n".encode()), TEXT)
    assert [] == remarks(write_order("a.png", NOTHING, b"\x89PNG\r\n\x1a\n\0\0\x01"))


@pytest.mark.parametrize(("content", "said"), [
    (b"x" * 1001 + b"\n", "a line has 1,001 characters"), (b"x\n" * 20_001, "it is large, 40,002 bytes")])
def test_c511_what_the_view_cuts_is_a_remark_of_a_request_alone(content: bytes, said: str) -> None:
    """Live sync, which asks about what has a remark, writes such files."""
    order = write_order("a", NOTHING, content)
    assert [] == remarks(order)
    assert any(each.startswith(said) for each in file_request(order).metadata["remarks"])
    assert [] == file_request(write_order("a", NOTHING, b"\0" + content)).metadata["remarks"]


@given(st.characters())
def test_printable_letters_are_not_hidden(letter: str) -> None:
    if letter.isprintable() and letter.isascii():
        assert not is_hidden(letter)
    if not letter.isprintable() and letter not in "\t\n\r" and not 0xd800 <= ord(letter) <= 0xdfff:
        assert is_hidden(letter)


@pytest.mark.parametrize(("path", "goal", "content", "asks"), [
    ("a.py", file(b"x"), b"x", False),
    ("dir/b", FileState("folder", 0o755), b"", False),
    ("a.sh", file(b"x", 0o755), b"x", True),
    ("link", FileState("link", link="a.py"), b"", True),
    (".husky/pre-commit", file(b"x"), b"x", True),
    ("sub/.ENVRC", file(b"x"), b"x", True),
    (".mcp.json", file(b"x"), b"x", True),
    (".claude/settings.json", file(b"x"), b"x", True),
    (".exrc", file(b"x"), b"x", True),
    ("lefthook.yml", file(b"x"), b"x", True),
    (".gitattributes", file(b"x"), b"x", True),
    ("packages/app/.vscode/tasks.json", file(b"x"), b"x", True),
    ("deep/er/.unheard-of", file(b"x"), b"x", True),
    (".unheard-of/x", FileState("folder", 0o755), b"", True),
    ("sub/Makefile", file(b"x"), b"x", True),
    ("build.rs", file(b"x"), b"x", True),
    ("eslint.config.mjs", file(b"x"), b"x", True),
    ("conftest.py", file(b"x"), b"x", True),
    ("package.json", file(b"x"), b"x", True),
    (".venv/bin/python", file(b"x"), b"x", True),
    ("bare/HEAD", file(b"x"), b"x", True),
    (".g\u200cit/config", file(b"x"), b"x", True),
    ("a\u202eb", file(b"x"), b"x", True),
    ("a.py", file("x\u200b".encode()), "x\u200b".encode(), True),
    ("a.py", NOTHING, b"", False),
])
def test_changes_that_need_a_person_are_asked(path: str, goal: FileState, content: bytes, asks: bool) -> None:
    base = NOTHING if goal != NOTHING else file(TEXT)
    assert asks == bool(remarks(FileOrder(path, base, goal, content)))


def test_a_file_of_a_repository_with_any_name_has_a_remark() -> None:
    order = write_order("vendor/x/config", NOTHING, TEXT)
    assert [] == remarks(order)
    assert ["it is a file of a repository's own, which git or another such program may run or obey"] == remarks(
        order, in_repository=True)
    subject = file_request(order, in_repository=True).subject
    assert isinstance(subject, ProjectPath)
    assert subject.in_repository
