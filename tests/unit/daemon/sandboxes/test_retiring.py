"""The end of a daemon: sandboxes fall asleep one after the other, and none keeps those of others from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from leeward.daemon.sandboxes.registry import State
from leeward.daemon.sandboxes.retiring import MOST_S, Retiring
from leeward.daemon.sandboxes.sleeping import SleepStage
from leeward.errors import Busy, LeewardError, Refused, SnapshotFailed

ONE, OTHER = 7, 8


class Desk:
    """Sandboxes whose sleep the test ends, and a clock that it moves."""

    def __init__(self) -> None:
        self.clock, self.due = 100.0, list[tuple[float, Any]]()
        self.reactor = Mock(now=lambda: self.clock, soon=lambda call: self.after(0.0, call), after=self.after)
        self.entries: list[Any] = []
        self.asked: dict[str, Callable[[Refused | None], None]] = {}
        self.ended: dict[str, str] = {}
        self.done = Mock()
        self.tells = Mock()

    def after(self, seconds: float, call: Callable[[], None]) -> Mock:
        row = (self.clock + seconds, call)
        self.due.append(row)

        def cancel() -> None:
            self.due = [each for each in self.due if each is not row]

        return Mock(cancel=cancel)

    def go_on(self, seconds: float = 0.0) -> None:
        end = self.clock + seconds
        while rows := sorted((row for row in self.due if row[0] <= end), key=lambda row: row[0]):
            self.due.remove(rows[0])
            self.clock = max(self.clock, rows[0][0])
            rows[0][1]()
        self.clock = end

    def add(self, name: str, user: int = ONE) -> Any:
        entry = Mock(user=user)
        entry.name = name
        entry.sandbox.sleep, entry.sandbox.sandbox.state, entry.sandbox.sandbox.kernels = None, State.OPEN, {}
        self.entries.append(entry)
        return entry

    def all(self) -> list[Any]:
        return self.entries

    def pause(self, entry: Any, answered: Callable[[Refused | None], None]) -> None:
        self.asked[entry.name] = answered
        entry.sandbox.sleep = Mock(stage=SleepStage.FALLING, on_disk=False, is_volatile=False)

    def cannot_sleep(self, entry: Any, why: str) -> None:
        self.ended.setdefault(entry.name, why)
        entry.sandbox.sandbox.state = State.OVER
        answered = self.asked.pop(entry.name, None)
        if answered is not None:
            answered(Busy("the sandbox is over"))

    def sleeps(self, entry: Any) -> None:
        entry.sandbox.sleep = Mock(stage=SleepStage.ASLEEP, on_disk=True, is_volatile=False)
        self.asked.pop(entry.name)(None)

    def begin(self) -> Retiring:
        made = Retiring(self.reactor, self, 4.0, self.done)  # type: ignore[arg-type]  # as far as it is used
        made.begin()
        self.go_on()
        return made


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_they_sleep_one_after_the_other(desk: Desk) -> None:
    one, two = desk.add("one"), desk.add("two", OTHER)
    desk.begin()
    assert ["one"] == list(desk.asked)
    desk.sleeps(one)
    desk.go_on()
    assert ["two"] == list(desk.asked)
    desk.done.assert_not_called()
    desk.sleeps(two)
    desk.go_on()
    desk.done.assert_called_once()
    desk.tells.assert_called_once_with("sandboxes sleep until the next daemon", sandboxes=2)
    assert ({}, []) == (desk.ended, desk.due)


def test_users_have_their_turns(desk: Desk) -> None:
    """One who has many keeps nobody from it."""
    order = []
    entries = {name: desk.add(name, ONE) for name in "abc"} | {"d": desk.add("d", OTHER)}
    desk.begin()
    while desk.asked:
        (name,) = desk.asked
        order.append(name)
        desk.sleeps(entries[name])
        desk.go_on()
    assert ["a", "d", "b", "c"] == order


def test_one_that_never_falls_asleep_keeps_no_other_from_it(desk: Desk) -> None:
    """Its kernel may see to that. Those of its user wait for longer."""
    stuck, mine, other = desk.add("stuck"), desk.add("mine"), desk.add("other", OTHER)
    desk.begin()
    desk.go_on(1.5)
    assert ["stuck", "other"] == list(desk.asked)
    desk.sleeps(other)
    desk.go_on(9.0)
    assert (["mine"], ["stuck"]) == (list(desk.asked), list(desk.ended))
    desk.sleeps(mine)
    desk.go_on()
    desk.done.assert_called_once()
    assert State.OVER is stuck.sandbox.sandbox.state


def test_when_all_time_is_over_it_ends(desk: Desk) -> None:
    """Also for one that is being written, which has all that time."""
    written, left = desk.add("written"), desk.add("left")
    desk.begin()
    written.sandbox.sleep.stage = SleepStage.ASLEEP
    desk.go_on(MOST_S - 1.0)
    assert {} == desk.ended
    desk.go_on(1.5)
    assert ["written", "left"] == list(desk.ended)
    desk.done.assert_called_once()
    assert State.OVER is left.sandbox.sandbox.state


def test_what_was_being_written_before_has_that_time_too(desk: Desk) -> None:
    entry = desk.add("one")
    entry.sandbox.sleep = Mock(stage=SleepStage.ASLEEP, on_disk=False, is_volatile=False)
    desk.begin()
    desk.go_on(20.0)
    desk.done.assert_not_called()
    entry.sandbox.sleep.on_disk = True
    desk.go_on(1.0)
    desk.done.assert_called_once()
    assert {} == desk.ended


def test_what_sleeps_in_memory_is_not_waited_for(desk: Desk) -> None:
    entry = desk.add("one")
    entry.sandbox.sleep = Mock(stage=SleepStage.ASLEEP, on_disk=False, is_volatile=True)
    desk.begin()
    desk.done.assert_called_once()
    assert {"one": "it slept in memory"} == desk.ended


def test_at_once_all_that_does_not_sleep_ends(desk: Desk) -> None:
    for number in range(3):
        desk.add(str(number), number)
    made = desk.begin()
    made.stop()
    desk.go_on()
    assert ["0", "1", "2"] == sorted(desk.ended)
    desk.done.assert_called_once()


def test_what_cannot_sleep_says_why_and_what_runs_is_interrupted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fails, busy = desk.add("fails"), desk.add("busy")
    kernel = Mock()
    busy.sandbox.sandbox.kernels = {1: kernel}
    why: dict[str, LeewardError] = {"fails": SnapshotFailed("no"), "busy": Busy("code runs")}
    monkeypatch.setattr(desk, "pause", lambda entry, _answered: (_ for _ in ()).throw(why[entry.name]))
    desk.begin()
    assert ({"fails": "no"}, State.OVER) == (desk.ended, fails.sandbox.sandbox.state)
    desk.go_on(3.0)
    kernel.interrupt.assert_not_called()
    desk.go_on(2.0)
    kernel.interrupt.assert_called_once()
    desk.go_on(2.0)
    assert "code runs" == desk.ended["busy"]
    desk.done.assert_called_once()
