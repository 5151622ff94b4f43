"""
Which names are asked to be covered while an agent runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kit.waiting import poll_until
from leeward.agents import hiding_watch
from leeward.agents.hiding import rules_of
from leeward.agents.hiding_watch import HidingWatch
from leeward.agents.project_tree import MAX_LEVELS
from leeward.errors import RequestRejected, SandboxOver


class Covers:
    """
    A sandbox that notes what it is asked, and can be over.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = False
        self.largest = 0
        self._heard = threading.Condition()

    def ask(self, op: str, fields: Mapping[str, Any]) -> None:
        assert "sandbox_hide" == op
        if self.over:
            raise SandboxOver("over", "killed")
        if any("refused" in name for name in msgpack.unpackb(msgpack.packb(fields["hide"]))):
            raise RequestRejected("no such name")
        self.largest = max(self.largest, len(msgpack.packb(fields)))
        with self._heard:
            self.asked += fields["hide"]
            self._heard.notify_all()

    def until(self, name: str, times: int = 1) -> None:
        with self._heard:
            assert self._heard.wait_for(lambda: self.asked.count(name) >= times, 10), self.asked


Watching = Callable[..., HidingWatch]


@pytest.fixture
def box() -> Covers:
    return Covers()


@pytest.fixture
def watching(box: Covers, tmp_path: Path) -> Iterator[Watching]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made: list[HidingWatch] = []

    def watch(hidden: Mapping[str, tuple[int, int]] = {}, absent: tuple[str, ...] = (),
              tell: Callable[[str], None] = lambda line: None) -> HidingWatch:
        sandbox: Any = box
        made.append(HidingWatch(sandbox, rules_of((), ()), folder, str(tmp_path), "/inside", hidden, absent, tell))
        made[-1].start()
        return made[-1]

    yield watch
    for each in made:
        each.stop()
    os.close(folder)


def identity(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino


def test_a_file_that_is_replaced_and_one_that_comes(box: Covers, watching: Watching, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("x")
    (tmp_path / "deep").mkdir()
    made = watching({".env": identity(tmp_path / ".env")}, (".envrc",))
    box.until("/inside/.env")  # it may have been replaced before the watch
    assert set() == made.covered
    (tmp_path / "new").write_text("y")
    (tmp_path / "new").rename(tmp_path / ".env")
    (tmp_path / ".envrc").write_text("y")
    (tmp_path / "deep/a.env").write_text("y")
    box.until("/inside/.env", 2)
    box.until("/inside/.envrc")
    box.until("/inside/deep/a.env")
    made.stop()
    assert {".env", ".envrc", "deep/a.env"} == made.covered


def test_a_file_that_changes_all_the_time_is_asked_about_now_and_then(box: Covers, watching: Watching, tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiding_watch, "LOOK_S", 0.001)
    monkeypatch.setattr(hiding_watch, "_FIRST_S", 0.0)
    (tmp_path / "log.env").write_text("x")
    made = watching({"log.env": identity(tmp_path / "log.env")})
    box.until("/inside/log.env")
    for number in range(50):
        (tmp_path / "log.env").write_text(str(number))
        (tmp_path / f"{number}.env").write_text("x")
        box.until(f"/inside/{number}.env")
    assert 1 == box.asked.count("/inside/log.env")
    assert "log.env" not in made.covered


def test_a_sandbox_that_is_over_is_told(box: Covers, watching: Watching, tmp_path: Path) -> None:
    told, heard = list[str](), threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        heard.set()

    box.over = True
    watching(tell=tell)
    (tmp_path / ".env").write_text("x")
    assert heard.wait(10)
    assert "aren't hidden" in told[0]


def test_names_that_an_agent_makes_leave_others_hidden(box: Covers, watching: Watching, tmp_path: Path) -> None:
    """
    One that is no text, one that the daemon refuses, and more folders within each other than are looked at. Each is
    told once.
    """
    told = list[str]()
    for name in (b"\xff", b"refused", b"here", b"also here"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        with open(os.path.join(folder, b".env"), "w"):
            pass
    watching({}, (".env",), told.append)
    box.until("/inside/here/.env")
    box.until("/inside/also here/.env")
    assert 1 == len(told)
    assert "isn't hidden" in told[0]

    deep = tmp_path
    for _ in range(MAX_LEVELS + 2):
        deep /= "d"
        deep.mkdir()
    poll_until(lambda: len(told) > 1, 10)
    (tmp_path / ".env").write_text("x")
    box.until("/inside/.env")
    assert 2 == len(told)
    assert f"more than {MAX_LEVELS} folders" in told[1]


def test_many_long_names_are_asked_for_by_parts(box: Covers, watching: Watching, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:0>250}.env").write_text("x")
    watching()
    for number in range(300):
        box.until(f"/inside/{number:0>250}.env")
    assert box.largest < 40 << 10
