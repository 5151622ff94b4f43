"""
The part of a connection that its requests about live sandboxes use: those requests that wait, and what ends with the
connection.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from leeward.dataclass import dataclass
from leeward.errors import BadRequest
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor, Timer
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry
from leeward.spec.limits import OVERFLOW

#: Seconds after which a request that ends a sandbox is answered even if processes are left: before clients give up.
ENDING_S = 4.0

#: Rows before those of things that have ended by themselves are removed.
_ROWS = 64


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


class FileTicket:
    """
    A request that somebody else carries out, into a memory file which the answer has with it: what a fetch and a look at
    an overlay have in common, as tickets. Owns the file until the answer takes it, and the mark that the sandbox isn't
    idle.
    """

    costs = "connection"

    def __init__(self, desk: Desk, entry: RegistryEntry[Held]) -> None:
        self._desk, self._entry = desk, entry
        self._fd = -1
        self._take_back: Callable[[], None] | None = None  # cancels what was asked for; None once the request is over

    def _end(self) -> bool:
        """Mark the request as over. Returns False if it was over already."""
        take_back, self._take_back = self._take_back, None
        if take_back is None:
            return False
        self._desk.free(self._entry)
        return True

    def _take_file(self) -> int:
        """Give the memory file to the caller; -1 if there is none."""
        fd, self._fd = self._fd, -1
        return fd

    def _drop(self) -> None:
        """Close the memory file."""
        fd = self._take_file()
        if fd >= 0:
            os.close(fd)

    def cancel(self) -> None:
        """For the connection: nobody waits for the answer any more."""
        take_back = self._take_back
        if self._end() and take_back is not None:
            take_back()
        self._drop()

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback has failed, so there is no answer."""
        self.cancel()


@dataclass(frozen=True, slots=True)
class Hold:
    """
    One thing that ends with the connection.

    Attributes:
        lives: whether it hasn't ended, and is still held.
        end: ends it.
    """

    lives: Callable[[], bool]
    end: Callable[[], None]


class Holds:
    """
    What ends with one connection: sandboxes that it has opened as `held`, and processes and kernels that it has started
    so. The kernel closes the connections of a program that has ended, by whatever signal, so the daemon ends here what a
    command line has started, without help of that program.
    """

    __slots__ = ("_most", "_rows")

    def __init__(self) -> None:
        self._rows: list[Hold] = []
        self._most = _ROWS

    def add(self, hold: Hold) -> None:
        if len(self._rows) >= self._most:
            self._rows = [each for each in self._rows if each.lives()]
            self._most = max(_ROWS, 2 * len(self._rows))
        self._rows.append(hold)

    def __bool__(self) -> bool:
        return any(each.lives() for each in self._rows)

    def end(self) -> None:
        """End everything that is still held, because the connection is closed."""
        rows, self._rows = self._rows, []
        in_any_case(*(each.end for each in rows if each.lives()))
