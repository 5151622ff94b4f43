"""
A pool of connections to the daemon, so that several calls can run at the same time.

Runs in:   anybody's program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.link import Link
from leeward.wire.replies import Reply

if TYPE_CHECKING:
    from leeward.client.functions import ServedFunctions

#: The greatest number of idle connections that are kept for later calls.
_KEPT = 4


class FreeLinks:
    """A pool of connections to the daemon on *path*. Each call takes an idle one, or makes a new one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._free: list[Link] = []
        self._lasting = Link(path)
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()

    def call(self, op: str, fields: Mapping[str, Any], deadline: float | None = None,
             functions: ServedFunctions | None = None) -> tuple[Reply, list[int]]:
        with self.one() as link:
            return link.call(op, fields, deadline, functions=functions)

    @contextlib.contextmanager
    def lasting(self) -> Iterator[Link]:
        """The connection that stays open until `close`, or until this process ends, and with which what it holds ends."""
        with self._one_at_a_time:
            yield self._lasting

    @contextlib.contextmanager
    def one(self) -> Iterator[Link]:
        with self._lock:
            link = self._free.pop() if self._free else Link(self.path)
        try:
            yield link
        finally:
            with self._lock:
                kept = len(self._free) < _KEPT and not self._closed
                if kept:
                    self._free.append(link)
            if not kept:
                link.close()

    def close(self) -> None:
        with self._lock:
            links, self._free = self._free, []
            self._closed = True  # calls that run close their connections at their end
        for link in (*links, self._lasting):
            link.close()
