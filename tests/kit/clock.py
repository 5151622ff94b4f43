"""A reactor as far as its time goes, which stands until a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leeward.daemon.loop.reactor import Timer


class Clock:
    def __init__(self, time: float = 0.0) -> None:
        self.time, self._timers = time, list[Timer]()

    @property
    def timers(self) -> list[Timer]:
        """What is to come, in the order in which it was asked for."""
        return [timer for timer in self._timers if timer.is_set]

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, call: Callable[[], Any]) -> Timer:
        self._timers.append(Timer(self.time + seconds, call))
        return self._timers[-1]

    def soon(self, call: Callable[[], object]) -> None:
        self.after(0.0, call)

    def step(self) -> None:
        """Go on to the next timer, and call it."""
        timer = min(self.timers, key=lambda each: each.when)
        self.time, call = max(self.time, timer.when), timer.call
        timer.cancel()  # as a reactor has it: what is called isn't set any more
        assert call is not None
        call()

    def pass_time(self, seconds: float) -> None:
        """Go on by so many seconds, and call what becomes due meanwhile."""
        until = self.time + seconds
        while any(timer.when <= until for timer in self.timers):
            self.step()
        self.time = until
