"""
From a name to a connection: the host's resolver is asked, each address is decided, and one that is allowed is dialled.

Runs in:   the broker, on its loop; the resolver in threads, since it is the C library's.
Stands if: a name server changes its answer between two questions: there is one question, and the address that was
           decided is the address of the call.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address

from leeward.egress.policy import ALLOW, NEED_ADDRESS, Decision, Request, decide
from leeward.egress.tenancy import NotAllowed, refusal
from leeward.spec.egress import Policy
from leeward.spec.hosts import Address

#: Questions to the resolver at once; further ones wait, and their time for a connection runs.
LOOKUPS = 16

#: Of these, those of one sandbox: one that asks for names which nobody answers leaves the others their turn.
SHARE = LOOKUPS // 4

#: Addresses of one name that are looked at.
_MOST_ADDRESSES = 16

#: Gives the addresses of a name, in the order in which they are to be tried. OSError: there are none.
Lookup = Callable[[str], Awaitable[list[Address]]]


class Resolver:
    """
    The host's resolver.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "resolver")

    async def __call__(self, name: str) -> list[Address]:
        rows = await asyncio.get_running_loop().run_in_executor(self._threads, _ask, name)
        return list(dict.fromkeys(rows))


class SharedLookup:
    """
    One sandbox's share of a resolver.

    A question goes on when its asker has given up, as the thread does that asks it, and counts until its end.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup, self._free = lookup, asyncio.Semaphore(SHARE)

    async def __call__(self, name: str) -> list[Address]:
        await self._free.acquire()
        asked = asyncio.ensure_future(self._lookup(name))
        asked.add_done_callback(self._answered)
        return await asyncio.shield(asked)

    def _answered(self, asked: asyncio.Future[list[Address]]) -> None:
        self._free.release()
        if not asked.cancelled():
            asked.exception()  # which nobody may wait for any more


def _ask(name: str) -> list[Address]:
    return [ip_address(str(row[4][0]).partition("%")[0])
            for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


async def dial(policy: Policy, request: Request, lookup: Lookup) -> tuple[socket.socket, Request, Decision]:
    """
    A connection to where *request* leads, if *policy* allows that.

    Args:
        request: without an address, where it has a name.

    Returns:
        The socket, the caller's; the request with the address that was dialled; and what allowed it.

    Raises:
        NotAllowed: it isn't allowed, or can't be had.
    """
    try:
        async with asyncio.timeout(policy.limits.connect):
            return await _dial(policy, request, lookup)
    except TimeoutError:
        raise refusal("connection timeout", failed=True, status=504) from None


async def _dial(policy: Policy, request: Request, lookup: Lookup) -> tuple[socket.socket, Request, Decision]:
    first = decide(policy, request)
    if first.verdict not in (ALLOW, NEED_ADDRESS):
        raise NotAllowed(first)
    if request.name:
        try:
            found = await lookup(request.name)
        except OSError as error:
            raise refusal(f"DNS resolution failed: {request.name}: {error.strerror or error}", failed=True,
                          status=502) from None
    else:
        found = [request.address] if request.address is not None else []
    why: NotAllowed | None = None
    for address in found[:_MOST_ADDRESSES]:
        asked = replace(request, address=address)
        decision = decide(policy, asked)
        if ALLOW != decision.verdict:
            why = NotAllowed(decision) if why is None or why.failed else why
            continue
        try:
            return await _connect(address, request.port), asked, decision
        except OSError as error:
            if why is None:
                why = refusal(f"{address} port {request.port}: {(error.strerror or str(error)).lower()}", failed=True,
                              status=502)
    raise why or refusal(f"DNS resolution failed: {request.name} has no address", failed=True, status=502)


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if 4 == address.version else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    except BaseException:
        made.close()
        raise
    return made
