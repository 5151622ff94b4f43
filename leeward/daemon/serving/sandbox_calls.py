"""
The part of a connection that its requests about live sandboxes use, and those requests that wait.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leeward.daemon.config import Config
from leeward.daemon.serving.functions import Exchanges
from leeward.daemon.serving.home import Fetch, PoolPlace
from leeward.daemon.serving.parcel import Parcel
from leeward.errors import BadRequest, Refused
from leeward.loop.reactor import Reactor, Timer
from leeward.pool.sessions import Cancellable
from leeward.protocols import Protocol
from leeward.run.report import Report
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry
from leeward.spec.pool_key import PoolKey

#: Seconds after which a request that ends a sandbox is answered even if processes are left: before clients give up.
ENDING_S = 4.0


#: The limits that a request can set for a program.
_ADJUSTABLE = ("time", "output")


def check_limits(limits: Mapping[str, Any]) -> None:
    """
    Check the limits in a request for a process.

    Raises:
        BadRequest: one of the limits can't be set for a process.
    """
    for name in limits:
        if name not in _ADJUSTABLE:
            raise BadRequest(f"limit {name!r:.40} is the sandbox's, asked for when it is opened; a process in it"
                             f" can ask for {' and '.join(_ADJUSTABLE)}")


class SandboxOwner(Protocol):
    """The connection, as far as its requests about sandboxes use it."""

    @property
    def config(self) -> Config: ...
    @property
    def fd(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def guest(self) -> bool:
        """Whether the user is a guest, who is served as a member of the group."""

    def own(self, more: int) -> None:
        """Add *more* to the number of descriptors that wait for this client."""

    @property
    def fetch(self) -> Fetch: ...
    @property
    def exchanges(self) -> Exchanges: ...
    @property
    def most_sandboxes(self) -> int:
        """The most sandboxes that the user may have; 0 if only the daemon's bound holds."""

    def place(self, key: PoolKey) -> PoolPlace:
        """Return the object that serves the requests for another pool."""

    def wait(self, request: int, ticket: Cancellable) -> None: ...
    def answer(self, request: int, answer: Mapping[str, Any]) -> None: ...
    def refuse(self, request: int, why: Refused) -> None: ...
    def report(self, request: int, report: Report) -> None: ...
    def deliver(self, request: int, parcel: Parcel) -> None: ...
    def drop(self, request: int) -> None:
        """Forget the ticket of *request*, which is answered at once."""


class SandboxCall:
    """A request that waits for a sandbox, as a ticket: the sandbox isn't idle until the request is answered."""

    def __init__(self, desk: Desk, entry: RegistryEntry[Held], taken_back: Callable[[], object]) -> None:
        self._desk, self._entry, self.taken_back = desk, entry, taken_back
        self.over = False
        desk.busy(entry)

    def end(self) -> bool:
        """Mark the request as answered. Returns False if it was answered already."""
        if self.over:
            return False
        self.over = True
        self._desk.free(self._entry)
        return True

    def cancel(self) -> None:
        if self.end():
            self.taken_back()


class SandboxOpening:
    def __init__(self, give_up: Callable[[], None]) -> None:
        self.cancel = give_up


class SandboxEnding:
    """
    A request that ends a sandbox, as a ticket. It is answered once, when no process of the sandbox is left, and at the
    latest after `ENDING_S`, because a process can hang in the kernel while its file system doesn't answer.
    """

    costs = "connection"

    def __init__(self, reactor: Reactor, answer: Callable[[], None]) -> None:
        self._answer: Callable[[], None] | None = answer
        self._timer: Timer | None = reactor.after(ENDING_S, self.gone)

    def gone(self) -> None:
        answer = self._answer
        self.cancel()
        if answer is not None:
            answer()

    def cancel(self) -> None:
        timer, self._timer, self._answer = self._timer, None, None
        if timer is not None:
            timer.cancel()

    def broken(self, _error: Exception) -> None:
        """For the barrier: the answer couldn't be sent, so the connection is closed."""
        self.cancel()
