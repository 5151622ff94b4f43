"""Lines from one place are bounded, and hide no others; exceptions are told by their place."""

from __future__ import annotations

import logging

import pytest

from leeward.spec import bounded_log
from leeward.spec.bounded_log import MOST_RECORDS, WINDOW_S, BoundedLog


def record(line: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.ERROR, "a.py", line, "%s failed", (text,), None)


def test_lines_from_one_place_are_bounded_and_hide_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, now = BoundedLog(), [0.0]
    monkeypatch.setattr(bounded_log.time, "monotonic", lambda: now[0])
    flood = [record(1, str(number)) for number in range(1000)]
    shown = [each.getMessage() for each in flood if bound.filter(each)]
    assert MOST_RECORDS == len(shown)
    assert f"{MOST_RECORDS - 1} failed (more like this are left out for 60 s)" == shown[-1]
    assert bound.filter(record(2, "another"))
    now[0] = WINDOW_S
    assert bound.filter(record(1, "again"))
