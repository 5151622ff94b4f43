"""
The end of a daemon that has a folder for sleeping sandboxes: each is put to sleep, for the daemon that comes next.

Theory of operation. One after the other, the users by turns, so that the memory of one is on disk before the next one's is
taken; but one that takes long keeps those of its own user waiting alone. What does something is tried again: code that runs
has the time of any drain, and is then interrupted, as by a person. What can't sleep, or isn't asleep when all time is over,
ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.sandboxes.registry import State
from leeward.daemon.sandboxes.sleeping import SleepStage
from leeward.errors import Busy, LeewardError, Refused, SnapshotFailed

if TYPE_CHECKING:
    from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes, SandboxEntry

#: Seconds that all of it may take, those of the drain included; from an interrupt until a sandbox that still does
#: something ends; and between two looks at it.
MOST_S, GRACE_S, _AGAIN_S = 60.0, 2.0, 0.02
#: Seconds for which others' sandboxes wait for one; and until its kernels and files have to be taken.
_LONG_S, _TAKEN_S = 1.0, 10.0


_LATE = "there was no time to put it to sleep"


class Retiring:
    costs = "session"

    def __init__(self, reactor: Reactor, desk: LiveSandboxes, seconds: float, done: Callable[[], None]) -> None:
        self._reactor, self._desk = reactor, desk
        self._done: Callable[[], None] | None = done
        now = reactor.now()
        self._interrupts, self._until = now + seconds, now + MOST_S
        self._left: deque[SandboxEntry] = deque()
        self._falling: dict[str, tuple[SandboxEntry, float]] = {}  # by their ids, and until when they are to be taken
        self._interrupted: set[str] = set()
        self._slept = 0
        self._timer = NO_TIMER

    def begin(self) -> None:
        users: dict[int, list[SandboxEntry]] = {}
        for entry in self._desk.all():
            users.setdefault(entry.user, []).append(entry)
        self._left.extend(entry for row in zip_longest(*users.values()) for entry in row if entry is not None)
        self._reactor.soon(self._next)

    def stop(self) -> None:
        """End what isn't asleep."""
        self._until = 0.0
        self._next()

    def _next(self) -> None:
        """Put the next sandbox to sleep that rests; wait if none of those that are left does."""
        self._timer.cancel()
        in_any_case(*(partial(self._desk.cannot_sleep, entry, _LATE) for entry, until in list(self._falling.values())
                      if self._is_late(entry, until)))
        for _ in range(len(self._left)):
            entry = self._left.popleft()
            try:
                if self._falls_asleep(entry):
                    self._timer = self._reactor.after(_LONG_S, self._next)
                    return
            except LeewardError as error:
                self._desk.cannot_sleep(entry, str(error))
        if self._left or self._falling:
            self._timer = self._reactor.after(_AGAIN_S, self._next)
            return
        done, self._done = self._done, None
        if done is not None:
            if self._slept:
                self._desk.tells("sandboxes sleep until the next daemon", sandboxes=self._slept)
            done()

    def _is_late(self, entry: SandboxEntry, until: float) -> bool:
        """Whether one that is falling asleep can't be waited for: code in it may see to it that it is never taken."""
        sleep, now = entry.sandbox.sleep, self._reactor.now()
        return now >= self._until or (now >= until and sleep is not None and sleep.stage is SleepStage.FALLING)

    def _falls_asleep(self, entry: SandboxEntry) -> bool:
        """Whether it is falling asleep, and `_next` comes after that; else it is done with, or tried again. LeewardError."""
        held, now = entry.sandbox, self._reactor.now()
        if held.sandbox.state is not State.OPEN:
            return False
        sleeps = held.sleep is not None and held.sleep.stage is SleepStage.ASLEEP
        if held.sleep is not None and sleeps and held.sleep.on_disk:
            self._slept += 1
            return False
        if held.sleep is not None and held.sleep.is_volatile:
            raise SnapshotFailed("it slept in memory")
        try:
            if now >= self._until:
                raise Busy(_LATE)
            if held.sleep is not None:
                raise Busy(f"it is {held.sleep.stage.value}")
            if any(entry.user == each.user for each, _ in self._falling.values()):
                self._left.append(entry)
                return False
            self._falling[entry.name] = entry, now + _TAKEN_S
            try:
                self._desk.pause(entry, partial(self._answered, entry))
            except BaseException:
                self._falling.pop(entry.name, None)
                raise
        except Busy:
            # One that is being written needs no more than time.
            if now >= (self._until if sleeps else min(self._interrupts + GRACE_S, self._until)):
                raise
            if now >= self._interrupts and entry.name not in self._interrupted:
                self._interrupted.add(entry.name)
                for kernel in list(held.sandbox.kernels.values()):
                    kernel.interrupt()
            self._left.append(entry)
            return False
        return True

    def _answered(self, entry: SandboxEntry, why: Refused | None) -> None:
        self._falling.pop(entry.name, None)
        if why is not None:
            self._desk.cannot_sleep(entry, str(why))
        else:
            self._left.append(entry)  # it is counted, or waited for
        self._reactor.soon(self._next)

    def broken(self, _error: Exception) -> None:
        """For the barrier: go on with the others."""
        if self._done is not None:
            self._timer = self._reactor.after(_AGAIN_S, self._next)
