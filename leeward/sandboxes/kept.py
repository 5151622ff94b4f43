"""
The output of a process within its output limit: in memory at first, and in a memory file when it gets large.

Runs in:   the daemon. No process of a sandbox ever holds the file, so it can be sealed.
Source:    memfd_create(2), fcntl(2)
"""

from __future__ import annotations

import fcntl
import os

from leeward._native.memfd import memory_file
from leeward.run.excess import NOTE_ROOM, Ends, ends_of
from leeward.run.placement import PLACEMENTS
from leeward.run.report import Arena, Region

_PAGE = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class KeptOutput:
    """
    Both streams of one process, and the limit that they share.

    Args:
        limit: bytes of both streams together.
        inline: bytes of both together that are kept in memory; more are moved to a memory file.
        cuts: keep the beginning and the end of longer output.

    Attributes:
        exceeded: the process wrote more than *limit*, and isn't to go on.
        omitted: bytes of stdout and of stderr that `take` has left out.
    """

    def __init__(self, limit: int, inline: int = PLACEMENTS["auto"].output, *, cuts: bool = False) -> None:
        self._ends = Ends(ends_of(limit)) if cuts else None
        self._limit, self._inline = limit - ends_of(limit) if cuts else limit, inline
        self._heads = (bytearray(), bytearray())
        self._sizes = [0, 0]
        self._room = max(_PAGE, -(-(limit + NOTE_ROOM) // _PAGE) * _PAGE)
        self._fd = -1
        self.exceeded = False
        self.omitted = 0, 0

    @property
    def in_excess(self) -> bool:
        """Whether the beginnings are full, so that what comes is kept only if it is the end."""
        return self._ends is not None and sum(self._sizes) >= self._limit

    def put(self, stream: int, data: bytes) -> None:
        """
        Keep what the process wrote to *stream*, 1 or 2, as far as the limit goes.

        Raises:
            OSError: no descriptor or no memory is left for the file.
        """
        left, at = self._limit - sum(self._sizes), stream - 1
        if len(data) > left:
            if self._ends is not None:
                self._ends.put(at, data[left:])
            else:
                self.exceeded = True
            data = data[:left]
        self._keep(at, data)

    def _keep(self, at: int, data: bytes) -> None:
        if self._fd < 0 and sum(self._sizes) + len(data) > self._inline:
            self._move_out()
        if self._fd < 0:
            self._heads[at].extend(data)
        else:
            self._write(data, at * self._room + self._sizes[at])
        self._sizes[at] += len(data)

    def _move_out(self) -> None:
        self._fd = memory_file("leeward_results")
        os.ftruncate(self._fd, 2 * self._room)
        for at, head in enumerate(self._heads):
            self._write(bytes(head), at * self._room)
            head.clear()

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def take(self) -> tuple[bytes, bytes, Arena | None]:
        """
        stdout and stderr, or the sealed memory file that has both if they are large. This object no longer has them.

        Raises:
            OSError: no descriptor or no memory is left for the file, or it can't be sealed.
        """
        ends, self._ends = self._ends, None
        if ends is not None:
            for at in (0, 1):
                self._keep(at, ends.take(at))
            self.omitted = ends.dropped
        fd, self._fd = self._fd, -1
        if fd < 0:
            stdout, stderr = map(bytes, self._heads)
            self.drop()
            return stdout, stderr, None
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(fd)
            raise
        regions: list[Region | None] = [(at * self._room, size) if size else None for at, size in
                                        enumerate(self._sizes)]
        return b"", b"", Arena(fd, 2 * self._room, *regions)

    def drop(self) -> None:
        """Drop the output."""
        for head in self._heads:
            head.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
