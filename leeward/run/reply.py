"""
Reads the one frame that a job sends on its reply pipe, and the files that follow the frame.

Runs in:   the daemon.
Trust:     none in its bytes: they are the job's.
"""

from __future__ import annotations

import os

from leeward.dataclass import replace
from leeward.errors import PeerError
from leeward.run.files_behind import FilesBehind
from leeward.run.report import FileArena
from leeward.spec.job import Job
from leeward.wire import bundles
from leeward.wire import job as wire

#: Bytes of a reply that are read in one turn of the loop.
REPLY_CHUNK = 1 << 20

#: The size of the job's file system is rounded up to a multiple of this.
_PAGE = 4096


class ReplyReader:
    """
    Attributes:
        most: bytes that the frame of this job's reply may have.
        most_behind: bytes that the files behind the frame may have together.
        closed: the job has closed its end of the pipe.
        complete: the frame and the files behind it have been read.
    """

    __slots__ = ("_behind", "_data", "_job", "_parsed", "_size", "closed", "complete", "most", "most_behind")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._data = bytearray()
        self._size = 0  # of the frame with its header, once the header has been read
        self._parsed: wire.JobReply | None = None
        self._behind: FilesBehind | None = None
        self.most = wire.MAX_BARE_REPLY
        self.most_behind = 0
        if job.collect:
            self.most += min(job.limits.files, wire.MAX_WITHIN) + wire.PER_NAME * (job.most_files + wire.MAX_LEFT_OUT)
            self.most_behind = -(-job.limits.files // _PAGE) * _PAGE
        if job.display:
            self.most += bundles.MAX_TOTAL + bundles.AROUND
        self.closed = self.complete = False

    def feed(self, data: bytes) -> None:
        """Add bytes that other code has read from the pipe."""
        self._data += data

    def read(self, fd: int, most: int) -> bool:
        """
        Read about *most* more bytes. Returns whether the frame and the files behind it are complete.

        Raises:
            PeerError: the frame announces more bytes than a reply may have.
            OSError: no descriptor or no memory is left for the files.
        """
        if self._behind is None:
            if not self._read_frame(fd, most):
                return False
            sizes = self._announced()
            self._behind = FilesBehind(sizes) if sizes else None
        self.complete = self._behind is None or self._behind.take(fd, most)
        self.closed = self.closed or (self._behind is not None and self._behind.closed)
        return self.complete

    def _read_frame(self, fd: int, most: int) -> bool:
        data = self._data
        enough = len(data) + most
        while True:
            if not self._size and len(data) >= wire.HEADER.size:
                size = wire.HEADER.unpack_from(data)[0]
                if size > self.most:
                    raise PeerError(f"a reply of {size} bytes")
                self._size = wire.HEADER.size + size
            if self._size and len(data) >= self._size:
                return True
            if len(data) >= enough:
                return False
            try:
                got = os.read(fd, min((self._size or wire.HEADER.size) - len(data), REPLY_CHUNK))
            except BlockingIOError:
                return False
            if not got:
                self.closed = True
                return False
            data += got

    def _announced(self) -> dict[str, int]:
        """The sizes of the files that follow; none if the frame isn't a reply, which `parsed` reports."""
        if not self._job.collect:
            return {}
        try:
            sizes = dict(self.parsed().behind)
        except PeerError:
            return {}
        size = sum(sizes.values())
        if size > self.most_behind:
            raise PeerError(f"files of {size} bytes")
        return sizes

    @property
    def body(self) -> bytes:
        """The content of a complete frame without its header; otherwise b""."""
        complete = self._size and len(self._data) >= self._size
        return bytes(self._data[wire.HEADER.size:self._size]) if complete else b""

    def parsed(self) -> wire.JobReply:
        """
        The decoded reply of a complete frame.

        Raises:
            PeerError: the frame isn't a reply.
        """
        if self._parsed is None:
            reply = wire.read_reply(self.body, self._job.most_files, display=self._job.display)
            if reply.behind and not self._job.collect:
                raise PeerError("reply of a job: files that nobody asked for")
            self._parsed = reply
        contents = None if self._behind is None else self._behind.contents()
        return self._parsed if contents is None else replace(self._parsed, files=contents)

    def give_files(self) -> FileArena | None:
        """Give the memory file with the files that followed to the caller; None if there is none."""
        return None if self._behind is None else self._behind.give()

    def close(self) -> None:
        """Drop the files, unless `give_files` was called."""
        if self._behind is not None:
            self._behind.close()
