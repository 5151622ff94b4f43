"""
Bounds the number of requests in flight on one connection of the asyncio client by what the daemon accepts.

Theory of operation. The daemon has two bounds. The first is on requests of one connection; the client asks for it
(`learn`) when it has more calls than every daemon accepts. The second is on the jobs that may wait for workers. The
client can't know it, as it depends on all clients and on how long jobs take: a job beyond it is refused as busy. So the
gate begins with two jobs for each worker, or as many as the daemon may run at once, and admits one more for each job
that was served, until one is refused. Then it admits as many as were in flight beside that, but at least as many as
there are workers, and one more each time that as many were served. Further calls wait, first come, first served; but a
job that was refused goes first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: Requests of one connection that every daemon accepts; docs/wire.md.
LEAST = 16
#: The number of requests kept free for those that never wait: the end of a session, an interrupt.
_KEPT = 4


class Gate:
    """
    Admits the requests of one connection.

    Args:
        adapts: lower the bound on jobs after a job was refused as busy. If False, only the bound on requests is kept.

    Attributes:
        known: whether the daemon's bounds are known.
        jobs: how many jobs outside of sessions are in flight.
        progress: when the last job was answered by a result, by time.monotonic(); minus infinity before the first.
    """

    def __init__(self, adapts: bool = True) -> None:
        self._adapts = adapts
        self._most = LEAST - _KEPT  # the bound on all requests
        self._window = float(self._most)  # the bound on jobs outside of sessions
        self._least = 1
        self._was_refused = self._shut = False
        self._held = self.jobs = 0
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()
        self.known = False
        self.progress = float("-inf")

    @property
    def half(self) -> int:
        """Half of the requests that the daemon takes over this connection, as far as its bound is known."""
        return (self._most + _KEPT) // 2

    @property
    def needs_bounds(self) -> bool:
        """Whether the daemon should be asked for its bounds."""
        return not self.known and self._held >= self._most

    def learn(self, most: int, workers: int, jobs: int = 0) -> None:
        """
        Set the daemon's bounds: *most* requests of this connection at once, the number of its *workers*, and how many
        *jobs* it may run at once.
        """
        self.known = True
        self._most = max(most, LEAST) - _KEPT
        self._least = min(workers, self._most)
        self._window = min(max(2.0 * workers, jobs), self._most) if self._adapts else float(self._most)
        self._let_in()

    async def acquire(self, *, job: bool, first: bool = False) -> None:
        """
        Wait until a request may be sent, *first* before others; call `release` then. A *job* is one outside of a
        session.
        """
        if not self._waiting and self._room(job):
            self._take(job)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((future, job))
        else:
            self._waiting.append((future, job))
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._waiting.remove((future, job))
            elif future.exception() is None:
                self.release(job=job)  # admitted in the same iteration of the loop as the cancellation
            raise

    def release(self, *, job: bool, refused: bool = False) -> None:
        """
        Count out a request, and admit others; after one that was *refused* as busy no job before one in flight has
        ended.
        """
        self._held -= 1
        self.jobs -= job
        refused = refused and self._adapts
        if refused:
            self._was_refused = True
            self._window = max(self._least, min(self._window, float(self.jobs)))
        if job:
            self._shut = refused and self.jobs > 0
        self._let_in()

    def served(self, now: float) -> None:
        """Raise the bound on jobs, after a job was answered by a result at the time *now*, by time.monotonic()."""
        self.progress = now
        more = 1 / self._window if self._was_refused else 1.0
        self._window = min(self._window + more, float(self._most))

    def close(self, error: Callable[[], BaseException]) -> None:
        """Fail each call that waits with a new *error*, since the connection has ended."""
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error())

    def _room(self, job: bool) -> bool:
        return self._held < self._most and not (job and (self._shut or self.jobs >= int(self._window)))

    def _take(self, job: bool) -> None:
        self._held += 1
        self.jobs += job

    def _let_in(self) -> None:
        """Admit waiting requests in order, while there is room. A session's job may pass jobs that have to wait."""
        passed: list[tuple[asyncio.Future[None], bool]] = []
        while self._waiting and self._held < self._most:
            future, job = self._waiting.popleft()
            if future.done():  # cancelled; `acquire` removes it
                passed.append((future, job))
            elif self._room(job):
                self._take(job)
                future.set_result(None)
            else:
                passed.append((future, job))
                if all(one for _, one in self._waiting):
                    break
        self._waiting.extendleft(reversed(passed))
