"""
A bound for what the web server writes about broken requests: anybody who can connect can cause any number of lines.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: Records of each logger, and the seconds in which there may be so many.
MOST_RECORDS, WINDOW_S = 20, 60.0

#: The loggers of the server and of its event loop.
_LOGGERS = ("uvicorn.error", "asyncio")


class BoundedRecords(logging.Filter):
    """
    Lets MOST_RECORDS through in each WINDOW_S, and tells with the next one how many it has left out.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._until, self._count = clock, float("-inf"), 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now >= self._until:
            left, self._until, self._count = self._count - MOST_RECORDS, now + WINDOW_S, 0
            if left > 0:
                record.msg, record.args = f"{record.getMessage()} ({left} lines before this one were left out)", None
        self._count += 1
        return self._count <= MOST_RECORDS


def bound_logs() -> None:
    """Bound the records of the server's loggers."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, BoundedRecords) for each in logger.filters):
            logger.addFilter(BoundedRecords())
