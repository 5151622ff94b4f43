"""
The one frame that a job sends by its reply pipe, as far as it is here.

Runs in:   the daemon.
Trust:     none in its bytes: they are the job's.
"""

from __future__ import annotations

import os

from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.wire import bundles
from leeward.wire import job as wire

#: Bytes that are read of a reply before others have their turn.
REPLY_CHUNK = 1 << 20


class ReplyReader:
    """
    Attributes:
        most: bytes that the reply to this job may have.
        closed: the job has closed its end.
    """

    __slots__ = ("_data", "_size", "closed", "most")

    def __init__(self, job: Job) -> None:
        self._data = bytearray()
        self._size = 0  # with its header, once that is here
        self.most = wire.MAX_BARE_REPLY
        if job.collect:
            self.most += job.limits.files + wire.PER_NAME * (job.most_files + wire.MAX_LEFT_OUT)
        if job.display:
            self.most += bundles.MAX_TOTAL + bundles.AROUND
        self.closed = False

    def feed(self, data: bytes) -> None:
        """
        What somebody else has read of it.
        """
        self._data += data

    def read(self, fd: int, most: int) -> bool:
        """
        Read on, about *most* bytes; is the frame complete?

        Raises:
            PeerError: it announces more than a reply may have.
        """
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

    @property
    def body(self) -> bytes:
        """
        Of a frame that is complete, what comes behind its header; else nothing.
        """
        complete = self._size and len(self._data) >= self._size
        return bytes(self._data[wire.HEADER.size:self._size]) if complete else b""
