"""
From a name to a connection: the host's resolver gives the addresses, the policy decides about each, and those that are
allowed are dialled until one answers.

Stands if: a name server changes its answer between two queries: there is only one query, and connect(2) gets the very
           address that the policy has decided about.
Source:    RFC 8305, for trying addresses one after the other without waiting for the end of each try
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address
from itertools import zip_longest

from leeward.base.closing import on_failure
from leeward.egress.faults import of_connection, of_resolver
from leeward.egress.policy import ALLOW, NEED_ADDRESS, Decision, Request, decide
from leeward.egress.tenancy import NotAllowed, refusal, unanswered
from leeward.spec.egress_policy import Policy
from leeward.spec.hosts import Address

#: Queries to the resolver at once, at most. Further ones wait, and the time for their connection runs meanwhile.
LOOKUPS = 16

#: Queries of one sandbox among these, at most, so that a sandbox whose queries get no answer can't use up all of them.
SHARE = LOOKUPS // 4

#: Addresses of one name that are looked at.
_MOST_ADDRESSES = 16

#: Seconds after which the next address is tried beside those that haven't answered, as RFC 8305 recommends; and tries
#: at once, at most: the oldest is given up for a further one, so that one connection takes no more descriptors.
STAGGER_S, AT_ONCE = 0.25, 4

#: A function that returns the addresses of a name, in the order in which they are to be tried, or raises OSError.
Lookup = Callable[[str], Awaitable[list[Address]]]


class Resolver:
    """The host's resolver."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "resolver")

    async def __call__(self, name: str) -> list[Address]:
        rows = await asyncio.get_running_loop().run_in_executor(self._threads, _ask, name)
        return list(dict.fromkeys(rows))


class SharedLookup:
    """One sandbox's share of a resolver. A query whose caller has given up continues in its thread, and counts."""

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
            asked.exception()  # marks it as seen: the caller may have given up


def _ask(name: str) -> list[Address]:
    return [ip_address(str(row[4][0]).partition("%")[0])
            for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


async def dial(policy: Policy, request: Request, lookup: Lookup, *,
               granted: bool = False) -> tuple[socket.socket, Request, Decision]:
    """
    Connect to the host of *request*, if *policy* allows it; *granted*: the operator has allowed what `ask` matched.

    Returns the socket, which the caller owns, the request with the address that was dialled, and the decision. Raises
    NotAllowed if the policy refuses, or the connection failed.
    """
    try:
        async with asyncio.timeout(policy.limits.connect):
            return await _dial(policy, request, lookup, granted)
    except TimeoutError:
        raise refusal("connection timeout", failed=True, status=504) from None


async def _dial(policy: Policy, request: Request, lookup: Lookup,
                granted: bool) -> tuple[socket.socket, Request, Decision]:
    first = decide(policy, request, granted=granted)
    if first.verdict not in (ALLOW, NEED_ADDRESS):
        raise NotAllowed(unanswered(first))
    if request.name:
        try:
            found = await lookup(request.name)
        except OSError as error:
            raise refusal(f"DNS resolution failed: {request.name}: {of_resolver(error)}", failed=True,
                          status=502) from None
    else:
        found = [request.address] if request.address is not None else []
    why: NotAllowed | None = None
    allowed: dict[Address, Decision] = {}
    for address in found[:_MOST_ADDRESSES]:
        decision = decide(policy, replace(request, address=address), granted=granted)
        if decision.verdict == ALLOW:
            allowed[address] = decision
        elif why is None:
            why = NotAllowed(decision)
    made = await _first(alternating(list(allowed)), request.port)
    if not isinstance(made, NotAllowed):
        sock, address = made
        return sock, replace(request, address=address), allowed[address]
    raise why or made


def alternating(addresses: list[Address]) -> list[Address]:
    """*addresses* with IPv4 and IPv6 in turn: if one version doesn't work here, every second try is of the other."""
    versions = list(dict.fromkeys(address.version for address in addresses))
    lists = ([address for address in addresses if version == address.version] for version in versions)
    return [address for row in zip_longest(*lists) for address in row if address is not None]


async def _first(addresses: list[Address], port: int) -> tuple[socket.socket, Address] | NotAllowed:
    """Return the first connection that is made to one of *addresses*, and its address; or the first reason for a failure."""
    if len(addresses) == 1:  # usual; a task of its own would cost as much as the call
        try:
            return await _connect(addresses[0], port), addresses[0]
        except OSError as failure:
            return _unreachable(addresses[0], port, failure)
    why: NotAllowed | None = None
    rest, going = deque(addresses), dict[asyncio.Task[socket.socket], Address]()
    try:
        while rest or going:
            if rest:
                if len(going) == AT_ONCE:
                    eldest = next(iter(going))
                    del going[eldest]
                    _drop(eldest)
                address = rest.popleft()
                going[asyncio.create_task(_connect(address, port))] = address
            done, _ = await asyncio.wait(going, timeout=STAGGER_S if rest else None,
                                         return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address, error = going[task], task.exception()
                if error is None:
                    del going[task]
                    return task.result(), address
                if not isinstance(error, OSError):
                    raise error
                del going[task]
                if why is None:
                    why = _unreachable(address, port, error)
        return why or refusal("DNS resolution failed: the name has no address", failed=True, status=502)
    finally:
        for task in going:
            _drop(task)


def _unreachable(address: Address, port: int, error: OSError) -> NotAllowed:
    return refusal(f"{address} port {port}: {of_connection(error)}", failed=True, status=502)


def _drop(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancel() and not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    with on_failure(made.close):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    return made
