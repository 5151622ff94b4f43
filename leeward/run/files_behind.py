"""
The files that follow a job's reply, from its reply pipe straight into the memory file that its client gets.

Runs in:   the daemon.
Trust:     none in the bytes, which aren't read here. Their number was announced and checked before; further bytes stay
           in the pipe.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

from leeward._native.memfd import memory_file, seal
from leeward.errors import SHORT
from leeward.run.report import Arena, FileArena
from leeward.wire.frames import MAX_REPLY

_SEALS_FIRST = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS_LAST = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class FilesBehind:
    """
    Args:
        sizes: the files' sizes in bytes, by name, in the order in which the files come.

    Attributes:
        closed: the job has closed its end before all files had arrived.

    Raises:
        OSError: no memory file can be made, and the files have no room in a reply.
    """

    __slots__ = ("_fd", "_got", "_kept", "_size", "_sizes", "closed")

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes, self._size, self._got = sizes, sum(sizes.values()), 0
        self._fd = -1
        self._kept: bytearray | None = None
        self.closed = False
        try:
            self._fd = memory_file("leeward_results")
            os.ftruncate(self._fd, self._size)
            seal(self._fd, _SEALS_FIRST)
        except OSError as error:
            self.close()
            if error.errno not in SHORT or self._size > MAX_REPLY:
                raise
            self._kept = bytearray()

    @property
    def complete(self) -> bool:
        return self._got == self._size

    def take(self, pipe: int, most: int) -> bool:
        """
        Receive about *most* more bytes. Returns whether all files are complete.

        Raises:
            OSError: there is no memory for the files.
        """
        enough = self._got + most
        while not self.complete and self._got < enough:
            try:
                count = self._step(pipe, min(self._size - self._got, most))
            except BlockingIOError:
                return False
            if not count:
                self.closed = True
                return False
            self._got += count
        return self.complete

    def _step(self, pipe: int, most: int) -> int:
        if self._kept is None:
            return os.splice(pipe, self._fd, most, offset_dst=self._got, flags=os.SPLICE_F_NONBLOCK)
        data = os.read(pipe, most)
        self._kept += data
        return len(data)

    def contents(self) -> dict[str, bytes] | None:
        """The files by name, if the daemon holds them because no memory file could be made; else None."""
        kept = self._kept
        if kept is None:
            return None
        return {name: bytes(kept[at:at + size]) for name, (at, size) in self._places().items()}

    def give(self) -> FileArena | None:
        """Seal the memory file, and give it to the caller; None if there is none."""
        if self._fd < 0:
            return None
        seal(self._fd, _SEALS_LAST)
        fd, self._fd = self._fd, -1
        return FileArena(Arena(fd, self._size), self._places())

    def _places(self) -> dict[str, tuple[int, int]]:
        places, at = {}, 0
        for name, size in self._sizes.items():
            places[name] = at, size
            at += size
        return places

    def close(self) -> None:
        """Drop the files, unless `give` was called."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
