"""A reactor as far as its time goes, which stands until a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Clock:
    """
    Attributes:
        timers: what is due, and when.
    """

    def __init__(self, time: float = 0.0) -> None:
        self.time, self.timers = time, list[tuple[float, Callable[[], object]]]()

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, call: Callable[[], object]) -> Any:
        timer = (self.time + seconds, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def soon(self, call: Callable[[], object]) -> None:
        self.after(0.0, call)

    def step(self) -> None:
        """Go on to the next timer, and call it."""
        timer = min(self.timers, key=lambda each: each[0])
        self.timers.remove(timer)
        self.time = max(self.time, timer[0])
        timer[1]()

    def pass_time(self, seconds: float) -> None:
        """Go on by so many seconds, and call what becomes due meanwhile."""
        until = self.time + seconds
        while any(due <= until for due, _ in self.timers):
            self.step()
        self.time = until
