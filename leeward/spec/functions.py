"""The functions of a client that a job may call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.dataclass import dataclass

if TYPE_CHECKING:
    from leeward.daemon.serving.functions import JobExchange

#: Seconds that a call waits for its answer: the default, and the most that a client can ask for.
WAIT_S, MAX_WAIT_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Functions:
    names: tuple[str, ...]  # the names under which the job finds the functions
    exchange: JobExchange  # takes the calls
    wait: float = WAIT_S  # seconds that one call may wait for its answer
    standing: float = 0.0  # seconds in all for which a waiting call stops the job's time limit; 0: it never does
