"""Which names are asked to be covered while an agent runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kit.waiting import poll_until
from leeward.apps.agents import hiding_watch
from leeward.apps.agents.hiding import rules_of
from leeward.apps.agents.hiding_watch import HidingWatch
from leeward.apps.agents.project_tree import MAX_LEVELS
from leeward.errors import Busy, NoAnswer, RequestRejected, SandboxOver


class Covers:
    """A sandbox that notes what it is asked, and can be over."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.largest = 0
        self._heard = threading.Condition()

    def ask(self, op: str, fields: Mapping[str, Any]) -> None:
        assert "sandbox_hide" == op
        if self.error is not None:
            raise self.error
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
def watching(box: Covers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made: list[HidingWatch] = []

    def watch(hidden: Mapping[str, tuple[int, int]] = {}, absent: tuple[str, ...] = (),
              tell: Callable[[str], None] = lambda line: None,
              end: Callable[[str], None] = lambda why: None) -> HidingWatch:
        sandbox: Any = box
        made.append(HidingWatch(sandbox, rules_of((), ()), folder, str(tmp_path), "/inside", hidden, absent, tell, end))
        made[-1].start()
        return made[-1]

    monkeypatch.setattr(hiding_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(hiding_watch, "_FIRST_S", 0.0)
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


class Ends:
    """Whether and why the agent was to be ended."""

    def __init__(self) -> None:
        self.why = list[str]()
        self._heard = threading.Event()

    def __call__(self, why: str) -> None:
        self.why.append(why)
        self._heard.set()

    def until(self) -> str:
        assert self._heard.wait(10)
        return self.why[0]


@pytest.mark.parametrize("error", [NoAnswer("no sign of life"), RequestRejected("too many"), ValueError("a bug")])
def test_an_agent_that_could_see_a_new_hidden_file_is_ended(box: Covers, watching: Watching, tmp_path: Path,
                                                            error: Exception) -> None:
    """The daemon doesn't answer, has given all covers, or the watch itself is wrong."""
    ends = Ends()
    box.error = error
    watching(end=ends)
    (tmp_path / ".env").write_text("x")
    assert str(error) in ends.until()


def test_a_name_that_is_no_text_and_has_no_folder_ends_the_agent(watching: Watching, tmp_path: Path) -> None:
    """Which is told what helps."""
    ends = Ends()
    watching({}, (), lambda line: None, ends)
    with open(os.fsencode(tmp_path) + b"/\xff.env", "w"):
        pass
    assert "its name isn't UTF-8: rename it" in ends.until()


def test_an_agent_is_not_ended_with_a_sandbox_that_is_over(box: Covers, watching: Watching, tmp_path: Path) -> None:
    ends = Ends()
    box.error = SandboxOver("over", "killed")
    made = watching({}, (".env",), end=ends)
    (tmp_path / ".env").write_text("x")
    poll_until(lambda: not made.alive, 10)
    assert [] == ends.why


def test_a_daemon_that_is_busy_is_asked_again_for_some_time(box: Covers, watching: Watching, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    ends, told = Ends(), list[str]()
    box.error = Busy("an overlay is being kept")
    watching({}, (".env",), told.append, ends)
    (tmp_path / ".env").write_text("x")
    poll_until(lambda: bool(told), 10)
    assert "hidden later" in told[0]
    box.error = None
    box.until("/inside/.env")
    assert [] == ends.why
    monkeypatch.setattr(hiding_watch, "_PATIENCE_S", 0.2)
    box.error = Busy("an overlay is being kept")
    (tmp_path / "a.env").write_text("x")
    assert "an overlay is being kept" in ends.until()


def test_a_name_that_cannot_be_hidden_is_hidden_with_its_folder(box: Covers, watching: Watching,
                                                                tmp_path: Path) -> None:
    """A name that is no text, one that the daemon refuses, and endlessly nested folders. Others are hidden as ever."""
    told, ends = list[str](), Ends()
    for name in (b"a/\xff", b"b/refused", b"here", b"also here"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(folder)
        with open(os.path.join(folder, b".env"), "w"):
            pass
    made = watching({}, (".env",), told.append, ends)
    for name in ("a", "b", "here/.env", "also here/.env"):
        box.until(f"/inside/{name}")
    assert {"a", "b"} <= made.covered
    assert 1 == len(told)
    assert "so its folder is" in told[0]

    deep = tmp_path
    for _ in range(MAX_LEVELS + 2):
        deep /= "d"
        deep.mkdir()
    (deep / ".env").write_text("x")
    box.until("/inside/" + "/".join("d" * (MAX_LEVELS + 1)))
    (tmp_path / ".env").write_text("x")
    box.until("/inside/.env")
    assert [] == ends.why


def test_a_folder_that_cannot_be_read_is_hidden(box: Covers, watching: Watching, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent can make it so, and open names in it that it knows; root can read it, so it is made up here."""
    real = os.open

    def opening(path: Any, *rest: Any, **more: Any) -> int:
        if "shut" == path:
            raise PermissionError(13, "no")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", opening)
    (tmp_path / "shut").mkdir()
    ends = Ends()
    watching(end=ends)
    box.until("/inside/shut")
    assert [] == ends.why


def test_many_long_names_are_asked_for_by_parts(box: Covers, watching: Watching, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:0>250}.env").write_text("x")
    watching()
    for number in range(300):
        box.until(f"/inside/{number:0>250}.env")
    assert box.largest < 40 << 10


def test_names_that_come_and_go_are_not_remembered_without_end(box: Covers, watching: Watching, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent renames a folder with a hidden file all the time. Names from the start stay known."""
    monkeypatch.setattr(hiding_watch, "_MOST_KNOWN", 10)
    (tmp_path / "0").mkdir()
    (tmp_path / "0/.env").write_text("x")
    made = watching(absent=(".envrc",))
    for number in range(40):
        box.until(f"/inside/{number}/.env")
        (tmp_path / str(number)).rename(tmp_path / str(number + 1))
    (tmp_path / ".envrc").write_text("x")
    box.until("/inside/.envrc")
    made.stop()
    assert len(made._known) <= 12
    assert len(made._asked) <= 12
    assert 10 == len(made.covered)
