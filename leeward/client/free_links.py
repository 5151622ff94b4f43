"""
A pool of connections to the daemon, so that several calls can run at the same time.

Runs in:   anybody's program.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.client import kernel_seats
from leeward.client.link import Link
from leeward.client.mounts import Mount, open_with
from leeward.spec.paths import client_socket

if TYPE_CHECKING:
    from leeward.client.conversation import Answer
    from leeward.client.folder_state import FolderState
    from leeward.client.functions import ServedFunctions
    from leeward.wire.replies import Reply

#: The greatest number of idle connections that are kept for later calls.
_KEPT = 4


class FreeLinks:
    """
    A pool of connections to the daemon. Each call takes an idle one, or makes a new one.

    Args:
        socket: as for Client.
    """

    def __init__(self, socket: str | os.PathLike[str] | None) -> None:
        self.socket = client_socket(socket)
        self._free: list[Link] = []
        self._lasting = Link(self.socket)
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()

    def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
             functions: ServedFunctions | None = None) -> Answer:
        until = None if seconds is None else time.monotonic() + seconds
        with self.one() as link:
            return link.call(op, fields, until, functions=functions)

    def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        with self.lasting() as link:
            return link.call(op, fields)

    def execute_in_kernel(self, fields: Mapping[str, Any]) -> Answer:
        """Send a sandbox_execute request for a kernel, with code and no option."""
        with self.one() as link:
            return kernel_seats.execute(link, fields)

    def open(self, fields: Mapping[str, Any], mounts: Sequence[Mount], states: dict[str, FolderState],
             beside: Callable[[], None] | None) -> Reply:
        """Send a sandbox_open request; the other arguments are those of `open_with`."""
        with self.lasting() if fields.get("held") else self.one() as link:
            if not mounts:
                return link.call("sandbox_open", fields)[0]
            return open_with(link, fields, mounts, states, beside)

    @contextlib.contextmanager
    def lasting(self) -> Iterator[Link]:
        """The connection that stays open until `close`, or until this process ends, and with which what it holds ends."""
        with self._one_at_a_time:
            yield self._lasting

    @contextlib.contextmanager
    def one(self) -> Iterator[Link]:
        with self._lock:
            link = self._free.pop() if self._free else Link(self.socket)
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
