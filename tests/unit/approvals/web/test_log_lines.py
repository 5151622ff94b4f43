"""How much the web server may write about broken requests."""

from __future__ import annotations

import logging

from leeward.approvals.web.log_lines import MOST_RECORDS, WINDOW_S, BoundedRecords, bound_logs


def record(number: int) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "f", 1, "broken %d", (number,), None)


def test_records_are_bounded_and_counted() -> None:
    now = [0.0]
    bounded = BoundedRecords(lambda: now[0])
    assert MOST_RECORDS == sum(bounded.filter(record(number)) for number in range(1000))
    now[0] = WINDOW_S
    first = record(7)
    assert bounded.filter(first)
    assert f"broken 7 ({1000 - MOST_RECORDS} lines before this one were left out)" == first.getMessage()
    assert MOST_RECORDS - 1 == sum(bounded.filter(record(number)) for number in range(1000))
    now[0] = 2 * WINDOW_S
    assert bounded.filter(record(8))
    now[0] = 3 * WINDOW_S
    quiet = record(9)
    assert bounded.filter(quiet)
    assert "broken 9" == quiet.getMessage()


def test_each_logger_has_one_bound() -> None:
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    before = [list(logger.filters) for logger in loggers]
    try:
        bound_logs()
        bound_logs()
        assert [1, 1] == [sum(isinstance(each, BoundedRecords) for each in logger.filters) for logger in loggers]
    finally:
        for logger, filters in zip(loggers, before, strict=True):
            logger.filters[:] = filters
