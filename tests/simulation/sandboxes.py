"""
A runner that is kept open, and the programs in it, in a world where nothing is real.

Its worker and its first process are the simulation's own, as a session's are: what befalls them befalls the sandbox.
A program is a timer; what it does is in its argv: seconds, bytes of output, and how it ends.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leeward.daemon.run.launch import Command, Exit
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.verdict import Stop
from leeward.daemon.worker.worker import Worker
from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from .world import World

_CHUNK = 60_000


class Child:
    """One program."""

    stdin = -1
    terminal = False
    ends = math.inf
    ended_by_watchdog: Stop | None = None  # there is none here

    def __init__(self, place: Place, number: int, what: Command, on_output: Callable[[int, bytes], None],
                 on_exit: Callable[[Exit], None]) -> None:
        self._place, self.number, self.pid = place, number, number + 1
        self._on_output, self._on_exit = on_output, on_exit
        _, seconds, out, self._end = (word.decode() for word in what.argv)
        self._left = int(out)
        self._paused: set[int] = set()
        self._killed = self._over = False
        self._timer = place.world.reactor.after(float(seconds), self._go_on)

    def denied(self) -> dict[str, int]:
        return {}

    def spent(self) -> float:
        return 0.0

    def _soon(self) -> None:
        self._timer.cancel()
        self._timer = self._place.world.reactor.after(0.001, self._go_on)

    def _go_on(self) -> None:
        while self._left and 1 not in self._paused and not self._killed and not self._over:
            size = min(self._left, _CHUNK)
            self._left -= size
            self._on_output(1, bytes(size))
        if self._over:
            return
        if self._killed or self._end == "kill":
            self._exit(Exit(9))
        elif self._end == "missing":
            self._exit(Exit(127 << 8, errno.ENOENT, "exec"))
        elif not self._left:
            self._exit(Exit(0))

    def _exit(self, how: Exit) -> None:
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._place.processes.pop(self.number, None)
            self._on_exit(how)

    def lost(self) -> None:
        self._exit(Exit(None, reason="its runner was lost"))

    def close_stdin(self) -> None:
        return

    def signal(self, n: int) -> bool:
        return not self._over

    def kill(self) -> None:
        if not self._killed and not self._over:
            self._killed = True
            self._soon()

    def pause(self, stream: int) -> None:
        self._paused.add(stream)

    def gather(self) -> None: ...
    def slow(self) -> None: ...

    def resume(self, stream: int) -> None:
        self._paused.discard(stream)
        if not self._paused and not self._timer.is_set and not self._over:
            self._soon()


class Place:
    """With the interface of `leeward.daemon.run.live_runner.LiveRunner`."""

    def __init__(self, world: World, lost: Callable[[str], None]) -> None:
        self.world, self._lost = world, lost
        self.processes: dict[int, Child] = {}
        self.variables: dict[str, str] = {}
        self.lease: Lease | None = None
        self.number = self._last = 0
        self._over = False

    def start(self, what: Command, *, stdin: Any, on_output: Callable[[int, bytes], None],
              on_exit: Callable[[Exit], None]) -> Child:
        if self._over or self.world.host.fails("no descriptor"):
            raise LeewardError("it can't be started")
        self._last += 1
        child = self.processes[self._last] = Child(self, self._last, what, on_output, on_exit)
        return child

    def memory(self) -> int:
        return 1

    def withdraw(self) -> None:
        return

    def stir(self) -> None:
        return

    def usage(self) -> Usage:
        return Usage()

    def killed_unseen_from_now(self) -> Callable[[int], bool | None]:
        return lambda _most: None

    def ended(self, why: str) -> None:
        """For the lease: it is over."""
        self._over = True
        for child in list(self.processes.values()):
            child.lost()
        self._lost(why)

    def end(self, why: str) -> None:
        if not self._over and self.lease is not None:
            lease = self.lease
            self.world.reactor.soon(lambda: lease.end(why))


def open_place(world: World, worker: Worker, limits: Limits, lost: Callable[[str], None]) -> Place:
    """
    In place of Leasing.open.

    Raises:
        LeewardError: the runner is gone.
    """
    place = Place(world, lost)
    place.lease = worker.leasing.lease(limits, place.ended)
    return place
