"""
Decisions about several requests at once, which can be taken back for HOLD_S seconds before they are made.

Holds:     nothing is carried out before the time is over. If the service ends meanwhile, nothing was decided.
Threads:   any may call; each decision is made by a thread of its own.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.errors import Busy, LeewardError

#: Seconds in which a decision can be taken back, and decisions that wait at once.
HOLD_S, MOST_HELD = 5.0, 32


@dataclass(frozen=True, slots=True)
class HeldDecision:
    """A decision that isn't made yet."""

    key: str  # by which it is taken back
    numbers: tuple[int, ...]  # the ids of the requests
    approved: bool
    by: str
    until: float  # seconds since the epoch


class HeldDecisions:
    """The decisions that wait; *seconds* is how long each does."""

    def __init__(self, queue: ApprovalQueue, seconds: float = HOLD_S) -> None:
        self._queue, self.seconds = queue, seconds
        self._lock, self._is_over = threading.Lock(), False
        self._held = dict[str, tuple[HeldDecision, threading.Timer]]()

    def hold(self, numbers: Sequence[int], approved: bool, by: str) -> HeldDecision:
        """Decide about *numbers* when the time is over; Busy if MOST_HELD decisions wait."""
        made = HeldDecision(secrets.token_urlsafe(9), tuple(numbers), approved, by, time.time() + self.seconds)
        timer = threading.Timer(self.seconds, self._make, [made])
        timer.daemon = True
        with self._lock:
            if self._is_over or len(self._held) >= MOST_HELD:
                raise Busy(f"{MOST_HELD} decisions wait already, or the service ends", self.seconds)
            self._held[made.key] = made, timer
        timer.start()
        return made

    def undo(self, key: str) -> HeldDecision | None:
        """Take a decision back; None if there is none that waits."""
        with self._lock:
            held, timer = self._held.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return held

    def all(self) -> list[HeldDecision]:
        """The decisions that wait, the oldest first."""
        with self._lock:
            return [held for held, _ in self._held.values()]

    def close(self) -> None:
        """Take all back, and hold no more."""
        with self._lock:
            self._is_over = True
        for held in self.all():
            self.undo(held.key)

    def _make(self, held: HeldDecision) -> None:
        with self._lock:
            if self._held.pop(held.key, None) is None:
                return  # it was taken back
        try:
            self._queue.decide(held.numbers, held.approved, held.by)
        except LeewardError:
            pass  # the service ends, so nothing is decided
