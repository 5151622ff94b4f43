"""
Locks of what a daemon uses, against who removes what nobody does: `leeward image prune` and `leeward env prune`.

Source:    flock(2). Whoever removes something has it locked for itself meanwhile.
"""

from __future__ import annotations

import fcntl
import os

from leeward.errors import BadRequest


class HeldLocks:
    """Of the *most* files or folders that were used last, until the daemon ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, int] = {}

    def hold(self, path: str) -> None:
        """Lock *path*; BadRequest if somebody removes it, OSError if it isn't there."""
        fd = self._held.pop(path, -1)
        if fd < 0:
            while len(self._held) >= self._most:
                os.close(self._held.pop(next(iter(self._held))))
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            gone = not os.fstat(fd).st_nlink
        except BlockingIOError:
            gone = True
        if gone:
            os.close(fd)
            raise BadRequest("it is just being removed")
        self._held[path] = fd
