"""
A request about a sandbox that somebody else carries out, into a memory file which the answer has with it.

Runs in:   the daemon, on the reactor's one thread.
Owns:      the memory file until the answer takes it, and the sandbox's mark that it isn't idle.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry


class FileTicket:
    """What a fetch and a look at an overlay have in common, as tickets of a connection."""

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
