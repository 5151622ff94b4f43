"""
The one process of a live sandbox that is started before its request comes, and waits for its standard input.

Theory of operation. A request with `warm` is for a program that does nothing before it has read all of its stdin. When
such a program has ended, another process is started with the same arguments, folder and variables; it waits, because
nobody writes to its stdin. The next request for the same program gets it, and its limits and times begin then. A
process that has written or ended before, as those beside it may have caused, is never given to a request, which then
starts one as usual. The waiting process is ended after HOLD_S, when one for another program takes its place, and with
its sandbox. No more are started where MOST_FAILED in a row have written or ended before their request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.run.launch import Exit
from leeward.daemon.run.report import Report
from leeward.errors import Bug, LeewardError
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.daemon.run.live_process import LiveProcess

#: Seconds that a process waits, at most.
HOLD_S = 30.0
MOST_FAILED = 2

#: The limits that a sandbox must have at least, so that a process waits in it. A Node that waits takes 40 MiB and
#: eleven processes of these limits.
ROOM_MEMORY, ROOM_PROCESSES = 256 << 20, 48

OnOutput = Callable[[int, bytes], None]
OnExit = Callable[[Exit], None]


#: The same for an interpreter, which takes some 3 MiB and one process.
ROOM_INTERPRETER = 64 << 20, 8


def has_room(limits: Limits, memory: int = ROOM_MEMORY, processes: int = ROOM_PROCESSES) -> bool:
    """Whether the limits of a sandbox leave room for a process that waits."""
    return limits.memory >= memory and limits.processes >= processes


class WarmProcess:
    """
    A process that was started before its request, for *what* (arguments, folder, variables) has to be equal in it.
    *spoilt* is called when it has written or ended before.
    """

    def __init__(self, what: Hashable, spoilt: Callable[[WarmProcess], None]) -> None:
        self.what, self._spoilt = what, spoilt
        self._child: LiveProcess | None = None
        self._over = False
        self._to: tuple[OnOutput, OnExit] | None = None

    def begin(self, start: Callable[[OnOutput, OnExit], LiveProcess]) -> None:
        """Start the process by *start*, or raise its LeewardError."""
        self._child = start(self._output, self._exited)

    def _output(self, stream: int, data: bytes) -> None:
        if self._to is not None:
            self._to[0](stream, data)
        elif data:
            self._spoilt(self)

    def _exited(self, how: Exit) -> None:
        self._over = True
        if self._to is not None:
            self._to[1](how)
        else:
            self._spoilt(self)

    def is_ready(self) -> bool:
        """False if it has ended, though nobody has told so yet. *spoilt* is called if it has written."""
        return self._child is not None and self._child.is_ready()

    def give(self, output: OnOutput, exited: OnExit) -> tuple[LiveProcess, float]:
        """Give the process to a request, which gets its output and end. Returns it, and its processor seconds so far."""
        if self._child is None:
            raise Bug("a process that was never made is held ready")
        self._to = output, exited
        return self._child, self._child.spent()

    def end(self) -> None:
        if self._child is not None and not self._over:
            self._child.kill()


class WaitingProgram:
    costs = "session"

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._held: WarmProcess | None = None
        self._timer = NO_TIMER
        self._failed = 0
        self._closed = False

    def take(self, what: Hashable) -> WarmProcess | None:
        """The process that waits for *what*, which the caller owns from now on; None if there is none."""
        held = self._held
        if held is None or held.what != what:
            return None
        if not held.is_ready():
            self._spoilt(held)
        if self._held is not held:
            return None
        self._forget()
        self._failed = 0
        return held

    def hold(self, what: Hashable, start: Callable[[OnOutput, OnExit], LiveProcess]) -> None:
        """Start a process, by *start*, that waits for *what*. It is no error if the process can't be started."""
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

    def follow(self, what: Hashable, start: Callable[[OnOutput, OnExit], LiveProcess],
               over: Callable[[Report], None]) -> Callable[[Report], None]:
        """A callback that passes a report on to *over*, and after that has another process for *what* started."""
        def then(report: Report) -> None:
            in_any_case(partial(over, report), partial(self._reactor.soon, partial(self.hold, what, start)))
        return then

    def _spoilt(self, one: WarmProcess) -> None:
        if one is self._held:
            self._failed += 1
            self.drop()

    def _forget(self) -> None:
        self._held = None
        self._timer.cancel()

    def drop(self) -> None:
        held = self._held
        self._forget()
        if held is not None:
            held.end()

    def close(self) -> None:
        """Forget the waiting process and start no more: the sandbox is over, and all its processes end with it."""
        self._closed = True
        self._forget()

    def broken(self, _error: Exception) -> None:
        self._failed = MOST_FAILED
        self.drop()
