"""The connection of a live sandbox for asyncio, with the calls that free_links.py has for the blocking client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.client.aio_calls import AsyncCalls

if TYPE_CHECKING:
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer


class AsyncFreeLinks(AsyncCalls):
    """The connection of an AsyncClient, on which calls wait side by side; the caller owns an answer's descriptors."""

    async def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                   functions: AwaitedBesideJob | None = None) -> Answer:
        """Send one request of the wire, whose job may call *functions*; it may take *seconds* in all, None for no bound."""
        until = None if seconds is None else time.monotonic() + seconds
        return await self._call(op, fields, until, functions=functions)

    #: What a call over the connection holds ends with it, as it stays open until `close`.
    call_lasting = call

    async def execute_in_kernel(self, fields: Mapping[str, Any]) -> Answer:
        """Send a sandbox_execute request for a kernel, with code and no option."""
        return await self.call("sandbox_execute", fields)
