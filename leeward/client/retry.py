"""
Decides which failed calls are sent again, and when.

A job must not run twice unless its caller allows that. So a call is sent again only after an error which says that
nothing of the job has run (`may_have_run`), and only in three cases: the connection ended before the daemon took a byte
of the request; the daemon is stopping and refused it as shutting_down (over a new connection, where another daemon may
take it); the daemon has no room now and refused it as busy (after a pause, over the same connection). All other
refusals go to the caller; one that no worker came free in time as well, unless it is one of several jobs of its client.
"""

from __future__ import annotations

import os

from leeward.errors import Busy, DaemonAway, QueueTimeout, ShuttingDown

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from leeward.errors import DaemonError, Refused

#: Seconds for which a call without a deadline is repeated after its first refusal. A daemon stops within 5 s, and
#: starts within 1 s.
RETRY_S = 10.0
#: Seconds for which a call without a deadline is repeated after it was first refused as busy. They begin again whenever
#: a job of the same client ends, since that shows that the daemon makes progress.
BUSY_S = 30.0
#: How often one call is repeated at once because the daemon says that it may: it has made what the call needs.
_MOST_AT_ONCE = 3
#: The greatest number of connections that one call may lose. If more end, the listener closes every connection at once.
_MOST_LOST = 3
#: Seconds before the second attempt after a refusal. They are doubled each time, up to the second figure, and made
#: shorter by a random part, so that many clients don't return at the same moment.
_FIRST_S, _MOST_S = 0.02, 0.5


class Retry:
    """
    The attempts of one call.

    Args:
        wanted: repeat the call. Else only once, and only if no daemon has received a byte of the request, since the
            daemon may have closed a connection that was idle.
        idempotent: the job may run twice, so repeat the call also if the connection was lost before the answer.
        deadline: a time.monotonic() value, or None.
        busy: repeat the call also after it was refused as busy.
    """

    def __init__(self, wanted: bool, idempotent: bool, deadline: float | None, busy: bool = True) -> None:
        self._wanted = wanted
        self._busy = wanted and busy
        self._deadline = deadline
        self._refused: float | None = None
        self._idempotent = wanted and idempotent
        self._until = deadline
        self._lost = self._at_once = 0
        self._pause = _FIRST_S
        self._error: DaemonError | None = None
        self._may_have_run = False

    def pause(self, error: DaemonError, now: float, progress: float = float("-inf"), *, beside: bool = False) -> float | None:
        """
        Seconds until the next attempt after *error*; None if that is to be raised, with `may_have_run` for all
        attempts. *now* and *progress*, when the last job of the same client ended, are by time.monotonic(). *beside*:
        the client has others, which wait or run.
        """
        self._may_have_run = error.may_have_run = self._may_have_run or error.may_have_run
        self._error = error
        if isinstance(error, Busy) or (isinstance(error, QueueTimeout) and (beside or now - progress < BUSY_S)):
            return self._pause_for_room(error, now, progress)
        if isinstance(error, DaemonAway) and (self._idempotent or not error.may_have_run):
            self._lost += 1
            if self._lost > (_MOST_LOST if self._wanted else 1):
                return None
            pause = 0.0
        elif isinstance(error, ShuttingDown) and self._wanted:
            pause = self._next()
        else:
            return None
        if self._until is None:
            self._until = now + RETRY_S
        # Leave as much time for the answer as the pause takes: an attempt at the deadline would get no answer.
        return pause if now + 2 * pause < self._until else None

    def _pause_for_room(self, error: Refused, now: float, progress: float) -> float | None:
        if not self._busy:
            return None
        if self._refused is None:
            self._refused = now
        until = self._deadline if self._deadline is not None else max(self._refused, progress) + BUSY_S
        if error.retry_after == 0.0 and self._at_once < _MOST_AT_ONCE:
            self._at_once += 1
            return 0.0 if now < until else None
        # The pause is random, so that clients don't return all at once, but at least as long as the daemon has named.
        pause = (error.retry_after or 0.0) * (1 + os.urandom(1)[0] / 512) + self._next()
        return pause if now + pause < until else None

    def _next(self) -> float:
        pause = self._pause * (0.5 + os.urandom(1)[0] / 512)
        self._pause = min(2 * self._pause, _MOST_S)
        return pause

    def connect_error(self, error: DaemonError) -> DaemonError:
        """The error to raise if an attempt can't connect, and fails with *error*: that of the attempt before says more."""
        return error if self._error is None else self._error
