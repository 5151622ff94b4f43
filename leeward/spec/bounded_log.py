"""
Lines of a log that anybody who can connect can cause, in bounds.

Runs in:   the servers of `apps`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from leeward.errors import told_with_place

#: Seconds in which lines are counted, and those from one place in the code, at most.
WINDOW_S, MOST_RECORDS = 60.0, 20


class LogBound:
    """Lets *most* lines of each kind through in each WINDOW_S."""

    def __init__(self, most: int) -> None:
        self._most, self._until = most, float("-inf")
        self._counts: Counter[object] = Counter()

    def left(self, kind: object) -> int:
        """How many lines of a kind there may be, this one among them: 1 for the last one, less for one too many."""
        if time.monotonic() >= self._until:
            self._until = time.monotonic() + WINDOW_S
            self._counts.clear()
        self._counts[kind] += 1
        return self._most + 1 - self._counts[kind]


class BoundedLog(logging.Filter):
    """
    Puts the place of an exception in the place of its traceback, whose texts quote what callers have sent; and lets
    MOST_RECORDS of each place that logs through in a WINDOW_S, so that none may hide others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bound = LogBound(MOST_RECORDS)

    def filter(self, record: logging.LogRecord) -> bool:
        left = self._bound.left((record.pathname, record.lineno))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{' '.join(record.getMessage().split())}: {told_with_place(error)}", ()
            record.exc_info = record.exc_text = None
        if left == 1:
            record.msg, record.args = f"{record.getMessage()} (more like this are left out for {WINDOW_S:g} s)", ()
        return left > 0
