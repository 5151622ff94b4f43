"""Reads the one frame that a job sends on its reply pipe, and the files that follow the frame."""

from __future__ import annotations

import os
from collections.abc import Mapping

from leeward._native.memfd import SEALS, SIZE_SEALS, memory_file, seal
from leeward.base.dataclass import replace
from leeward.daemon.run.report import Arena, FileArena
from leeward.errors import SHORT, PeerError
from leeward.spec.job import Job
from leeward.wire import bundles
from leeward.wire import job_frames as wire
from leeward.wire.frames import MAX_REPLY


class FilesBehind:
    """
    The files that follow a reply, from the pipe straight into the memory file that the client gets, so that the bytes
    aren't read here; further ones stay in the pipe. *sizes* are by name, as the files come. OSError without a memory
    file, if they have no room in a reply.
    """

    __slots__ = ("_fd", "_got", "_kept", "_size", "_sizes", "closed")

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes, self._size, self._got = sizes, sum(sizes.values()), 0
        self._fd = -1
        self._kept: bytearray | None = None
        self.closed = False  # the job has closed its end before all files had arrived
        try:
            self._fd = memory_file("leeward_results")
            os.ftruncate(self._fd, self._size)
            seal(self._fd, SIZE_SEALS)
        except OSError as error:
            self.close()
            if error.errno not in SHORT or self._size > MAX_REPLY:
                raise
            self._kept = bytearray()

    @property
    def complete(self) -> bool:
        return self._got == self._size

    def take(self, pipe: int, most: int) -> bool:
        """Receive about *most* more bytes, and return whether all files are complete; OSError without memory."""
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
        seal(self._fd, SEALS)
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


#: Bytes of a reply that are read in one turn of the loop.
REPLY_CHUNK = 1 << 20
#: The size of the job's file system is rounded up to a multiple of this.
_PAGE = 4096


class ReplyReader:
    """*closed*: the job has closed its end of the pipe. *complete*: the frame and the files behind it were read."""

    __slots__ = ("_behind", "_data", "_job", "_parsed", "_size", "closed", "complete", "most", "most_behind")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._data = bytearray()
        self._size = 0  # of the frame with its header, once the header has been read
        self._parsed: wire.JobReply | None = None
        self._behind: FilesBehind | None = None
        self.most = wire.MAX_BARE_REPLY  # bytes that the frame of this job's reply may have
        self.most_behind = 0  # bytes that the files behind the frame may have together
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
        Read about *most* more bytes. Returns whether the frame and the files behind it are complete; PeerError if the
        frame announces more bytes than a reply may have; OSError without a descriptor or memory for the files.
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
        """The decoded reply of a complete frame; PeerError if it isn't one."""
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
