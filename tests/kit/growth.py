"""
What grows each time leaks.

Runs in:   the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def least_growth(held: Callable[[], int], work: Callable[[], object], times: int = 3) -> int:
    """
    The least by which *held* grows in one of so many runs of *work*: a leak grows in each, and a heap by a huge page (2 MiB)
    or until its garbage is collected now and then.
    """
    found = []
    for _ in range(times):
        before = held()
        work()
        found.append(held() - before)
    return min(found)


def anonymous(pid: int) -> int:
    """The bytes of a process's memory, without pages that it shares with files."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) << 10
