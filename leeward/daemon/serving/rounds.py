"""
Decides whose requests are served next: users take turns, so do a user's connections, and each gets a bounded amount.

Theory of operation. The cost of a request is counted in units: one for the request, and one for each UNIT bytes to be
decoded. A user has an allowance of units for each turn of the loop, whatever the number of connections. Requests are
served at once while some of it is left. The others wait in a ring of users, each with a ring of connections, and are
served in the following turns. A turn ends its round after ROUND_S, and the next goes on with the next user. So the
length of a turn grows with the number of flooding users and not with that of their connections.

A guest also has a budget of requests and bytes for each second. The daemon doesn't read from a guest whose budget is
used up: the kernel's buffers fill, and the guest waits. It is kept when the guest's last connection is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.reactor import NO_TIMER, Reactor

#: Bytes of a request that cost as much to decode as a small request costs in all.
UNIT = 1 << 13
#: Units in a turn of the loop: of the owner or root, and of a guest.
OWNERS_TURN, GUESTS_TURN = 32, 8
#: Turns for which a large request is paid, at most.
DEBT = 4
#: Requests of one connection, before another one of the same user has its turn.
STEP = 4
#: Seconds after which a round of waiting requests ends the turn; the last request may exceed it.
ROUND_S = 0.002
#: Units that a new connection costs, and that its end costs if it has broken the protocol.
CONNECTING = 8
#: Requests and bytes that a guest may send in a second, perhaps all at once.
RATE, BYTES = 5000, 64 << 20
#: Budgets of users without a connection that are kept before unneeded ones are removed.
_IDLE = 256


@dataclass(slots=True, eq=False)
class Budget:
    """
    The budget of one user: *turn* units for each turn of the loop, of which *left* were left in the last one that
    served the user, *turns*. A guest's is *rated*: *requests* and *size* are what was left of the bound for a second at
    *counted*, negative for a debt of at most one second. *waiting* are connections with requests by descriptor, the
    next one first.
    """

    turn: int
    rated: bool
    turns: int = -1
    left: int = 0
    requests: float = RATE
    size: float = BYTES
    counted: float = 0.0
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)
    connections: int = 0

    def refill(self, now: float) -> None:
        passed, self.counted = max(0.0, now - self.counted), now
        self.requests = min(RATE, self.requests + passed * RATE)
        self.size = min(BYTES, self.size + passed * BYTES)

    @property
    def debt(self) -> float:
        """Seconds from *counted* until a request may be served."""
        return max(0.0, -self.requests / RATE, -self.size / BYTES) if self.rated else 0.0


class Rounds:
    """The budgets of all users, and the requests that wait for their turn."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._budgets: dict[int, Budget] = {}
        self._ring: dict[Budget, None] = {}  # users with waiting requests; the first one is served next
        self._planned = False
        self._timer = NO_TIMER

    # --- the budgets of users -------------------------------------------------

    def budget(self, user: int, guest: bool) -> Budget:
        found = self._budgets.get(user)
        if found is None:
            if len(self._budgets) >= _IDLE:
                self._tidy()
            found = self._budgets[user] = Budget(GUESTS_TURN if guest else OWNERS_TURN, guest,
                                                 counted=self._reactor.now())
        return found

    def _tidy(self) -> None:
        now = self._reactor.now()
        for budget in self._budgets.values():
            budget.refill(now)
        self._budgets = {user: budget for user, budget in self._budgets.items()
                         if budget.connections or (budget.rated and (budget.requests < RATE or budget.size < BYTES))}

    # --- the costs of requests ------------------------------------------------

    def charge(self, budget: Budget, requests: int, size: int = 0, came: int = 0) -> None:
        """Count *requests* small ones; *size* bytes were decoded, and *came* bytes received or copied out of an arena."""
        budget.left = max(budget.left - requests - size // UNIT, -DEBT * budget.turn)
        if budget.rated:
            budget.requests = max(-RATE, budget.requests - requests)
            budget.size = max(-BYTES, budget.size - came)

    def may(self, budget: Budget) -> bool:
        """Whether a request of this user may be served in this turn of the loop."""
        turns = self._reactor.turns
        if budget.turns != turns:  # a large request is paid for in several turns
            budget.left = min(budget.turn, budget.left + budget.turn * (turns - budget.turns))
            budget.turns = turns
        return budget.left > 0 and not (budget.rated and self.exhausted(budget))

    def exhausted(self, budget: Budget) -> bool:
        """Whether this user's budget is used up, so that nothing should be read from the user's connections."""
        if not budget.rated or (budget.requests >= 0 <= budget.size):
            return False
        budget.refill(self._reactor.now())
        return budget.debt > 0

    # --- whose turn it is -----------------------------------------------------

    def later(self, budget: Budget, fd: int, serve: Callable[[], None]) -> None:
        """Call *serve* when it is the turn of the connection *fd*, unless the connection waits already."""
        if fd not in budget.waiting:
            budget.waiting[fd] = serve
            self._ring.setdefault(budget)
            self._plan()

    def forget(self, budget: Budget, fd: int) -> None:
        if budget.waiting.pop(fd, None) is not None and not budget.waiting:
            self._ring.pop(budget, None)

    def _plan(self) -> None:
        if self._planned or not self._ring:
            return
        wait = min(budget.debt for budget in self._ring)
        if not wait:
            self._planned = True
            self._timer.cancel()
            self._reactor.soon(self._round)
        elif not self._timer.is_set:
            self._timer = self._reactor.after(wait, self._again)

    def _again(self) -> None:
        now = self._reactor.now()
        for budget in self._ring:
            budget.refill(now)
        self._plan()

    def _round(self) -> None:
        self._planned = False
        until = self._reactor.now() + ROUND_S
        for budget in list(self._ring):
            while budget.waiting and self.may(budget):
                fd = next(iter(budget.waiting))
                self._reactor.barrier.call(budget.waiting.pop(fd))
                if self._reactor.now() >= until:
                    break
            self._ring.pop(budget, None)
            if budget.waiting:
                self._ring[budget] = None  # behind the others
            if self._reactor.now() >= until:
                break
        self._plan()

    def broken(self, _error: Exception) -> None:
        self._planned = False
        self._plan()

    def close(self) -> None:
        self._ring.clear()
        self._timer.cancel()


#: Bytes of unanswered requests that one guest may have. One request is accepted in any case.
GUEST_TAKEN = 256 << 20

#: The part that all connections of one guest together may have of the bounds on unfinished frames, results and request
#: arenas.
GUEST_SHARE = 4
#: The part of the bound on results that one connection may have.
CONNECTION_SHARE = 2


@dataclass(slots=True)
class Share:
    """
    What one user's connections share. *taken*: bytes of a guest's unanswered requests; *free*: no quota limits the
    user.
    """

    user: int
    guest: bool
    budget: Budget
    free: bool = False
    connections: int = 0
    held: int = 0
    arenas: int = 0
    sessions: int = 0
    taken: int = 0
    requests: int = 0  # bytes of request arenas
