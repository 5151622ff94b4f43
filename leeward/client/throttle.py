"""
How many requests of one connection are in flight: no more than the daemon takes.

Runs in:   the asyncio client; pure but for its futures. All calls are of one event loop.

Theory of operation. The daemon has two bounds. The first is on requests of one connection. The client asks for it
(`learn`) when it has more calls than every daemon takes. The second is on the jobs that may
wait for its workers. It depends on all clients and on how long jobs take, so it isn't known: a job beyond it is
refused as busy. So the gate begins with two jobs for each worker, and admits one more for each that was served, until
one is refused. Then it admits as many as were in flight beside the refused one, but at least as many as there are
workers, and one more after that many were served. Further calls wait here, first come, first served. A job that was
refused is sent before those that were never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: Requests of one connection that every daemon takes; docs/wire.md.
LEAST = 16
#: Requests that are never held back: the end of a session, an interrupt.
_KEPT = 4


class Gate:
    """
    The entrance to one connection.

    Args:
        adapts: hold jobs back after one was refused as busy. Without it only the bound on requests is kept.

    Attributes:
        jobs: those that are on their way and aren't of a session.
        progress: when the last of them was answered by a result, by time.monotonic; minus infinity before.
    """

    def __init__(self, adapts: bool = True) -> None:
        self._adapts = adapts
        self._most = LEAST - _KEPT  # of all requests
        self._window = float(self._most)  # of jobs
        self._least = 1
        self._was_refused = self._shut = False
        self._held = self.jobs = 0
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._known = False
        self.progress = float("-inf")

    @property
    def curious(self) -> bool:
        """
        Whether the daemon has to be asked for its bound.
        """
        return not self._known and self._held >= self._most

    def learn(self, most: int, workers: int) -> None:
        """
        The daemon takes *most* requests of this connection at once, and has so many workers.
        """
        self._known = True
        self._most = max(most, LEAST) - _KEPT
        self._least = min(workers, self._most)
        self._window = min(2.0 * workers, self._most) if self._adapts else float(self._most)
        self._let_in()

    async def acquire(self, *, job: bool, first: bool = False) -> None:
        """
        Wait until one more request may be sent. `release` has to follow.

        Args:
            job: it is a job outside of a session.
            first: it was refused before.
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
                self.release(job=job)  # it was let in, in the same turn of the loop
            raise

    def release(self, *, job: bool, refused: bool = False) -> None:
        """
        A request was answered, or isn't waited for any more.

        Args:
            refused: it found no room. No other job is let in before one that is on its way has left.
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
        """
        A job was answered by a result.
        """
        self.progress = now
        more = 1 / self._window if self._was_refused else 1.0
        self._window = min(self._window + more, float(self._most))

    def close(self, error: Callable[[], BaseException]) -> None:
        """
        The connection is over: each call that waits gets a new *error*.
        """
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
        """
        Let in whoever has room, in order; a session's job may pass jobs that have none.
        """
        passed: list[tuple[asyncio.Future[None], bool]] = []
        while self._waiting and self._held < self._most:
            future, job = self._waiting.popleft()
            if future.done():  # cancelled; its caller takes note
                passed.append((future, job))
            elif self._room(job):
                self._take(job)
                future.set_result(None)
            else:
                passed.append((future, job))
                if all(one for _, one in self._waiting):
                    break
        self._waiting.extendleft(reversed(passed))
