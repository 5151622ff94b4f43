"""
The HTTP proxy that a sandbox finds on port 3128. It takes requests with whole URLs, and CONNECT.

Runs in:   the broker, within a connection's task.
Stands if: a CONNECT names an address, or another port: the policy decides about its target as about any connection,
           and the bytes in the tunnel are read as they would be without a proxy.
"""

from __future__ import annotations

from contextlib import suppress

from leeward.egress.dialling import Lookup
from leeward.egress.pipes import Pipe
from leeward.egress.relay import Goal, hopeless, relay
from leeward.egress.requests import Served
from leeward.egress.tenancy import Tenancy
from leeward.spec.hosts import unmapped
from leeward.wire.egress_control import PROXY

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def serve_proxy(tenancy: Tenancy, client: Pipe, lookup: Lookup) -> None:
    """Serve a connection to the proxy."""
    try:
        with suppress(OSError):
            served = Served(tenancy, client, lookup, "", None, PROXY)
            head = await served.run()
            if head is None:
                return
            address = None if head.host.address is None else unmapped(head.host.address)
            goal = Goal(head.host.name, address, head.port)
            refused = hopeless(tenancy, goal)
            if refused is not None:
                tenancy.begin(goal.name, goal.address, goal.port).refused(refused)
                await served.answer(refused.status, f"leeward: {refused}")
                return
            await client.send(_ESTABLISHED)
            client.give_back(served.rest())
            await relay(tenancy, client, goal, lookup)
    finally:
        client.close()
