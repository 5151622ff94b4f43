"""
A pool of threads with a bound for each key, so that slow work for one key doesn't delay others.

Runs in:   the operator's program that decides.
Holds:     with a bound of one, the work for a key is done in the order in which it came.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class TurnPool:
    """
    Args:
        name: prefix of the threads' names.
        threads: at most.
        of_one: threads for one key, at most.
    """

    def __init__(self, name: str, threads: int, of_one: int) -> None:
        self._pool, self._of_one = ThreadPoolExecutor(threads, name), of_one
        self._lock, self._over = threading.Lock(), False
        self._turns, self._waiting = Counter[str](), defaultdict[str, deque[Callable[[], None]]](deque)

    def submit(self, key: str, do: Callable[[], None]) -> None:
        """Call *do* in a thread when *key* has one free. An exception of *do* is ignored."""
        with self._lock:
            if self._turns[key] >= self._of_one:
                self._waiting[key].append(do)
                return
            self._turns[key] += 1
        self._begin(key, do)

    def close(self) -> None:
        """Begin no more work, and wait for what runs."""
        with self._lock:
            self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, key: str, do: Callable[[], None]) -> None:
        try:
            self._pool.submit(self._in_turn, key, do)
        except RuntimeError:
            pass  # the pool is closed

    def _in_turn(self, key: str, do: Callable[[], None]) -> None:
        """Call *do*, and then begin the next work of the key."""
        try:
            do()
        finally:
            with self._lock:
                after = self._waiting[key].popleft() if self._waiting[key] else None
                if not self._waiting[key]:
                    del self._waiting[key]
                if after is None:
                    self._turns[key] -= 1
                    self._turns += Counter()  # removes keys with 0
                is_over = self._over
            if after is not None and not is_over:
                self._begin(key, after)
