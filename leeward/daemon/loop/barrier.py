"""
The barrier: where an exception in a callback ends.

Theory of operation. Each callback of the loop has a holder: the object whose bound method it is, behind any
`functools.partial`. An Exception that leaves the callback is counted, logged with its traceback, and passed to the
holder's `broken`, which ends the thing that the holder runs: a job, session, worker, zygote or connection. A holder that
can't be ended (server, pool, engine) does in its `broken` what the callback should have done; one without that method
loses the one call. No exception reaches the loop, and those that `broken` raises are counted and logged like any other.
Where one holder calls another one's methods, the call goes through the barrier, too, so that an exception ends the holder
whose code failed. Only KeyboardInterrupt and SystemExit pass, which nothing here raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from leeward.base.points import point

#: What an exception can have cost: the `costs` of a holder. "nothing": no holder had to be ended.
COSTS = ("job", "session", "worker", "zygote", "broker", "connection", "nothing")

#: Seconds in which one callback's exceptions are logged once; the next line has their number.
TELL_S = 10.0
#: The number of callbacks' names that are remembered for TELL_S; all are leeward's functions.
_MOST_NAMES = 512
#: Frames of a traceback that are logged, the innermost ones.
_MOST_FRAMES = 16

#: Called with what the exception cost, the callback's name, the error, its traceback, and the number of times that it
#: was raised since the last call.
Tell = Callable[[str, str, Exception, list[str], int], None]


class Barrier:
    """Counts `faults`, calls `count` for each with one of COSTS, and `report` at most once in TELL_S for each callback."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.faults = 0
        self.report: Tell | None = None
        self.count: Callable[[str], None] | None = None
        self._logged: dict[str, tuple[float, int]] = {}  # by callback's name: time of the last log, number since

    def call(self, callback: Callable[..., object], *args: object) -> None:
        """Call *callback*; its Exception ends here."""
        try:
            callback(*args)
        except Exception as error:
            self.caught(callback, error)

    def caught(self, callback: Callable[..., object], error: Exception) -> None:
        """Handle *error*, which *callback* has raised: note it, and call `broken` of the callback's holder."""
        self.note(callback, error)
        broken = getattr(owner_of(callback), "broken", None)
        if broken is not None:
            try:
                broken(error)
            except Exception as another:
                self.note(broken, another)

    @point("barrier.note")
    def note(self, callback: Callable[..., object], error: Exception) -> None:
        """Count and report *error*, and end nothing."""
        self.faults += 1
        try:
            cost = getattr(owner_of(callback), "costs", "nothing")
            if self.count is not None:
                self.count(cost)
            name = name_of(callback)
            now = self._now()
            when, since = self._logged.get(name, (-TELL_S, 0))
            if now - when < TELL_S:
                self._logged[name] = when, since + 1
                return
            if len(self._logged) >= _MOST_NAMES:
                self._logged.clear()
            self._logged[name] = now, 0
            if self.report is not None:
                self.report(cost, name, error, trace_of(error), since + 1)
        except Exception:  # the error can't be reported, but it was counted
            pass

    def steps(self, *steps: Callable[[], object]) -> None:
        """Call every step, even if an earlier one raises. Exceptions go through the barrier."""
        for step in steps:
            try:
                step()
            except Exception as error:
                self.note(step, error)


def in_any_case(*steps: Callable[[], object]) -> None:
    """Call every step, even if an earlier one raises; raise its exception afterwards, or an ExceptionGroup of several."""
    errors: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            errors.append(error)
    if len(errors) > 1:
        raise ExceptionGroup("several steps failed", errors)
    if errors:
        raise errors[0]


def nothing(*_: object) -> None:
    """The callback where nobody has to be called."""


def owner_of(callback: object) -> Any:
    """The object whose bound method *callback* is; None for a plain function."""
    while isinstance(callback, partial):
        callback = callback.func
    return getattr(callback, "__self__", None)


def name_of(callback: object) -> str:
    """The name of *callback* for people, such as "Worker._on_message"."""
    while isinstance(callback, partial):
        callback = callback.func
    holder = getattr(callback, "__self__", None)
    name = getattr(callback, "__name__", type(callback).__name__)
    return str(name) if holder is None else f"{type(holder).__name__}.{name}"


def trace_of(error: BaseException) -> list[str]:
    """The places of *error*'s traceback: file, line and function of each frame, the innermost last."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    found: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        found.append(_place(trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return found[-_MOST_FRAMES:]


def trace_of_frame(frame: FrameType | None) -> list[str]:
    """As `trace_of`, for a running thread whose innermost frame is *frame*."""
    found: list[str] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found[::-1]


def _place(code: CodeType, line: int) -> str:
    return f"{'/'.join(code.co_filename.split('/')[-3:])}:{line} {code.co_name}"
