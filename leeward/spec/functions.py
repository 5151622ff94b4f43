"""
The functions of a client that a job may call.

Runs in:   client and daemon; pure data and declarations.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.dataclass import dataclass
from leeward.protocols import Protocol

#: Seconds that a call waits for its answer unless the client says otherwise, and at most.
WAIT_S, MAX_WAIT_S = 60.0, 3600.0


class Exchange(Protocol):
    """
    Where the calls of one job go, and its answers come from. `run/functions.py` has the other side.
    """

    def begin(self, answer: Callable[[int, bool, bytes], bool], broken: Callable[[], None]) -> None:
        """
        The job runs from now on.

        Args:
            answer: takes the answer to a call: its number, whether it is an exception, its body. Does the call wait?
            broken: is told that a call's body was none.
        """

    def called(self, number: int, name: str, body: bytes) -> None:
        """
        The job has called the function *name*.
        """

    def withdrawn(self, number: int) -> None:
        """
        That call waits no more.
        """

    def ended(self) -> None:
        """
        The job runs no more.
        """


@dataclass(frozen=True, slots=True)
class Functions:
    """
    What one job may call.

    Attributes:
        names: of the functions, under which the job finds them.
        exchange: where the calls go.
        wait: seconds that one call may wait for its answer.
        standing: seconds that the job's time limit may stand still in all, while a call waits. 0: it runs on.
    """

    names: tuple[str, ...]
    exchange: Exchange
    wait: float = WAIT_S
    standing: float = 0.0
