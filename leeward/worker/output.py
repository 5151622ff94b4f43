"""
What a job wrote, from its pipes into memory, or past a size into a sealed memfd.

Runs in:   the daemon. The job never holds the memfd, so nothing it does can keep the
           file from being sealed, and no length in it is the job's word.
Source:    memfd_create(2), splice(2)
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from dataclasses import dataclass, field

from leeward._native.memfd import memory_file

#: Up to here a stream stays in memory and travels inline. One pipe's worth, so a short
#: job's whole output takes one read. docs/decisions/ has the measured crossover.
INLINE = 64 << 10
_CHUNK = 1 << 20
_PAGE = 4096
_SEALS_FIRST = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS_LAST = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Stream:
    """
    One of stdout and stderr.

    Attributes:
        fd: the daemon's end of the pipe, -1 once it was closed.
        head: the bytes while they are few.
        spilled: they are in the memfd, from `offset` on.
    """

    fd: int
    offset: int = 0
    length: int = 0
    spilled: bool = False
    head: bytearray = field(default_factory=bytearray)


class Output:
    """
    Both streams of one job, and the limit that they share.
    """

    def __init__(self, out: int, err: int, limit: int) -> None:
        room = -(-limit // _PAGE) * _PAGE
        self.out = Stream(out)
        self.err = Stream(err, offset=room)
        self.limit = limit
        self.truncated = False
        self.memfd = -1
        self._room = room

    def drain(self, stream: Stream) -> bool:
        """
        Take some of what the pipe holds now: a bounded piece, so that a flood waits its turn.

        Returns:
            False when the writers are gone; True while more may come.
        """
        taken = 0
        while taken < _CHUNK and not self.truncated:
            try:
                count = self._step(stream)
            except BlockingIOError:
                return True
            if 0 == count:
                return False
            taken += count
        return True

    def settle(self) -> None:
        """
        Take what both pipes hold now, and not what is written meanwhile: who replied is at its end.
        """
        for stream in (self.out, self.err):
            if stream.fd < 0:
                continue
            held = unread(stream.fd)
            try:
                while held > 0 and not self.truncated:
                    held -= self._step(stream) or held
            except BlockingIOError:
                continue  # a job may read its own pipe

    def _step(self, stream: Stream) -> int:
        left = self.limit - self.out.length - self.err.length
        if left <= 0:
            over = len(os.read(stream.fd, 1))
            self.truncated = over > 0
            return over
        count = self._spill(stream, left) if stream.spilled else self._keep(stream, left)
        stream.length += count
        return count

    def _keep(self, stream: Stream, left: int) -> int:
        data = os.read(stream.fd, min(left, INLINE))
        stream.head += data
        if len(stream.head) > INLINE:
            self._move_out(stream)
        return len(data)

    def _move_out(self, stream: Stream) -> None:
        if self.memfd < 0:
            self.memfd = memory_file("leeward_results")
            os.ftruncate(self.memfd, 2 * self._room)
            fcntl.fcntl(self.memfd, fcntl.F_ADD_SEALS, _SEALS_FIRST)
        view = memoryview(bytes(stream.head))
        at = stream.offset
        while view:
            written = os.pwrite(self.memfd, view, at)
            view, at = view[written:], at + written
        stream.head.clear()
        stream.spilled = True

    def _spill(self, stream: Stream, left: int) -> int:
        return os.splice(stream.fd, self.memfd, min(left, _CHUNK), offset_dst=stream.offset + stream.length,
                         flags=os.SPLICE_F_NONBLOCK)

    def seal(self) -> int:
        """
        Seal the memfd, if there is one, and give it away. The pipes stay for `close_pipes`.

        Returns:
            A sealed memfd, the caller's, or -1.
        """
        memfd, self.memfd = self.memfd, -1
        if memfd >= 0:
            try:
                fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, _SEALS_LAST)
            except OSError:
                os.close(memfd)
                raise
        return memfd

    @property
    def size(self) -> int:
        """
        Of the memfd, in bytes.
        """
        return 2 * self._room

    def close_pipes(self) -> None:
        """
        Whoever still writes gets SIGPIPE from now on.
        """
        for stream in (self.out, self.err):
            if stream.fd >= 0:
                os.close(stream.fd)
                stream.fd = -1

    def close(self) -> None:
        """
        Give up everything.
        """
        self.close_pipes()
        if self.memfd >= 0:
            os.close(self.memfd)
            self.memfd = -1


def unread(pipe: int) -> int:
    """
    Bytes that wait in a pipe, asked at either of its ends.
    """
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
