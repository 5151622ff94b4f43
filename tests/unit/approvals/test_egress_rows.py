from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.approvals import egress_rows
from leeward.approvals.egress_rows import EgressRows


class BusyDaemon:
    """
    One whose sandboxes have made another row each time that it is asked.
    """

    def __init__(self, socket: object) -> None:
        self._numbers: Iterator[int] = count(1)

    def call(self, op: str, fields: Mapping[str, Any], end: float) -> tuple[Any, None]:
        return SimpleNamespace(ok={"events": [{"number": next(self._numbers)}]}), None

    def close(self) -> None:
        pass


def test_endless_rows_do_not_delay_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_rows, "Link", BusyDaemon)
    rows = EgressRows(None)
    rows.skip()

    first, second = rows.pull(), rows.pull()

    assert 0 < len(first) <= 50
    assert first[-1]["number"] + 1 == second[0]["number"]
