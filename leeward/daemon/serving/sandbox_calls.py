"""
The part of a connection that its requests about live sandboxes use, and those requests that wait.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.loop.reactor import Reactor, Timer
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry
from leeward.spec.limits import OVERFLOW

#: Seconds after which a request that ends a sandbox is answered even if processes are left: before clients give up.
ENDING_S = 4.0


#: The limits that a request can set for a program.
_ADJUSTABLE = ("time", "output", OVERFLOW)


def check_limits(limits: Mapping[str, Any]) -> None:
    """
    Check the limits in a request for a process.

    Raises:
        BadRequest: one of the limits can't be set for a process.
    """
    for name in limits:
        if name not in _ADJUSTABLE:
            raise BadRequest(f"limit {name!r:.40} is the sandbox's, asked for when it is opened; a process in it"
                             f" can ask for {', '.join(_ADJUSTABLE)}")


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
