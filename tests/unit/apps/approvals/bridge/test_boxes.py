"""A sandbox that another program has opened, and that is to ask."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leeward.apps.approvals.bridge import boxes
from leeward.apps.approvals.bridge.boxes import AskingBoxes, BoxNotes
from leeward.errors import BadRequest, Busy, SandboxOver, ShuttingDown


class Attached:
    id = "one"

    def __init__(self) -> None:
        self.told: list[str] = []

    def detach(self) -> None:
        self.told.append("detached")

    def close(self) -> None:
        self.told.append("killed")


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Attached:
    made = Attached()
    monkeypatch.setattr(boxes, "Sandbox", SimpleNamespace(attach=lambda name, socket: made))
    overlay = SimpleNamespace(is_over=lambda folder: True, target="/in")
    monkeypatch.setattr(boxes, "Overlay", lambda box, target: overlay)
    return made


NOTE: dict[str, Any] = {"project": "/", "left": True, "hides": False, "before": None}


def asking(folder: Path) -> AskingBoxes:
    made = AskingBoxes(None, str(folder), None, lambda box, info: None, lambda box, info, why: None)
    made._over.set()  # nothing is looked at
    return made


def answering(_sandbox: str) -> Any:
    return None


PROJECT: Any = SimpleNamespace(path="/", fd=os.open("/", os.O_PATH | os.O_CLOEXEC))


def test_a_sandbox_that_cannot_ask_goes_on(tmp_path: Path, box: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another program's: nothing in it is ended."""
    def fails(*_what: object) -> None:
        raise BadRequest("no bridge")

    monkeypatch.setattr(boxes, "AskingBox", fails)
    service = asking(tmp_path)
    for _ in range(2):  # and it may be tried again
        with pytest.raises(BadRequest, match="no bridge"):
            service.open(PROJECT, {"sandbox": "one"}, answering, None)
    assert ["detached"] * 2 == box.told


def test_one_asks_once(tmp_path: Path, box: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two ask for it at the same time."""
    service, made = asking(tmp_path), list[Any]()

    def meanwhile(*_what: object) -> Any:
        with pytest.raises(BadRequest, match="can ask already"):
            service.open(PROJECT, {"sandbox": "one"}, answering, None)
        made.append(SimpleNamespace(box=box, note=lambda: NOTE))
        return made[-1]

    monkeypatch.setattr(boxes, "AskingBox", meanwhile)
    service.open(PROJECT, {"sandbox": "one"}, answering, None)
    with pytest.raises(BadRequest, match="can ask already"):
        service.open(PROJECT, {"sandbox": "one"}, answering, None)
    assert (1, []) == (len(made), box.told)


def test_those_that_are_being_opened_count(tmp_path: Path, box: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two that are opened at the same time would find the last place free."""
    service = asking(tmp_path)

    def meanwhile(*_what: object) -> Any:
        with pytest.raises(Busy, match="1 sandboxes can ask already"):
            service.open(PROJECT, {"sandbox": "another"}, answering, None)
        return SimpleNamespace(box=box, hiding=None, sync=None, note=lambda: NOTE)

    monkeypatch.setattr(boxes, "MOST_BOXES", 1)
    monkeypatch.setattr(boxes, "AskingBox", meanwhile)
    service.open(PROJECT, {"sandbox": "one"}, answering, None)


def test_none_is_left_that_was_being_opened_when_the_service_ended(tmp_path: Path, box: Attached,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    service, stop = asking(tmp_path), boxes.AskingBox.stop

    def meanwhile(*_what: object) -> Any:
        service.close_all()
        bridge = SimpleNamespace(close=lambda: box.told.append("bridge closed"))
        made = SimpleNamespace(box=box, hiding=None, sync=None, bridge=bridge, note=lambda: NOTE)
        made.stop = lambda: stop(cast("boxes.AskingBox", made))
        return made

    monkeypatch.setattr(boxes, "AskingBox", meanwhile)
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            service.open(PROJECT, {"sandbox": "one"}, answering, None)
    assert ["bridge closed", "detached"] == box.told
    assert [] == service.ids()


def test_a_sandbox_whose_note_has_no_room_is_not_kept_as_one_that_asks(tmp_path: Path, box: Attached,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that has ended would keep it from asking by another one."""
    def full(*_what: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    service = asking(tmp_path)
    monkeypatch.setattr(boxes, "AskingBox", lambda *_what: SimpleNamespace(
        box=box, hiding=None, sync=None, note=lambda: NOTE, stop=lambda: box.told.append("stopped")))
    with monkeypatch.context() as disk:
        disk.setattr("leeward.apps.approvals.queue.store.write_whole", full)
        for _ in range(2):
            with pytest.raises(Busy, match="no space left"):
                service.open(PROJECT, {"sandbox": "one"}, answering, None)
    assert ["stopped", "detached"] * 2 == box.told
    assert [] == service.ids()
    service.open(PROJECT, {"sandbox": "one"}, answering, None)
    assert ["one"] == service.ids()


def test_the_next_service_adopts_what_the_last_one_has_left(tmp_path: Path, box: Attached,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the last one has noted; a sandbox that has ended is forgotten, and none of another service's is taken."""
    given = list[Any]()

    def made(*what: object) -> Any:
        given.append(what[-1])
        return SimpleNamespace(box=box, hiding=None, sync=None, note=lambda: NOTE)

    monkeypatch.setattr(boxes, "AskingBox", made)
    asking(tmp_path).open(PROJECT, {"sandbox": "one"}, answering, None)
    assert ({}, {"one": "/"}) == (asking(tmp_path / "other").adoptable(), asking(tmp_path).adoptable())

    service = asking(tmp_path)
    service.adopt(PROJECT, "one", answering)
    assert [None, NOTE] == given
    assert ["one"] == service.ids()
    with pytest.raises(BadRequest, match="can ask already"):
        service.adopt(PROJECT, "one", answering)

    def over(_name: str, socket: object) -> Any:
        raise SandboxOver("it has ended")

    monkeypatch.setattr(boxes, "Sandbox", SimpleNamespace(attach=over))
    with pytest.raises(SandboxOver):
        asking(tmp_path).adopt(PROJECT, "one", answering)
    assert {} == asking(tmp_path).adoptable()


def test_a_note_is_read_by_the_next_service_until_it_is_removed(tmp_path: Path) -> None:
    """A file that is no note is left out."""
    notes = BoxNotes(str(tmp_path))
    assert {} == notes.all()
    notes.remove("one")
    notes.write("one", {"project": "/p"})
    notes.write("two", {"project": "/q", "left": False})
    notes.write("two", {"project": "/q", "left": True})
    for number, content in enumerate(('{"project":', "[]", '{"project": 1}', "[" * 100_000)):
        (tmp_path / f"boxes/torn{number}.json").write_text(content)
    os.mkfifo(tmp_path / "boxes/fifo.json")
    assert {"one": {"project": "/p"}, "two": {"project": "/q", "left": True}} == BoxNotes(str(tmp_path)).all()
    notes.remove("one")
    assert ["two"] == [*BoxNotes(str(tmp_path)).all()]
    assert 0o700 == (tmp_path / "boxes").stat().st_mode & 0o777
