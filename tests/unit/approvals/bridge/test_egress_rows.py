from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.approvals.bridge import egress_rows
from leeward.approvals.bridge.egress_rows import EgressRows
from leeward.errors import DaemonAway


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
    monkeypatch.setattr(egress_rows, "Link", lambda socket: daemon)
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
    monkeypatch.setattr(egress_rows, "Link", lambda socket: daemon)
    rows = EgressRows(None)
    rows.skip()
    daemon.last = 2

    assert [1, 2] == [row["number"] for row in rows.pull()]


def test_endless_rows_do_not_delay_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_rows, "Link", BusyDaemon)
    rows = EgressRows(None)
    rows.skip()

    first, second = rows.pull(), rows.pull()

    assert 0 < len(first) <= 50
    assert first[-1]["number"] + 1 == second[0]["number"]
