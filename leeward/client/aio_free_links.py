"""
The connection of a live sandbox for asyncio, with the calls that free_links.py has for the blocking client.

Runs in:   anybody's program, in one event loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.aio_calls import AsyncCalls
from leeward.client.aio_session import Answer

if TYPE_CHECKING:
    from leeward.client.aio_functions import AwaitedFunctions


class AsyncFreeLinks:
    """
    The connection of an AsyncClient, on which calls wait side by side.

    Args:
        socket: as for AsyncClient.
    """

    def __init__(self, socket: str | os.PathLike[str] | None) -> None:
        self._calls = AsyncCalls(socket)
        self.path = self._calls.socket

    async def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                   functions: AwaitedFunctions | None = None) -> Answer:
        """
        Send one request of the wire. The caller owns the descriptors of the answer.

        Args:
            op: the request's operation.
            fields: its fields.
            seconds: the time that the call may take in all; None for no bound.
            functions: the functions that the request's job may call.
        """
        until = None if seconds is None else time.monotonic() + seconds
        return await self._calls._call(op, fields, until, functions=functions)

    #: What a call over the connection holds ends with it, as it stays open until `close`.
    call_lasting = call

    async def execute_in_kernel(self, fields: Mapping[str, Any]) -> Answer:
        """Send a sandbox_execute request for a kernel, with code and no option."""
        return await self.call("sandbox_execute", fields)

    async def close(self) -> None:
        await self._calls.close()
