"""
Results in memory files that a guest has, or is about to get: their memory counts until the guest closes them.

Runs in:   the daemon, on the reactor's one thread.
Source:    fcntl(2), F_SETLEASE: a write lease can be had only on a file that nobody else has open or mapped.

Theory of operation. The daemon has written the pages of such a file, so the kernel charges them to the daemon for as
long as any process holds the file: also the receiver, by a descriptor, by a mapping, or in a message that it hasn't
received yet. No event reports the last close. But an attempt to take a write lease tells whether the file is open
elsewhere. So the receiver gets one open file, the daemon keeps another one of the same file, and tries the lease with
it when the user wants another job. Both are read-only, and the descriptor that wrote is closed.

Only a guest's files are counted: the owner and root use their own memory.
"""

from __future__ import annotations

import fcntl
import os

from leeward.run.report import Arena

#: Bytes and files of results that one guest may have; all guests together may have FILES files.
MOST, EACH, FILES = 1 << 30, 1024, 4096
#: Files of one check, at most; and seconds between two checks that requests for jobs cause, at least.
_LOOK, _LOOK_S = 256, 0.05


class LentFiles:
    """
    The files that one guest holds.

    Attributes:
        size: bytes of memory that the files take, as of the last check.
    """

    __slots__ = ("_files", "_looked", "size")

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # bytes by our descriptor; the files that were checked last come last
        self._looked = 0.0
        self.size = 0

    def __len__(self) -> int:
        return len(self._files)

    def lend(self, arena: Arena) -> bool:
        """
        Count *arena*, and reopen it, so that the receiver's open file isn't ours. Returns False if that isn't possible
        now.
        """
        path = f"/proc/self/fd/{arena.fd}"
        ours = -1
        try:
            size = os.fstat(arena.fd).st_blocks * 512
            ours = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            theirs = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            if ours >= 0:
                os.close(ours)
            return False
        os.close(arena.fd)
        arena.fd = theirs
        self._files[ours] = size
        self.size += size
        return True

    def full(self, now: float) -> bool:
        """Whether the guest has reached the bound. If it seems so, the files are checked first."""
        if self._is_full and now >= self._looked + _LOOK_S:
            self._looked = now
            self.look()
        return self._is_full

    @property
    def _is_full(self) -> bool:
        return self.size >= MOST or len(self._files) >= EACH

    def look(self) -> None:
        """Check a bounded number of files, and forget those that nobody has open."""
        for fd in list(self._files)[:_LOOK]:
            size = self._files.pop(fd)
            if _let_go(fd):
                self.size -= size
                os.close(fd)
            else:
                self._files[fd] = size

    def close(self) -> None:
        """Forget all files."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()
        self.size = 0


def _let_go(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False  # EAGAIN: somebody has it
    except OSError:
        return True  # leases are off on this host (fs.leases-enable): nobody can tell
    return True
