"""
What ends with one connection: sandboxes that it has opened as `held`, and processes and kernels that it has started so.

Runs in:   the daemon, on the reactor's one thread.

The kernel closes the connections of a program that has ended, by whatever signal, so the daemon ends here what a
command line has started, without help of that program.
"""

from __future__ import annotations

from collections.abc import Callable

from leeward.dataclass import dataclass
from leeward.loop.barrier import in_any_case

#: Rows before those of things that have ended by themselves are removed.
_ROWS = 64


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
    """The holds of one connection."""

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
