"""
The functions of a client that a job may call.

Runs in:   client and daemon; pure data and declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.dataclass import dataclass

if TYPE_CHECKING:
    from leeward.daemon.serving.waiting import JobExchange

#: Seconds that a call waits for its answer: the default, and the most that a client can ask for.
WAIT_S, MAX_WAIT_S = 60.0, 3600.0


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
    exchange: JobExchange
    wait: float = WAIT_S
    standing: float = 0.0
