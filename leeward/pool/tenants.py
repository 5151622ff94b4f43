"""
The tenants of a pool: sessions and live sandboxes, each of which keeps a worker from one request to the next.

Runs in:   the daemon, on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.errors import BadRequest, Busy, LeewardError, Refused
from leeward.loop.barrier import in_any_case
from leeward.pool.admission import Admission
from leeward.pool.seats import Seat
from leeward.pool.sessions import PoolSession, sessions_of
from leeward.pool.workforce import Workforce
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.pool.pool import Pool


class Tenants:
    """
    Args:
        asked: the most sessions and sandboxes together; if it is negative, as many as the workers allow.
        name: of the pool, which is in refusals; "" for the daemon's first pool.

    Attributes:
        most: the most sessions and sandboxes that there may be together.
    """

    def __init__(self, pool: Pool, admission: Admission, workforce: Workforce, asked: int, name: str) -> None:
        self._name = name
        self._pool, self._admission, self._workforce = pool, admission, workforce
        self._sessions: set[PoolSession] = set()
        self._seats: set[Seat] = set()
        self.allow(asked)

    def allow(self, asked: int) -> None:
        """Change the bound. Sessions and sandboxes that are open stay open."""
        self.most = sessions_of(asked, self._workforce.size, self._workforce.room)

    def open_session(self, limits: Limits, opened: Callable[[Refused | None], None], queue_deadline: float,
                     user: int = 0, egress: Mapping[str, Any] | None = None) -> PoolSession:
        """
        Keep a worker for jobs of one client, as soon as one is free.

        Args:
            opened: called once, with None when the session has a worker, or with the reason why it gets none.
            egress: as for `PoolSession`.

        Raises:
            ShuttingDown, Busy, BadRequest: as `Pool.submit`; also Busy when there are as many as there may be.
        """
        self._check_room(1)
        session = PoolSession(self._pool, limits, user, egress)
        self._sessions.add(session)
        try:
            session.acquire(opened, queue_deadline)
        except LeewardError:
            session.close()
            raise
        return session

    def open_seat(self, limits: Limits, user: int, opened: Callable[[Any], None], lost: Callable[[str], None],
                  drained: Callable[[], None], seconds: float) -> Seat:
        """
        Keep a worker for a live sandbox, as soon as one is free; the arguments as for `Seat`.

        Raises:
            ShuttingDown, Busy, BadRequest: as `open_session`.
        """
        self._check_room(0)
        seat = Seat(self._pool, limits, user, opened, lost, drained)
        self._seats.add(seat)
        try:
            seat.acquire(seconds)
        except LeewardError:
            seat.close()
            raise
        return seat

    def _check_room(self, sessions: int) -> None:
        """
        Check that there is room for *sessions* more sessions, or, if that is 0, for a sandbox.

        Raises:
            Busy: there are as many sessions and sandboxes as there may be.
            BadRequest: this pool may have no session or sandbox at all.
        """
        count = self.sessions + self.seats
        bounds, own = self._workforce.bounds, self._workforce.size // 2  # so many have the pool's own workers
        dear = max(0, self.sessions + sessions - own)
        short = max(0, count - own) + (bounds.price - 1) * dear >= bounds.seats
        if count >= self.most or short:
            self._admission.refused += 1
            where, key = (f" in the pool {self._name!r}", "its `max`") if self._name else ("", "max_sessions")
            if not self.most:
                raise BadRequest(f"this daemon has no sessions{where}: of {self._workforce.size} workers it keeps none"
                                 f" for them ({key})")
            have = f"{self.sessions} sessions and {self.seats} sandboxes are open already{where}, all that"
            raise Busy(f"{have} there may be ({key})" if count >= self.most else
                       f"{have} this daemon has descriptors for (RLIMIT_NOFILE)")

    def forget_session(self, session: PoolSession) -> None:
        self._sessions.discard(session)

    def forget_seat(self, seat: Seat) -> None:
        self._seats.discard(seat)

    def drain(self) -> None:
        """Take the workers of sandboxes, and of sessions that have no job."""
        in_any_case(*(session.drain for session in list(self._sessions)), *(seat.drain for seat in list(self._seats)))

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    @property
    def seats(self) -> int:
        """The number of live sandboxes."""
        return len(self._seats)
