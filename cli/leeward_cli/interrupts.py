"""
Ctrl-C while a job runs: the first one interrupts the job, the second one ends it; and the end by a signal.

Theory of operation. The handler sends a request for an interrupt, and the command goes on waiting for the job's result,
which has all of its output. While the command waits for no job, Ctrl-C has its usual effect. So has the third Ctrl-C,
because the daemon may not answer.
"""

from __future__ import annotations

import os

# `_signal` instead of `signal`, which builds enumerations and takes 2 ms.
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: The exit status after a job that was ended by Ctrl-C: 128 + SIGINT, as in a shell.
INTERRUPTED = 130

_HOW = ("interrupt", "kill")


class EndRequested(BaseException):
    """A signal has asked this process to end. The argument is the signal's number."""


class CtrlC:
    """A context in which SIGINT calls *job* with "interrupt", then "kill"; it returns whether there is a job for that."""

    def __init__(self, job: Callable[[str], bool]) -> None:
        self._job = job
        self._pressed = self._served = 0
        self._serving = False
        # In the background of a shell SIGINT is ignored, and stays ignored.
        self._ours = getsignal(SIGINT) is default_int_handler

    @property
    def killed(self) -> bool:
        return self._pressed > 1

    def __enter__(self) -> CtrlC:
        if self._ours:
            signal(SIGINT, self._arrived)
        return self

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        self._pressed += 1
        if self._serving:  # the handler is running already, and sees this one
            return
        self._serving = True
        try:
            while self._served < self._pressed:
                self._served += 1
                if self._served > len(_HOW) or not self._job(_HOW[self._served - 1]):
                    raise KeyboardInterrupt
        finally:
            self._serving = False

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal(SIGINT, default_int_handler)


def die_by(name: str) -> int:
    """End this process by the signal *name*, so that a shell sees the signal. Returns the exit status if that fails."""
    import signal  # here, since it builds enumerations, which takes 2 ms

    number = int(getattr(signal, name))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
