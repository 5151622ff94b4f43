"""
The one process of a live sandbox that is started before its request comes, and waits for its standard input.

Runs in:   the daemon, on the reactor's thread.
Trust:     none in the process, nor in those beside it, which may end it or write in its place.

Theory of operation. A request that says so (`warm`) is for a program that does nothing before it has read all of its
stdin. When such a program has ended, another one is started with the same words, folder and variables, and nobody's
stdin. The next request that asks for the same is given it: its limits and its result's times begin there. One that has
written or ended before is given to nobody; the request starts a process then, as if none had waited. It is ended
after HOLD_S, for a request of another kind, and with its sandbox; and no more are started in a sandbox where
MOST_FAILED in a row have ended by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from leeward.errors import Bug, LeewardError
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer
from leeward.run.report import Report
from leeward.sandboxes.place import Child, ProgramExit
from leeward.spec.limits import Limits

#: Seconds that one waits.
HOLD_S = 30.0
MOST_FAILED = 2

#: What a sandbox has to have at least: a Node takes 40 MiB and eleven processes of that while it waits.
ROOM_MEMORY, ROOM_PROCESSES = 256 << 20, 48

OnOutput = Callable[[int, bytes], None]
OnExit = Callable[[ProgramExit], None]


def has_room(limits: Limits) -> bool:
    """
    May one wait in a sandbox of these limits?
    """
    return limits.memory >= ROOM_MEMORY and limits.processes >= ROOM_PROCESSES


class WarmProcess:
    """
    Args:
        what: what tells it from others.
        spoilt: is called when it is of no use any more, unless somebody has it.

    """

    def __init__(self, what: Hashable, spoilt: Callable[[WarmProcess], None]) -> None:
        self.what, self._spoilt = what, spoilt
        self._child: Child | None = None
        self._over = False
        self._to: tuple[OnOutput, OnExit] | None = None

    def begin(self, start: Callable[[OnOutput, OnExit], Child]) -> None:
        """
        Raises:
            LeewardError: *start* can't make it.
        """
        self._child = start(self._output, self._exited)

    def _output(self, stream: int, data: bytes) -> None:
        if self._to is not None:
            self._to[0](stream, data)
        elif data:
            self._spoilt(self)

    def _exited(self, how: ProgramExit) -> None:
        self._over = True
        if self._to is not None:
            self._to[1](how)
        else:
            self._spoilt(self)

    def give(self, output: OnOutput, exited: OnExit) -> tuple[Child, float]:
        """
        Tell these of what it does from now on. Returns the process, and the processor seconds that it has had.
        """
        if self._child is None:
            raise Bug("a process that was never made is held ready")
        self._to = output, exited
        return self._child, self._child.spent()

    def end(self) -> None:
        if self._child is not None and not self._over:
            self._child.kill()


class WarmPlace:
    """
    For one of them, in a sandbox.
    """

    costs = "session"

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._held: WarmProcess | None = None
        self._timer: Timer | None = None
        self._failed = 0
        self._closed = False

    def take(self, what: Hashable) -> WarmProcess | None:
        """
        The one that waits for *what*, which is the caller's from now on.
        """
        held = self._held
        if held is None or held.what != what:
            return None
        self._forget()
        self._failed = 0
        return held

    def hold(self, what: Hashable, start: Callable[[OnOutput, OnExit], Child]) -> None:
        """
        Have *start* make one that waits for *what*. No request fails if it can't be made.
        """
        if self._closed or self._failed >= MOST_FAILED or (self._held is not None and self._held.what == what):
            return
        self.drop()
        made = WarmProcess(what, self._spoilt)
        try:
            made.begin(start)
        except LeewardError:
            return
        self._held = made
        self._timer = self._reactor.after(HOLD_S, self.drop)

    def follow(self, what: Hashable, start: Callable[[OnOutput, OnExit], Child],
               over: Callable[[Report], None]) -> Callable[[Report], None]:
        """
        Who gives a report to *over*, and holds another one once that is answered.
        """
        def then(report: Report) -> None:
            in_any_case(partial(over, report), partial(self._reactor.soon, partial(self.hold, what, start)))
        return then

    def _spoilt(self, one: WarmProcess) -> None:
        if one is self._held:
            self._failed += 1
            self.drop()

    def _forget(self) -> None:
        timer, self._timer, self._held = self._timer, None, None
        if timer is not None:
            timer.cancel()

    def drop(self) -> None:
        """
        End it, if there is one.
        """
        held = self._held
        self._forget()
        if held is not None:
            held.end()

    def close(self) -> None:
        """
        The sandbox is over, and all that was in it.
        """
        self._closed = True
        self._forget()

    def broken(self, _error: Exception) -> None:
        """
        For the barrier: a callback of ours has failed. No more are held.
        """
        self._failed = MOST_FAILED
        self.drop()
