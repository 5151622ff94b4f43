"""
Notifies subscribers of decisions about requests.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from leeward.approvals.requests import ApprovalRequest


class Notices:
    """
    What happened, in order, for each subscriber. One thread at a time passes it on; a subscriber may call what notes
    more, and that follows.

    Args:
        lock: under which things happen.

    Attributes:
        failed: how many times a subscriber has raised an exception.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self.failed = lock, 0
        self._subscribers: list[Callable[[ApprovalRequest], None]] = []
        self._noted: deque[ApprovalRequest] = deque()
        self._passing = False

    def subscribe(self, told: Callable[[ApprovalRequest], None]) -> Callable[[], None]:
        def end() -> None:
            with self._lock:
                self._subscribers.remove(told)

        with self._lock:
            self._subscribers.append(told)
        return end

    def note(self, requests: Iterable[ApprovalRequest]) -> None:
        """
        With the lock.
        """
        if self._subscribers:
            self._noted.extend(requests)

    def pass_on(self) -> None:
        """
        Without the lock.
        """
        while True:
            with self._lock:
                if self._passing or not self._noted:
                    return
                self._passing = True
                request, told = self._noted.popleft(), list(self._subscribers)
            for each in told:
                try:
                    each(request)
                except Exception:
                    self.failed += 1  # it costs that subscriber this notice
            with self._lock:
                self._passing = False
