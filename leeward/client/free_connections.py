"""A pool of connections to the daemon, so that several calls can run at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.connection import BlockingConnection
from leeward.errors import DaemonAway, PeerError, Refused, ShuttingDown
from leeward.spec.paths import client_socket
from leeward.wire.sandbox_replies import whole

if TYPE_CHECKING:
    from leeward.client.connection import BesideJob
    from leeward.client.conversation import Answer

#: The greatest number of idle connections that are kept for later calls.
_KEPT = 4
#: Entries of `seats` in place of a number: a kernel that one request has named, and one that can't be bound.
SEEN, NAMED = 0, -1
#: A kernel of a sandbox, by the sandbox's id and its number, and whether what its code shows is collected.
KernelKey = tuple[str, int, bool]
#: The greatest number of kernels that are remembered for a connection.
MOST_SEATS = 256


class FreeConnections:
    """A pool of connections. Each call takes an idle one, or makes a new one; *retry_busy* as for `BlockingConnection`."""

    def __init__(self, socket: str | os.PathLike[str] | None, retry_busy: bool = True) -> None:
        self.socket, self._retry_busy = client_socket(socket), retry_busy
        self._free: list[BlockingConnection] = []
        self._lasting = self._new()
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()

    def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
             functions: BesideJob | None = None) -> Answer:
        until = None if seconds is None else time.monotonic() + seconds
        with self.one() as connection:
            return connection.call(op, fields, until, functions=functions)

    def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        with self.lasting() as connection:
            return connection.call(op, fields)

    def execute_in_kernel(self, key: KernelKey, code: bytes) -> Answer:
        connection = self._take()
        try:
            return _executed(connection, key, code)
        finally:
            self._give_back(connection)

    def _new(self) -> BlockingConnection:
        return BlockingConnection(self.socket, self._retry_busy)

    @contextlib.contextmanager
    def lasting(self) -> Iterator[BlockingConnection]:
        """The connection that stays open until `close`, or until this process ends, and with which what it holds ends."""
        with self._one_at_a_time:
            yield self._lasting

    @contextlib.contextmanager
    def one(self) -> Iterator[BlockingConnection]:
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> BlockingConnection:
        with self._lock:
            return self._free.pop() if self._free else self._new()

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            kept = len(self._free) < _KEPT and not self._closed
            if kept:
                self._free.append(connection)
        if not kept:
            connection.close()

    def close(self) -> None:
        with self._lock:
            connections, self._free = self._free, []
            self._closed = True  # calls that run close their connections at their end
        for connection in (*connections, self._lasting):
            connection.close()


def kernel_fields(key: KernelKey) -> dict[str, Any]:
    return dict(zip(("sandbox", "kernel", "display"), key, strict=True))


def by_name(key: KernelKey, code: bytes) -> dict[str, Any]:
    """The fields of a sandbox_execute request."""
    return {**kernel_fields(key), "code": code}


def _executed(connection: BlockingConnection, key: KernelKey, code: bytes) -> Answer:
    """
    The answer to code for a kernel. The first request to a kernel on a connection names it. Before the second one the
    connection binds it (`kernel_bind`); from then on code alone is sent with its number, as for a session, which the
    daemon handles on its fast path.
    """
    seat = connection.seats.get(key) if connection.connected else None
    if seat == SEEN:
        seat = _bound(connection, key)
    if seat is None or seat == NAMED:
        answer = connection.call("sandbox_execute", by_name(key, code))
        if len(connection.seats) >= MOST_SEATS:
            connection.seats.clear()
        connection.seats.setdefault(key, SEEN)
        return answer
    try:
        return connection.call("execute", {"session": seat, "code": code}, reconnect=False)
    except (DaemonAway, ShuttingDown) as error:  # the number ended with the connection
        if error.may_have_run:
            raise
    return connection.call("sandbox_execute", by_name(key, code))


def _bound(connection: BlockingConnection, key: KernelKey) -> int:
    """The kernel's number on the connection, to which this binds it; NAMED if that isn't possible."""
    try:
        reply, _ = connection.call("kernel_bind", kernel_fields(key), retry=False, retry_busy=False)
        seat = whole(reply, "session", 1)
    except DaemonAway:
        return NAMED
    except (Refused, PeerError):  # if the kernel has ended, the execute request is refused with that reason
        seat = NAMED
    connection.seats[key] = seat
    return seat
