"""Rounds of live sync over a real project, with a sandbox of this test's own making: what happens between two looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from leeward.apps.approvals.carrying.apply import Project
from leeward.apps.approvals.carrying.orders import FileState, digest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.sync.live_sync import LiveSync, begin_sync, names_below, sign_at
from leeward.apps.approvals.sync.syncing import is_skipped
from leeward.apps.audit.journal import Journal
from leeward.client.changes import UpperRow
from leeward.errors import BadRequest, Stale


class FakeFiles:
    """Files of a sandbox: a map."""

    def __init__(self, box: FakeBox) -> None:
        self.box = box

    def read(self, path: str, limit: int) -> bytes:
        found = self.box.seen(path.removeprefix("/workspace/"))
        if found is None:
            raise FileNotFoundError(path)
        return found

    def write(self, path: str, data: bytes, mode: int, exclusive: bool = False) -> None:
        self.box.upper[path.removeprefix("/workspace/")] = data

    def exists(self, path: str) -> bool:
        return self.box.seen(path.removeprefix("/workspace/")) is not None

    def remove(self, path: str, missing_ok: bool = False) -> None:
        self.box.upper[path.removeprefix("/workspace/")] = None

    def list(self, path: str) -> list[str]:
        return ["a"]

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        pass


class FakeBox:
    """A sandbox whose upper folder is `upper`: content by path, None for what is gone."""

    def __init__(self, folder: Path) -> None:
        self.id, self.folder, self.upper = "box", folder, dict[str, bytes | None]()
        self.files = FakeFiles(self)
        self.old = dict[str, bytes]()  # what it has seen, and goes on to see: a kept dentry
        self.at_content: Callable[[], None] = lambda: None

    def seen(self, path: str) -> bytes | None:
        if path in self.upper:
            return self.upper[path]
        if path in self.old:
            return self.old[path]
        return (self.folder / path).read_bytes() if (self.folder / path).is_file() else None


class FakeOverlay:
    def __init__(self, box: FakeBox, target: str) -> None:
        self.box, self.target = box, "/workspace"

    def is_over(self, fd: int) -> bool:
        about, own = os.fstat(fd), self.box.folder.stat()
        return (about.st_dev, about.st_ino) == (own.st_dev, own.st_ino)

    def rows(self) -> list[UpperRow]:
        return [UpperRow(path.encode(), "gone" if data is None else "file", 0o644, len(data or b""), 512, 0,
                         None if data is None else bytes.fromhex(digest(data)), b"", False)
                for path, data in self.box.upper.items()]

    def content(self, path: str, most: int) -> bytes:
        self.box.at_content()
        found = self.box.upper[path]
        assert found is not None
        return found


class Stand:
    """One sync, whose rounds the test makes."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.project, self.box, self.host = Project(str(project)), FakeBox(project), project
        self.queue, self.journal = ApprovalQueue(str(folder / "state")), Journal(str(folder / "audit"))
        self.sync: LiveSync = begin_sync(cast("Any", self.box), self.project, self.queue, self.journal, "",
                                         lambda path: path == "hidden")

    def round(self, times: int = 2) -> None:
        for _ in range(times):
            self.sync._round(False)

    def kinds(self) -> dict[str, str]:
        return {note["path"]: note["kind"] for note in self.sync.row()["notes"]}

    def text(self, path: str) -> str | None:
        return (self.host / path).read_text() if (self.host / path).exists() else None


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr("leeward.apps.approvals.sync.live_sync.Overlay", FakeOverlay)
    monkeypatch.setattr(LiveSync, "_run", lambda self: None)
    project = tmp_path / "project"
    project.mkdir()
    for name in ("a", "b"):
        (project / name).write_text(f"{name} of old\n")
    made = Stand(tmp_path, project)
    yield made
    made.queue.close()
    made.journal.close()
    made.project.close()


def test_a_change_flows_when_it_has_rested(stand: Stand) -> None:
    stand.box.upper["a"] = b"one\n"
    stand.round(1)
    stand.box.upper["a"] = b"two\n"
    stand.round(1)
    assert "a of old\n" == stand.text("a")
    stand.round(1)
    assert "two\n" == stand.text("a")
    stand.box.upper["a"] = None
    stand.round()
    assert stand.text("a") is None
    assert {} == stand.kinds()


def test_an_edit_right_after_a_write_is_the_hosts(stand: Stand) -> None:
    stand.box.upper["a"] = b"inside\n"
    stand.round()
    (stand.host / "a").write_text("host\n")  # before any round has seen what was written
    stand.round(3)
    assert "host\n" == stand.text("a")
    assert b"host\n" == stand.box.upper["a"]
    assert {} == stand.kinds()


@pytest.mark.parametrize("path", ["a", "new"])
def test_an_edit_between_the_names_and_the_content_is_the_hosts(stand: Stand, path: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    stand.box.upper[path] = b"inside\n"
    stand.round(1)
    state = stand.project.state

    def edited(which: str) -> FileState:
        if which == path:
            (stand.host / path).write_text("host\n")
        return state(which)
    monkeypatch.setattr(stand.project, "state", edited)
    stand.round(1)
    monkeypatch.undo()
    stand.round(3)
    assert "host\n" == stand.text(path)
    assert {path: "conflict"} == stand.kinds()


def test_an_edit_while_content_is_read_is_the_hosts(stand: Stand) -> None:
    stand.box.upper["a"] = b"inside\n"
    stand.box.at_content = lambda: cast("None", (stand.host / "a").write_text("host\n"))
    stand.round()
    stand.box.at_content = lambda: None
    stand.round(3)
    assert "host\n" == stand.text("a")
    assert {"a": "conflict"} == stand.kinds()


def test_a_conflict_ends_when_both_sides_have_the_same(stand: Stand) -> None:
    stand.box.upper["a"] = b"inside\n"
    (stand.host / "a").write_text("host\n")
    stand.round(3)
    assert {"a": "conflict"} == stand.kinds()
    stand.box.upper["a"] = b"host\n"
    stand.round()
    assert {} == stand.kinds()
    stand.box.upper["a"] = b"next\n"
    stand.round()
    assert "next\n" == stand.text("a")


def test_the_hosts_edits_flow_in_where_they_are_not_seen(stand: Stand) -> None:
    stand.box.old["a"] = b"a of old\n"
    (stand.host / "a").write_text("edited\n")
    (stand.host / "b").write_text("edited\n")
    stand.round()
    assert {"a": b"edited\n"} == stand.box.upper, "b shows through"
    (stand.host / "a").unlink()
    stand.round()
    assert {"a": None} == stand.box.upper
    (stand.host / "a").write_text("again\n")
    stand.round()
    assert {"a": b"again\n"} == stand.box.upper


def test_a_hidden_file_of_the_host_does_not_flow_in(stand: Stand) -> None:
    stand.box.upper["hidden"] = b"the sandbox's own\n"
    stand.round()
    assert "the sandbox's own\n" == stand.text("hidden")
    (stand.host / "hidden").write_text("of the host\n")
    stand.round()
    assert b"the sandbox's own\n" == stand.box.upper["hidden"]
    assert {"hidden": "refused"} == stand.kinds()


def test_deletions_beyond_a_bound_are_asked_for(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leeward.apps.approvals.sync.live_sync.MOST_DELETED", 1)
    stand.box.upper.update({"a": None, "b": None, "own": b"x"})
    stand.round()
    stand.box.upper["own"] = None  # not the project's
    stand.round()
    assert stand.text("own") is None
    assert 1 == sum(stand.text(path) is None for path in ("a", "b"))
    assert ["asked"] == list(stand.kinds().values())
    assert 1 == len(stand.queue.pending())
    stand.round(4)
    assert 0 == stand.queue.pending()[0].repeats, "it is asked for once"


def test_a_spent_budget_goes_on_from_where_it_stopped(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leeward.apps.approvals.sync.live_sync.MOST_MOVES", 2)
    stand.box.upper.update(dict.fromkeys("cdefg", b"x\n"))
    stand.round()
    for name in "cd":
        stand.box.upper[name] = b"again\n"
    stand.round(1)
    assert [None, "x\n"] == [stand.text("g"), stand.text("f")]
    stand.round(4)
    assert ["again\n", "again\n", "x\n"] == [stand.text(name) for name in "cdg"]
    assert 0 == stand.sync.row()["left"]


def test_another_folder_is_refused(stand: Stand, tmp_path: Path) -> None:
    stand.box.folder = tmp_path
    with pytest.raises(Stale):
        begin_sync(cast("Any", stand.box), stand.project, stand.queue, stand.journal, "", lambda path: False)


def test_names_of_a_project(tmp_path: Path) -> None:
    (tmp_path / "dir" / "node_modules").mkdir(parents=True)
    (tmp_path / "dir" / "file").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "link").symlink_to("dir")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = names_below(fd, is_skipped, 3)
        assert {"dir", "dir/file", "link"} == found.keys()
        assert found == {path: sign_at(fd, path) for path in found}
        assert sign_at(fd, "link/file") is None
        with pytest.raises(BadRequest):
            names_below(fd, is_skipped, 2)
    finally:
        os.close(fd)
