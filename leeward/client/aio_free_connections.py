"""The connection of a live sandbox for asyncio, with the calls that free_connections.py has for the blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.aio_calls import AsyncCalls

if TYPE_CHECKING:
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

    async def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                   functions: AwaitedBesideJob | None = None) -> Answer:
        """Send one request of the wire, whose job may call *functions*; it may take *seconds* in all, None for no bound."""
        until = None if seconds is None else time.monotonic() + seconds
        return await self._calls._call(op, fields, until, functions=functions)

    async def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        """Send a request over the connection that stays open until `close`, and with which what it holds ends."""
        return await self._own._call(op, fields, None)

    async def execute_in_kernel(self, fields: Mapping[str, Any]) -> Answer:
        """Send a sandbox_execute request for a kernel, with code and no option."""
        return await self.call("sandbox_execute", fields)

    async def open(self, fields: Mapping[str, Any], folders: OpenFolders | None = None) -> Answer:
        """Open a sandbox. Each attempt sends the *folders* to a dock of its own, over the connection that it uses."""
        calls = self._own if fields.get("held") else self._calls
        return await calls._call("sandbox_open", fields, None, folders=folders)

    async def close(self) -> None:
        """Close the connections, but not those of another client."""
        await self._own.close()
