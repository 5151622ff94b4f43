"""The journal of an apply: what is read is what was written, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leeward.client.apply_journal import begun, interrupted, state_folder
from leeward.client.changes import FolderChange

ROW = {"path": "/p\udcff", "device": 1, "inode": 2, "since": 3}
CHANGES = [FolderChange("a\udcff", "modified", "file", 0o644, 5, "00" * 32), FolderChange("l", "created", "link", link="to"),
           FolderChange("gone", "deleted", "folder")]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def written(environ: dict[str, str]) -> None:
    journal = begun(environ)
    os.write(journal.fd, b"before")
    start = os.fstat(journal.fd).st_size
    os.write(journal.fd, b"a\0b\0c")
    journal.add("a\udcff", start)
    assert [] == list(interrupted(environ))  # its program is at work
    journal.complete(ROW, CHANGES, ["l"])
    assert [] == list(interrupted(environ))
    journal.close()


def test_a_complete_journal_is_read_as_it_was_written(environ: dict[str, str], tmp_path: Path) -> None:
    written(environ)
    [found] = [(one.row, one.changes, set(one.retyped), one.token) for one in interrupted(environ)]
    assert (ROW, CHANGES, {"l"}) == found[:3]
    for journal in interrupted(environ):
        assert found[3] == journal.token
        with open(tmp_path / "content", "wb") as file:
            journal.content("a\udcff", file.fileno())
        journal.remove()
    assert b"a\0b\0c" == (tmp_path / "content").read_bytes()
    assert [] == list(interrupted(environ))


def test_a_journal_that_is_cut_or_spoiled_anywhere_is_removed(environ: dict[str, str]) -> None:
    """And keeps no other from being finished; nor does what is no file."""
    written(environ)
    [name] = os.listdir(state_folder(environ))
    path = Path(state_folder(environ), name)
    whole = path.read_bytes()
    first = whole.index(b"a\0b\0c") + 5  # what is before is content, which has no form
    spoiled = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1:] for at in range(first, len(whole))]
    for content in (*(whole[:size] for size in range(len(whole))), *spoiled):
        path.write_bytes(content)
        assert [] == list(interrupted(environ)), content
        assert not path.exists()
    os.mkfifo(path)
    assert [] == list(interrupted(environ))


def test_without_a_folder_of_its_own_a_journal_has_no_name(environ: dict[str, str]) -> None:
    os.makedirs(state_folder(environ))
    os.chmod(state_folder(environ), 0o755)
    written(environ)
    assert [] == os.listdir(state_folder(environ))
    assert [] == list(interrupted({"XDG_STATE_HOME": "/proc/nowhere"}))
