"""
One connection of a sandbox: its target, its first bytes, the policy's decision, and then its bytes.

Theory of operation. Each connection is a task. getsockname(2) gives its target address, which the sandbox's name server
gave for a name, or which the job wrote itself. On port 443 the client hello is read, and its name has to be that name.
Where the policy has to see requests (spec/egress_tls.py) the broker ends TLS, with a certificate of its own, and reads
them as on port 80. On port 80 requests are read, each with its own decision (exchanges.py). On other ports the first
byte decides which protocol it is, unless the policy lets bytes pass there unseen. A connection that only a rule of
`ask` allows then waits for an answer (asking.py). Then the broker resolves the name, and dials an address that the
policy allows. A connection that isn't allowed is answered by 403 where it is HTTP, else by a reset. Bytes that may pass
unseen are looked at until it is known what they are, while the server may speak: in HTTP and TLS the name that is asked
for has to be the one that was looked up, so HTTP is read like on port 80, over the connection that was made.

Port 3128 is an HTTP proxy: it takes requests with whole URLs, and CONNECT, about whose target the policy decides as
about any connection. The bytes in the tunnel are read as they would be without a proxy.
Bound:     bytes of a client hello, and the time until it has come; bytes that a connection holds, by pipes.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leeward.egress.dialling import Lookup, dial
from leeward.egress.faults import of_connection
from leeward.egress.hello import Hello, HelloError, HelloReader
from leeward.egress.http_requests import Goal, Opened, Served, Upstream, serve_requests
from leeward.egress.opening import FirstLine
from leeward.egress.pipes import Pipe, join
from leeward.egress.policy import DENY, PROTOCOLS, Request, decide
from leeward.egress.tenancy import NotAllowed, Tenancy, cancelled, refusal, unanswered
from leeward.spec.egress_rules import NAMES_V4, NAMES_V6
from leeward.spec.egress_tls import ends
from leeward.spec.hosts import Address, unmapped
from leeward.wire.egress_control import PROXY

#: The first byte of TLS.
_TLS = 0x16

_TLS_PORT, _HTTP_PORT = 443, 80

#: Seconds for which a line that may become one of HTTP is held, and bytes of it. Later it passes on, and is refused if
#: it becomes one.
_LINE_S, _LINE_BYTES = 0.25, 65536


def goal_of(tenancy: Tenancy, address: Address, port: int) -> Goal:
    """The goal of a connection to *address*; NotAllowed if that is in the range for names, and no name's."""
    address = unmapped(address)
    if address not in (NAMES_V4 if address.version == 4 else NAMES_V6):
        return Goal("", address, port)
    name = tenancy.names.name(address)
    if name is None:
        raise refusal(f"{address} is no name's: ask the resolver first")
    return Goal(name, None, port)


def hopeless(tenancy: Tenancy, goal: Goal) -> NotAllowed | None:
    """Return the refusal of *goal* if the policy allows no protocol there; None if it may allow one."""
    for protocol in PROTOCOLS:
        if protocol != "dns":
            decision = decide(tenancy.policy, Request(goal.name, goal.address, goal.port, protocol))
            if tenancy.hopeful(decision):
                return None
    return NotAllowed(unanswered(decision))


async def relay(tenancy: Tenancy, client: Pipe, goal: Goal, lookup: Lookup) -> None:
    if goal.port == _HTTP_PORT:
        await serve_requests(tenancy, client, lookup, goal)
        return
    attempt = tenancy.begin(goal.name, goal.address, goal.port)
    server: Pipe | None = None
    reset, why = True, ""
    try:
        why_not = hopeless(tenancy, goal)
        if why_not is not None:
            raise why_not
        protocol = await _protocol(tenancy, client, goal)
        if protocol == "https" and tenancy.sealing is not None:
            client = await tenancy.sealing.inner(client, goal.name, tenancy.policy.limits.connect)
        if protocol in ("http", "https"):
            await serve_requests(tenancy, client, lookup, goal, protocol)
            return
        request = Request(goal.name, goal.address, goal.port, protocol)
        granted = await tenancy.approval(tenancy.policy, request)
        made, asked, decision = await dial(tenancy.policy, request, lookup, granted=granted)
        server = Pipe(made)
        if asked.address is not None:
            attempt.allowed(decision, asked.address, granted)
        limits = tenancy.policy.limits
        if protocol != "tcp" or not goal.name:
            await join(client, server, limits.request, limits.response)
        elif await _is_http(tenancy, client, server, goal):
            opened = Opened(Upstream(server, goal.name, asked.address, goal.port), attempt, granted)
            await serve_requests(tenancy, client, lookup, goal, opened=opened)
            return
        reset = False
    except NotAllowed as refused:
        why = str(refused)
        if server is None:
            attempt.refused(refused)
    except OSError as error:
        why = of_connection(error)
    finally:
        attempt.closed(client.read, 0 if server is None else server.read, why)
        if server is not None:
            server.close(reset=reset)
        client.close(reset=reset)


async def _is_http(tenancy: Tenancy, client: Pipe, server: Pipe, goal: Goal) -> bool:
    """
    Pass bytes on in both directions until both have ended. If the client speaks HTTP, pass nothing on and return True.

    Raises NotAllowed if the client's hello names another host, a request comes too late, since some of it has passed on
    or the server has spoken, or a direction has too many bytes; OSError if a peer has gone.
    """
    limits = tenancy.policy.limits
    back = asyncio.ensure_future(server.into(client, limits.response, "response"))
    looking = asyncio.ensure_future(_looked_at(tenancy, client, server, goal))
    try:
        await asyncio.wait((back, looking), return_when=asyncio.FIRST_COMPLETED)
        if back.done():
            back.result()
        if not await looking:
            await join(client, server, limits.request, limits.response, back)
            return False
    finally:
        await cancelled(back, looking)
    if server.read or server.written:
        raise refusal("HTTP: a request that doesn't come at the beginning, in one go")
    return True


async def _looked_at(tenancy: Tenancy, client: Pipe, server: Pipe, goal: Goal) -> bool:
    """Whether the client speaks HTTP. The bytes that were read are given back to *client*; see `_is_http`."""
    held = await client.receive()
    if held[:1] == b"%c" % _TLS:
        client.give_back(held)
        await _named(tenancy, client, goal)
        return False
    line, late = FirstLine(), False
    found, over = line.feed(held), not held
    while found is None and not over:
        reading = asyncio.ensure_future(client.receive())  # a read that is cancelled could lose bytes
        try:
            if not late:
                await asyncio.wait((reading,), timeout=_LINE_S)
            if late or not reading.done() or len(held) > _LINE_BYTES:
                late = True
                await server.send(held)
                held = b""
            piece = await reading
        finally:
            reading.cancel()
        held += piece
        found, over = line.feed(piece), not piece
    client.give_back(held)
    return found is True


async def _named(tenancy: Tenancy, client: Pipe, goal: Goal) -> bool:
    """Whether the client's hello has the name of *goal*, and hides none; NotAllowed if it has another, or is late."""
    seconds = tenancy.policy.limits.connect
    try:
        async with asyncio.timeout(seconds):
            hello = await _hello(client)
    except TimeoutError:
        raise refusal(f"no client hello within {seconds:g} s") from None
    if hello is None or not hello.name or not goal.name:
        return False
    if hello.name != goal.name:  # a server that doesn't know of hidden names goes by this one
        raise refusal(f"TLS asks for {hello.name}, and the address is that of {goal.name}")
    return not hello.hidden


async def _protocol(tenancy: Tenancy, client: Pipe, goal: Goal) -> str:
    """The client's protocol, of `policy.PROTOCOLS`; NotAllowed if its hello names another host, or doesn't come in time."""
    bare = Request(goal.name, goal.address, goal.port, "tcp")
    ended = tenancy.sealing is not None and ends(tenancy.policy, goal.name, goal.port)
    if not ended and goal.port != _TLS_PORT and decide(tenancy.policy, bare).verdict != DENY:
        return "tcp"  # the server may be the one that speaks first
    seconds = tenancy.policy.limits.connect
    try:
        async with asyncio.timeout(seconds):
            first = await client.receive(1)
    except TimeoutError:
        raise refusal(f"no client hello within {seconds:g} s") from None
    client.give_back(first)
    if not first:
        raise refusal("it said nothing", failed=True)
    if first[0] != _TLS:
        return "tcp" if goal.port == _TLS_PORT or not first.isalpha() else "http"
    if not await _named(tenancy, client, goal):
        return "tcp"
    return "https" if ended else "tls"


async def _hello(client: Pipe) -> Hello | None:
    """Read the client's hello; None if the client uses another protocol. The bytes are given back to *client*."""
    data, reader = bytearray(), HelloReader()
    try:
        while True:
            piece = await client.receive()
            data += piece
            hello = reader.feed(piece)
            if hello is not None or not piece:
                return hello
    except HelloError as error:
        if error.is_tls:
            raise refusal(f"TLS: {error}") from None
        return None
    finally:
        client.give_back(bytes(data))


_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def serve_proxy(tenancy: Tenancy, client: Pipe, lookup: Lookup) -> None:
    try:
        with suppress(OSError):
            served = Served(tenancy, client, lookup, Goal("", None, PROXY))
            head = await served.run()
            if head is None:
                return
            goal = Goal(head.host.name, head.host.address, head.port)
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
