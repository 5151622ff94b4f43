"""What the record has of a sandbox: its start, what it was refused, the limits that it reached, and its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leeward.apps.approvals import box_rows
from leeward.apps.approvals.box_rows import EgressRows, SandboxRows, counts_in, last_counts
from leeward.apps.audit.record import BURST, BoundedJournal
from leeward.apps.audit.record_lines import AuditRow
from leeward.errors import DaemonAway, PeerError, SandboxOver


class Rows(list[AuditRow]):
    """A record that is a list."""

    def write(self, row: AuditRow) -> bool:
        self.append(row)
        return True

    def said(self) -> list[tuple[str, str, str]]:
        return [(row.category, row.action, row.decision) for row in self]


class Egress:
    """What the daemon has decided by policies of egress."""

    def __init__(self) -> None:
        self.rows = list[dict[str, Any]]()
        self.is_away = False

    def pull(self) -> list[dict[str, Any]]:
        if self.is_away:
            raise PeerError("the daemon is away")
        found, self.rows = self.rows, []
        return found


def made() -> tuple[SandboxRows, Rows, Egress]:
    rows, egress = Rows(), Egress()
    return SandboxRows(BoundedJournal(rows), cast("EgressRows", egress), ENDS.__getitem__), rows, egress


#: What the daemon remembers of those that have ended by themselves.
ENDS: dict[str, dict[str, Any]] = {"box": {"denied": {"mount": 5}, "oom_kills": 1, "memory_peak": 7}}


def test_every_count_is_written_once() -> None:
    life, rows, _ = made()
    life.begin("box", profile="build", request=7)
    for info in ({"denied": {"mount": 2}, "oom_kills": 1, "forks_refused": 0},
                 {"denied": {"mount": 2}, "oom_kills": 1, "forks_refused": 9},
                 {"denied": {"mount": 3, "bpf": 1}, "oom_kills": 1, "forks_refused": 9}):
        life.look("box", info)
    life.end("box", {"denied": {"mount": 3, "bpf": 1}, "oom_kills": 2, "cpu_time": 1.5}, None)

    assert [("sandbox", "open", "started"), ("syscall", "mount", "denied"), ("sandbox", "limit", "killed"),
            ("sandbox", "limit", "refused"), ("syscall", "mount", "denied"), ("syscall", "bpf", "denied"),
            ("sandbox", "limit", "killed"), ("sandbox", "end", "ended")] == rows.said()
    assert {"profile": "build", "request": 7} == rows[0].metadata
    assert [2, {"limit": "memory", "count": 1}, {"limit": "processes", "count": 9}, 1] == [
        rows[1].metadata["count"], rows[2].metadata, rows[3].metadata, rows[4].metadata["count"]]
    assert {"reason": "closed", "limit": "", "cpu_time": 1.5} == rows[-1].metadata


def test_a_limit_that_ends_it_is_its_end() -> None:
    life, rows, _ = made()
    life.begin("box")
    life.end("box", {}, SandboxOver("it is over", "memory", limit="memory"))
    life.end("box", {}, None)  # twice is once
    life.look("box", {"denied": {"mount": 1}})

    assert [("sandbox", "open", "started"), ("syscall", "mount", "denied"), ("sandbox", "limit", "killed"),
            ("sandbox", "limit", "ended")] == rows.said()
    assert {"reason": "memory", "limit": "memory", "memory_peak": 7} == rows[-1].metadata


def test_rows_of_egress_are_of_open_sandboxes() -> None:
    life, rows, egress = made()
    life.begin("box")
    for name in ("box", "other"):
        egress.rows.append({"verdict": "denied", "time": 1.0, "sandbox": name, "name": "x.example"})
    life.pull()
    egress.rows.append({"verdict": "allowed", "time": 2.0, "sandbox": "box"})
    life.end("box", {}, None)  # what was decided last is there before its end
    egress.is_away = True
    life.pull()

    assert [("box", "denied"), ("box", "approved")] == [(row.sandbox, row.decision) for row in rows
                                                       if "network" == row.category]
    assert ("sandbox", "end", "ended") == rows.said()[-1]


def test_limits_that_are_reached_without_end_are_bounded() -> None:
    life, rows, _ = made()
    life.begin("box")
    for number in range(2 * BURST):
        life.look("box", {"oom_kills": number + 1})
    life.end("box", {}, None)

    assert BURST == rows.said().count(("sandbox", "limit", "killed"))
    assert [("audit", "bound", "left out"), ("sandbox", "end", "ended")] == rows.said()[-2:]


def test_counts_that_are_none_are_left_alone() -> None:
    life, rows, _ = made()
    life.begin("box")
    life.look("box", {"denied": {"mount": "many", 3: 1}, "oom_kills": None, "forks_refused": -1})
    life.look("box", {"denied": None})

    assert [("sandbox", "open", "started")] == rows.said()


def test_counts_of_an_ended_sandbox_are_read_from_the_daemons_events() -> None:
    row = {"kind": "sandbox", "sandbox": "box", "denied": {"bpf": 1}, "reason": "memory", "cpu_time": 1.0}
    other = row | {"sandbox": "other", "denied": {}}
    process = row | {"kind": "process", "denied": {"mount": 1}}

    assert {"denied": {"bpf": 1}, "cpu_time": 1.0} == counts_in([other, process, row], "box")
    for rows in (None, {}, [], [7], [other]):
        assert {} == counts_in(rows, "box")
    assert {} == last_counts("/nowhere/at/all", "box")


def about(name: str, **more: Any) -> dict[str, Any]:
    return {"sandbox": name, "profile": "approved", **more}


def test_sandboxes_of_other_programs_have_their_rows_once() -> None:
    """Open ones at each look what is new; those that have come and gone between two looks their start and end."""
    life, rows, egress = made()
    life.begin("own", project="/p")
    assert life.others([about("own", denied={"bpf": 9}), about("box", age=5.0, denied={"mount": 2})], [])
    egress.rows.append({"verdict": "denied", "time": 1.0, "sandbox": "box", "name": "x.example"})
    life.pull()
    assert life.others([about("box", denied={"mount": 3})], [])
    assert life.others([], [about("box", reason="memory", detail="too much", denied={"mount": 3}),
                            about("brief", reason="killed"), about("own", reason="killed")])
    assert life.others([about("box")], [about("brief", reason="killed")])  # told again

    assert [("own", "open", "started"), ("box", "open", "started"), ("box", "mount", "denied"),
            ("box", "egress", "denied"), ("box", "mount", "denied"),
            ("box", "limit", "ended"),
            ("brief", "open", "started"), ("brief", "end", "ended")] == [
                (row.sandbox, row.action, row.decision) for row in rows]
    assert {"by": "another program"} == rows[1].metadata
    assert ("memory", "memory") == (rows[5].metadata["reason"], rows[5].metadata["limit"])


def test_sandboxes_of_the_service_are_not_counted_as_other_programs() -> None:
    """Its sandbox is in the daemon's list before the service knows its id."""
    life, rows, _ = made()
    with life.opening():
        assert not life.others([about("own")], [about("gone", reason="killed")])
        life.begin("own", project="/p")
    assert [("sandbox", "open", "started")] == rows.said()
    assert life.others([about("own")], [about("gone", reason="killed")])

    assert ["own", "gone", "gone"] == [row.sandbox for row in rows]


def test_another_programs_sandbox_that_can_ask_now_is_the_services() -> None:
    life, rows, _ = made()
    life.others([about("box")], [])
    life.begin("box", project="/p")
    life.others([about("box", denied={"mount": 1})], [about("box", reason="killed")])  # boxes.py looks at it

    assert [{"by": "another program"}, {"project": "/p"}] == [row.metadata for row in rows]


class BusyDaemon:
    """One whose sandboxes have made another row each time that it is asked."""

    def __init__(self, socket: object) -> None:
        self._numbers: Iterator[int] = count(1)

    def call(self, op: str, fields: Mapping[str, Any], end: float) -> tuple[Any, None]:
        return SimpleNamespace(ok={"events": [{"number": next(self._numbers)}]}), None

    def close(self) -> None:
        pass


class RestartedDaemon:
    """One with three rows, and after its restart with two."""

    def __init__(self, socket: object) -> None:
        self.last = 3

    def call(self, op: str, fields: Mapping[str, Any], end: float) -> tuple[Any, None]:
        numbers = range(fields["after"] + 1, self.last + 1)
        return SimpleNamespace(ok={"events": [{"number": number} for number in numbers], "last": self.last}), None


def test_rows_of_a_restarted_daemon_are_read_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = RestartedDaemon(None)
    monkeypatch.setattr(box_rows, "BlockingConnection", lambda socket: daemon)
    rows = EgressRows(None)
    rows.skip()
    daemon.last = 2

    assert [1, 2] == [row["number"] for row in rows.pull()]
    assert [] == rows.pull()


def test_no_row_of_a_daemon_that_starts_later_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class LateDaemon(RestartedDaemon):
        def call(self, op: str, fields: Mapping[str, Any], end: float) -> tuple[Any, None]:
            if not self.last:
                raise DaemonAway("away")
            return super().call(op, fields, end)

    daemon = LateDaemon(None)
    daemon.last = 0
    monkeypatch.setattr(box_rows, "BlockingConnection", lambda socket: daemon)
    rows = EgressRows(None)
    rows.skip()
    daemon.last = 2

    assert [1, 2] == [row["number"] for row in rows.pull()]


def test_endless_rows_do_not_delay_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_rows, "BlockingConnection", BusyDaemon)
    rows = EgressRows(None)
    rows.skip()

    first, second = rows.pull(), rows.pull()

    assert 0 < len(first) <= 50
    assert first[-1]["number"] + 1 == second[0]["number"]
