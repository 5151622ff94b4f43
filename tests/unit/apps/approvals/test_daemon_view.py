"""Looks at a daemon that is played."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.apps.approvals import daemon_view
from leeward.apps.approvals.daemon_view import MOST_ROWS, MOST_SAMPLES, DaemonView
from leeward.client import daemon_rows
from leeward.errors import BadReply, NoAnswer
from leeward.spec.paths import OwnSocket
from leeward.wire.replies import Reply


class Played:
    """
    A daemon, and the connections to it.

    Attributes:
        asked: the operations, each time.
        paths: of the connections.
    """

    def __init__(self) -> None:
        self.asked, self.paths = list[str](), list[str]()
        self.pid, self.done, self.now = 1, 0, 1000.0
        self.begun = 0.0
        self.hangs = False
        self.ends = list[dict[str, Any]]()

    def connect(self, path: str) -> Played:
        self.paths.append(path)
        return self

    def end(self, seconds: float) -> None:
        self.done += 1
        self.ends.append({"number": len(self.ends) + 1, "time": self.now, "kind": "job", "job": self.done,
                          "outcome": "finished", "seconds": seconds, "denied": {}})

    def call(self, op: str, fields: dict[str, Any], deadline: float) -> tuple[Reply, list[int]]:
        self.asked.append(op)
        if self.hangs:
            self.now += 5
            raise NoAnswer("in time")
        found: dict[str, dict[str, Any]] = {
            "status": {"pid": self.pid, "jobs": {"done": self.done}, "uptime": self.now - self.begun},
            "sandbox_list": {"sandboxes": [{"sandbox": "box"}]},
            "recall": {"events": [row for row in self.ends if row["number"] > fields.get("after", 0)][:50], "last": 1},
            "egress_log": {"events": [], "last": 0, "forgotten": 0}}
        return Reply(1, found[op], "", "", []), []

    def close(self) -> None:
        pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    for module in (daemon_view, daemon_rows):
        monkeypatch.setattr(module, "BlockingConnection", made.connect)
    return made


@pytest.fixture
def view(played: Played) -> DaemonView:
    return DaemonView("sock", lambda: played.now)


def test_a_look_has_what_is_new_first(played: Played, view: DaemonView) -> None:
    played.end(0.5)
    played.end(0.1)
    played.end(0.2)

    found = view.look()

    assert [3, 2, 1] == [row["number"] for row in found.ends]
    assert ["box"] == [row["sandbox"] for row in found.sandboxes]
    assert [(3, 0.2, 0.5)] == [(each.done, each.median, each.longest) for each in found.samples]


def test_rows_are_read_once_and_bounded(played: Played, view: DaemonView) -> None:
    for number in range(MOST_ROWS + MOST_SAMPLES):
        played.end(float(number))
        played.now += 2
        found = view.look()

    assert (MOST_ROWS, MOST_SAMPLES) == (len(found.ends), len(found.samples))
    last = found.samples[-1]
    assert played.ends[-1]["seconds"] == last.median == last.longest


def test_looks_within_a_second_are_one(played: Played, view: DaemonView) -> None:
    first = view.look()
    assert view.look() is first
    assert 1 == played.asked.count("status")
    played.now -= 3600  # the clock was set back
    assert view.look() is not first


def test_another_daemon_begins_anew(played: Played, view: DaemonView) -> None:
    played.end(0.1)
    view.look()
    played.ends.clear()
    played.pid, played.done, played.now = 2, 0, played.now + 2
    played.end(0.2)

    found = view.look()

    assert ([0.2], 1) == ([row["seconds"] for row in found.ends], len(found.samples))


def test_another_daemon_with_the_same_pid_begins_anew(played: Played, view: DaemonView) -> None:
    """As in a container."""
    played.end(0.1)
    played.end(0.1)
    view.look()
    played.ends.clear()
    played.now += 2
    played.begun = played.now - 1
    played.end(0.2)

    assert [0.2] == [row["seconds"] for row in view.look().ends]


def test_a_daemon_that_hangs_is_asked_once_for_all_who_look(played: Played, view: DaemonView) -> None:
    """Else each of a page's requests would keep a thread for as long as it hangs."""
    played.hangs = True
    for _ in range(3):
        with pytest.raises(NoAnswer):
            view.look()
    assert ["status"] == played.asked

    played.now, played.hangs = played.now + 2, False
    assert view.look() is view.look()


def test_a_row_that_does_not_fit_is_the_peers_fault(played: Played, view: DaemonView) -> None:
    played.end(0.1)
    played.ends[0]["title"] = 5
    with pytest.raises(BadReply):
        view.look()


def test_a_look_starts_no_daemon(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is a plain text, by which no client starts one."""
    monkeypatch.delenv("LEEWARD_SOCKET", raising=False)
    DaemonView(None).look()

    assert played.paths
    assert not any(isinstance(path, OwnSocket) for path in played.paths)
    assert {"status", "sandbox_list", "recall", "egress_log"} == set(played.asked)
