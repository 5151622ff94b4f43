"""
Notifies subscribers of decisions about requests.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from leeward.approvals.queue.requests import ApprovalRequest


class Notices:
    """
    Passes changed requests to subscribers, in the order of the changes. One thread at a time calls subscribers; a
    change that a subscriber makes is passed on after the present one.

    Args:
        lock: held while requests change.

    Attributes:
        failed: how many times a subscriber has raised an exception.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self.failed = lock, 0
        self._subscribers: list[Callable[[ApprovalRequest], None]] = []
        self._noted: deque[ApprovalRequest] = deque()
        self._passing = False

    def subscribe(self, subscriber: Callable[[ApprovalRequest], None]) -> Callable[[], None]:
        """Call *subscriber* with each request that changes from now on. Returns a function that ends this."""
        def end() -> None:
            with self._lock:
                self._subscribers.remove(subscriber)

        with self._lock:
            self._subscribers.append(subscriber)
        return end

    def note(self, requests: Iterable[ApprovalRequest]) -> None:
        """Note changed requests for the subscribers. The caller holds the lock."""
        if self._subscribers:
            self._noted.extend(requests)

    def pass_on(self) -> None:
        """Call the subscribers with what was noted. The caller doesn't hold the lock."""
        while True:
            with self._lock:
                if self._passing or not self._noted:
                    return
                self._passing = True
                request, subscribers = self._noted.popleft(), list(self._subscribers)
            for subscriber in subscribers:
                try:
                    subscriber(request)
                except Exception:
                    self.failed += 1  # it costs that subscriber this notice
            with self._lock:
                self._passing = False
