"""
Connections whose jobs the fast path refuses by itself, because they send far more jobs than there are workers for.

Runs in:   the daemon, and `leeward run`.

Theory of operation. To refuse a job in Python costs as much as to read its request, and a job that has waited in the
queue is started by Python, too. While an overload is dense (`Backlog.dense`), the next request arrives soon after a
worker comes free, so a queue gains nothing. A connection that was refused MOST times within LAPSE_S seconds is then
*shed*: the fast path gives its next request of code alone to a runner on offer, or refuses it, and Python isn't called.
A connection that is refused less often stays in the queue, whose jobs come before those of the fast path.

The fast path doesn't know whose turn it is. So no connection is shed while jobs of two users are refused. And it has
runners only where they are offered to it, which not every host and configuration allows. So no connection is shed
before a runner was offered, nor after a look that found no further offer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leeward.errors import Busy
from leeward.loop.barrier import in_any_case
from leeward.loop.fast_path import FastPath
from leeward.loop.reactor import Reactor, Timer
from leeward.pool.backlog import Backlog

#: A connection is shed after MOST refusals within LAPSE_S seconds, and while its refusals continue at that rate.
MOST, LAPSE_S = 8, 0.5


class Shedding:
    """
    Args:
        fast_path: of this pool's jobs, if they have one now.
    """

    def __init__(self, reactor: Reactor, backlog: Backlog, fast_path: Callable[[], FastPath | None]) -> None:
        self._reactor, self._backlog, self._fast_path = reactor, backlog, fast_path
        self._refusals: dict[int, int] = {}  # since the last look, by the connection's descriptor
        self._connections: set[int] = set()  # that are shed
        self._user: int | None = None  # whose job was the last one refused
        self._timer: Timer | None = None
        self._offered = self._stale = 0  # runners, at the last look, and at the last one that found no further offer

    @property
    def on(self) -> bool:
        """Whether any connection is shed."""
        return bool(self._connections)

    def quiet(self, connection: int) -> bool:
        """Whether no job of this connection was refused recently."""
        return connection not in self._refusals

    def refused(self, user: int, connection: int, why: Busy, now: float) -> None:
        """Record that the backlog has refused a job that *user* has sent by *connection*."""
        self.count(connection, 1)
        if self._timer is None:
            self._timer = self._reactor.after(LAPSE_S, self._look)
        if user != self._user:
            self._unshed(set(self._connections))
            self._user = user
            return
        fast_path = self._fast_path()
        if (fast_path is None or not connection or connection in self._connections
                or self._refusals[connection] < MOST or fast_path.offered == self._stale
                or not self._backlog.dense(now)):
            return
        if not self._connections:
            self._offered = fast_path.offered
            fast_path.refuse_with(why)
        self._connections.add(connection)
        fast_path.shed(connection, True)

    def count(self, connection: int, more: int) -> None:
        """Record that *more* further jobs of this connection were refused."""
        self._refusals[connection] = self._refusals.get(connection, 0) + more

    def forget(self, connection: int) -> None:
        """
        Forget a connection that was closed, because the next one may have its number. Its stream, which knew that the
        connection was shed, is gone.
        """
        self._refusals.pop(connection, None)
        self._connections.discard(connection)

    def _look(self) -> None:
        self._timer = None
        fast_path = self._reactor.fast_path
        offered = 0 if fast_path is None else fast_path.offered
        if self._connections and offered == self._offered:
            self._stale = offered
        self._offered = offered
        lasts = self._stale != offered and self._backlog.dense(self._reactor.now())
        self._unshed({fd for fd in self._connections if not lasts or self._refusals.get(fd, 0) < MOST})
        self._refusals.clear()
        if self._connections:
            self._timer = self._reactor.after(LAPSE_S, self._look)

    def stop(self) -> None:
        """Shed no connection any more. May be called repeatedly."""
        self._refusals.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._unshed(set(self._connections))

    def _unshed(self, connections: set[int]) -> None:
        self._connections -= connections
        loop = self._reactor.fast_path
        if loop is not None:
            in_any_case(*(partial(loop.shed, fd, False) for fd in connections))

    def broken(self, _error: Exception) -> None:
        """For the barrier: shed no connection any more."""
        self.stop()
