"""
The additional time that a job gets to return its files when its time is up.

Runs in:   the daemon.

Theory of operation. At its time limit a job with `collect` gets the signal LATE (inside/answer.py), and the daemon
waits for the job's reply, COLLECT_S at most. Then the job is ended, with a reply or without, and the result says that
its time was up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leeward.loop.reactor import Reactor, Timer
from leeward.run.runner import Runner
from leeward.run.verdict import Stop
from leeward.wire import job as wire

if TYPE_CHECKING:
    from leeward.run.execution import Execution

#: Seconds that a job whose time is up has to return its files; and seconds until the signal is sent once more, because
#: CPython handles a signal that came right before a sleeping call only when that call ends.
COLLECT_S, _AGAIN_S = 0.5, 0.02


class Overtime:
    """The additional time of one job."""

    costs = "job"

    def __init__(self, reactor: Reactor, runner: Runner, execution: Execution) -> None:
        self._runner, self._execution = runner, execution
        self._timers: tuple[Timer, ...] = (reactor.after(_AGAIN_S, self._ask_again),
                                           reactor.after(COLLECT_S, partial(execution.stop, Stop.TIME)))

    def _ask_again(self) -> None:
        if not self._execution.over and not self._execution.stopped:
            self._runner.signal(wire.LATE)

    def close(self) -> None:
        """Stop waiting for the files."""
        for timer in self._timers:
            timer.cancel()

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the execution."""
        self._execution.broken(error)
