"""
The functions of a client that a job may call.

Runs in:   client and daemon; pure data and declarations.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.dataclass import dataclass
from leeward.protocols import Protocol

#: Seconds that a call waits for its answer: the default, and the most that a client can ask for.
WAIT_S, MAX_WAIT_S = 60.0, 3600.0


class Exchange(Protocol):
    """The client's side of one job's calls: takes the calls, and gives the answers. `run/functions.py` has the other side."""

    def begin(self, answer: Callable[[int, bool, bytes], bool], broken: Callable[[], None]) -> None:
        """
        Called when the job begins.

        Args:
            answer: to be called with the answer to a call: its number, whether it is an exception, and its body.
                Returns whether the call still waits.
            broken: to be called if a call's body is malformed.
        """

    def called(self, number: int, name: str, body: bytes) -> None:
        """Called when the job has called the function *name*."""

    def withdrawn(self, number: int) -> None:
        """Called when call *number* doesn't wait for an answer any more."""

    def ended(self) -> None:
        """Called when the job has ended."""


@dataclass(frozen=True, slots=True)
class Functions:
    """
    The functions that one job may call.

    Attributes:
        names: the names under which the job finds the functions.
        exchange: takes the calls.
        wait: seconds that one call may wait for its answer.
        standing: seconds in all for which the job's time limit is stopped while a call waits. 0: it is never stopped.
    """

    names: tuple[str, ...]
    exchange: Exchange
    wait: float = WAIT_S
    standing: float = 0.0
