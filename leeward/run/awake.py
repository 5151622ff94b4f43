"""
Which live sandboxes hold all their descriptors: those that were used in the last seconds, and a bounded number of them.

Runs in:   the daemon, on the reactor's thread.

Theory of operation. An open sandbox holds some forty descriptors, and needs thirteen of them while it has no request.
A sandbox without a request for QUIET_S, or one that is displaced by others, rests: its worker gives up its other
runners and what only jobs need, and closes the files of the sandbox's groups. The next request opens these files again,
which takes some 100 us.
"""

from __future__ import annotations

from functools import partial

from leeward.loop.reactor import Reactor, Timer
from leeward.protocols import Protocol

QUIET_S = 2.0


class Sleeper(Protocol):
    def rest(self) -> None: ...


class Awake:
    """
    Args:
        most: the number of sandboxes that may be awake at once; 0 for no bound.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._until: dict[Sleeper, float] = {}  # those used longest ago first
        self._timer: Timer | None = None

    def stir(self, reactor: Reactor, sandbox: Sleeper) -> None:
        """Note that *sandbox* has got a request. While more than `most` are awake, the one used longest ago has to rest."""
        self._until.pop(sandbox, None)
        self._until[sandbox] = reactor.now() + QUIET_S
        while 0 < self._most < len(self._until):
            self._rest()
        if self._timer is None:
            self._look_later(reactor)

    def forget(self, sandbox: Sleeper) -> None:
        self._until.pop(sandbox, None)

    def _rest(self) -> None:
        sandbox = next(iter(self._until))
        del self._until[sandbox]
        sandbox.rest()

    def _look_later(self, reactor: Reactor) -> None:
        due = next(iter(self._until.values()))
        self._timer = reactor.after(max(0.0, due - reactor.now()), partial(self._look, reactor))

    def broken(self, _error: Exception) -> None:
        """For the barrier: a check has failed. The next request to a sandbox schedules another one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _look(self, reactor: Reactor) -> None:
        self._timer = None
        try:
            while self._until and next(iter(self._until.values())) <= reactor.now():
                self._rest()
        finally:
            if self._until:
                self._look_later(reactor)
