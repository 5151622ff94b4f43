"""
Memory files of results that stay in the daemon: a client that can't receive descriptors reads them by requests.

Runs in:   the daemon, on the reactor's one thread.
Owns:      the descriptors of these files, until the client drops them or is gone.
Trust:     none in a client. A read is bounded by the size of one answer, by the file's own size, and by the bounds on
           a connection's requests.

Theory of operation. Some programs read their sockets in a way that loses descriptors: Node's streams, or a relay in
between. Such a client says so once (`keep_results`). Its answers are the same, except for the descriptors. The files
stay in a table under the number of the answered request, and `kept_read` copies from them with pread(2). So the client
sets the pace, and bytes that it hasn't asked for aren't in the daemon's memory. Each file counts as a large result that
waits to be read: with too many of them new jobs are refused. A client that reads nothing for as long as an unread reply
may wait is closed, and its files with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from leeward.daemon.serving.parcel import Parcel
from leeward.errors import BadRequest
from leeward.run.report import Arena
from leeward.wire.fields import MAX_PIECE
from leeward.wire.requests import KeptDrop, KeptRead


class KeptResults:
    """
    The kept results of one connection.

    Args:
        own: adds a number, perhaps negative, to the count of large results that wait.
        now: the reactor's clock.

    Attributes:
        wanted: whether the client has said that it can't receive descriptors.
    """

    __slots__ = ("_files", "_now", "_own", "_since", "wanted")

    def __init__(self, own: Callable[[int], None], now: Callable[[], float]) -> None:
        self._own, self._now = own, now
        self._files: dict[int, list[Arena]] = {}
        self._since = 0.0
        self.wanted = False

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, request: int) -> bool:
        return request in self._files

    def parcel(self, request: int, parcel: Parcel) -> Parcel:
        """Return the answer to *request*. Its memory files are kept here if the client has asked for that."""
        if self.wanted and parcel.arenas:
            self._drop(request)  # a number may be used again when it was answered
            if not self._files:
                self._since = self._now()
            files, parcel.arenas = parcel.arenas, []
            self._files[request] = files
            parcel.weight -= len(files)
            self._own(len(files))
        return parcel

    def read(self, request: KeptRead) -> bytes:
        """
        Return a piece of a file; an empty one beyond its end.

        Raises:
            BadRequest: there is no such file.
        """
        files = self._files.get(request.target, [])
        if request.arena >= len(files):
            raise BadRequest(f"no memory file {request.arena} of an answer to request {request.target} is kept")
        arena = files[request.arena]
        size = min(request.size or MAX_PIECE, max(0, arena.size - request.offset))
        self._since = self._now()
        return os.pread(arena.fd, size, request.offset) if size else b""

    def drop(self, request: KeptDrop) -> bool:
        """Close the files of one answer. Returns whether there were any."""
        self._since = self._now()
        return self._drop(request.target)

    def _drop(self, request: int) -> bool:
        files = self._files.pop(request, [])
        self._own(-len(files))
        for arena in files:
            arena.close()
        return bool(files)

    def late(self, seconds: float) -> bool:
        """Whether the client has neither read nor dropped any of the files for more than *seconds*."""
        return bool(self._files) and self._now() - self._since > seconds

    def close(self) -> None:
        """
        Close all files, and keep none from now on: further answers may follow the one whose sending showed that the
        client is gone.
        """
        self.wanted = False
        for request in list(self._files):
            self._drop(request)
