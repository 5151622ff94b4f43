"""The connection of a live sandbox for asyncio, with the calls that free_connections.py has for the blocking client."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.aio_calls import AsyncCalls
from leeward.client.conversation import answered
from leeward.client.free_connections import MOST_SEATS, NAMED, SEEN, KernelKey, by_name, kernel_fields
from leeward.errors import Busy, DaemonAway, DaemonError, PeerError, ShuttingDown
from leeward.wire.sandbox_replies import whole

if TYPE_CHECKING:
    from leeward.client.aio_connection import AsyncConnection
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer
    from leeward.client.mounts import OpenFolders


class AsyncFreeConnections:
    """
    The connections of *client*, or else of a client of its own, on which calls wait side by side; the caller owns an
    answer's descriptors.
    """

    def __init__(self, socket: str | os.PathLike[str] | None, retry_busy: bool = True,
                 client: AsyncCalls | None = None) -> None:
        self._own = AsyncCalls(socket if client is None else client.socket, retry_busy=retry_busy)
        self._calls, self.socket = client or self._own, self._own.socket
        self._binding = set[asyncio.Task[None]]()

    async def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                   functions: AwaitedBesideJob | None = None) -> Answer:
        """Send one request of the wire, whose job may call *functions*; it may take *seconds* in all, None for no bound."""
        until = None if seconds is None else time.monotonic() + seconds
        return await self._calls._call(op, fields, until, functions=functions)

    async def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        """Send a request over the connection that stays open until `close`, and with which what it holds ends."""
        return await self._own._call(op, fields, None)

    async def execute_in_kernel(self, key: KernelKey, code: bytes) -> Answer:
        """
        Send code for a kernel; by a number, as the blocking client does, once the kernel has one. It gets that beside its
        second request, so that no request overtakes another.
        """
        connection = self._calls._connection_with(key)
        if connection is not None and connection.seats[key] > SEEN:
            try:
                return answered(await connection.call("execute", {"session": connection.seats[key], "code": code}))
            except (DaemonAway, ShuttingDown, Busy) as error:
                if error.may_have_run:
                    raise
        elif connection is not None and connection.seats[key] == SEEN:
            connection.seats[key] = NAMED
            binding = asyncio.get_running_loop().create_task(_bind(connection, key))
            self._binding.add(binding)
            binding.add_done_callback(self._binding.discard)
        answer, used = await self._calls._within("sandbox_execute", by_name(key, code), None)
        if len(used.seats) >= MOST_SEATS:
            used.seats.clear()
        used.seats.setdefault(key, SEEN)
        return answer

    async def open(self, fields: Mapping[str, Any], folders: OpenFolders | None = None) -> Answer:
        """Open a sandbox. Each attempt sends the *folders* to a dock of its own, over the connection that it uses."""
        calls = self._own if fields.get("held") else self._calls
        return await calls._call("sandbox_open", fields, None, folders=folders)

    async def close(self) -> None:
        """Close the connections, but not those of another client."""
        await self._own.close()


async def _bind(connection: AsyncConnection, key: KernelKey) -> None:
    """Bind the kernel to a number on *connection*, if that is possible; else requests go on to name it."""
    try:
        connection.seats[key] = whole(answered(await connection.call("kernel_bind", kernel_fields(key)))[0], "session", 1)
    except (DaemonError, PeerError):
        pass  # if the kernel or the daemon has ended, the next request is told
