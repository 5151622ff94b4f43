"""
Requests of HTTP that a sandbox sends in the clear, or in TLS that ends here: each is read, decided, and written anew to
its host. `exchanges` has the protocol, this module the sockets. Needs h11.

Bound:     heads, bodies and what waits by `exchanges`; the time for a head by the policy's `connect`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import h11

from leeward.egress.dialling import Lookup, dial
from leeward.egress.exchanges import BodyEnd, Requests, ResponseError, Responses
from leeward.egress.faults import fault, of_connection
from leeward.egress.heads import Head, HeadError
from leeward.egress.injection import Swap
from leeward.egress.pipes import ROOM, SEARCHED, Pipe, join
from leeward.egress.policy import ALLOW, Request, decide
from leeward.egress.tenancy import ANSWERED, Attempt, NotAllowed, Tenancy, cancelled, refusal
from leeward.spec.hosts import Address

if TYPE_CHECKING:
    from leeward.egress.injection import Injection

#: Seconds that a client may be silent between two requests.
_IDLE_S = 60.0

#: Seconds for which bytes of a refused client are read, and how many, so that a reset doesn't discard the answer.
_LAST_S, _LAST_BYTES = 1.0, 1 << 20


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a connection: a name, or an address if the job has dialled one by itself; the proxy has neither."""

    name: str
    address: Address | None
    port: int


@dataclass(frozen=True, slots=True)
class Upstream:
    pipe: Pipe
    name: str
    address: Address | None
    port: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection to the host that was made before it was known that requests come."""

    upstream: Upstream
    attempt: Attempt  # the attempt at that connection, which is allowed; the first request continues it
    granted: bool  # the operator has allowed the whole connection, so nobody is asked about its requests


class Served:
    """
    The requests of one connection to *goal*.

    With *scheme* "https" the TLS of *client* ends in the broker, and the connection to the host is in TLS, too.
    *opened* is that connection, if there is one already.
    """

    def __init__(self, tenancy: Tenancy, client: Pipe, lookup: Lookup, goal: Goal, scheme: str = "http",
                 opened: Opened | None = None) -> None:
        self._tenancy, self._client, self._lookup, self._goal = tenancy, client, lookup, goal
        self._proxy = not goal.name and goal.address is None
        self._scheme = scheme
        self._requests = Requests(scheme, tenancy.policy.limits.request)
        self._sealing = tenancy.sealing if scheme == "https" else None
        self._server: Upstream | None = None if opened is None else opened.upstream
        self._attempt: Attempt | None = None if opened is None else opened.attempt
        self._granted = opened is not None and opened.granted

    async def run(self) -> Head | None:
        """
        Serve the requests until the connection ends, which the caller closes; OSError if a peer has gone.

        Returns the head of a CONNECT to a proxy, which hasn't been answered; else None.
        """
        first = True
        try:
            while True:
                head = await self._head(first)
                if head is None:
                    return None
                if head.form == "authority" and self._proxy:
                    return head
                if not await self._serve(head, first):
                    return None
                first = False
                self._requests.renew()
        except HeadError as error:
            attempt = self._attempt or self._tenancy.begin(self._goal.name, self._goal.address, self._goal.port)
            attempt.refused(refusal(f"HTTP: {error}"))
            await self.answer(error.status, str(error))
            return None
        finally:
            self._close_server()

    async def _head(self, first: bool) -> Head | None:
        seconds = self._tenancy.policy.limits.connect if first else _IDLE_S
        try:
            async with asyncio.timeout(seconds):
                while True:
                    event = self._requests.next()
                    if isinstance(event, Head):
                        return event
                    data = await self._client.receive(min(ROOM, self._requests.room))
                    self._requests.receive(data)
                    if not data and self._requests.is_idle:
                        return None
        except TimeoutError:
            if self._requests.is_idle:
                return None
            raise HeadError(f"no whole head within {seconds:g} s", 408) from None

    async def _serve(self, head: Head, first: bool) -> bool:
        """Serve one request. Returns whether another one may follow."""
        tenancy = self._tenancy
        attempt, self._attempt = self._attempt or tenancy.begin(head.host.name, head.host.address, head.port), None
        why = "" if first else tenancy.over_rate()
        try:
            if why:
                raise refusal(why, status=429)
            server = await self._upstream(head, attempt)
        except NotAllowed as refused:
            attempt.refused(refused)
            # The operator's answer to an ask has the text of the refusal.
            said = str(refused) if refused.decision.cause == ANSWERED else f"leeward: {refused}"
            await self.answer(refused.status, said)
            return False
        except OSError as error:  # the host has gone within the TLS handshake
            attempt.failed(of_connection(error))
            await self.answer(502, f"leeward: {fault('response-none')}")
            return False
        sent, received, said = server.pipe.written, server.pipe.read, ""
        try:
            return await self._exchange(head, server.pipe)
        except (HeadError, ResponseError, NotAllowed) as error:
            said = str(error)
            status = error.status if isinstance(error, HeadError) else 502
            await self.answer(status, f"leeward: {error}")
            return False
        except OSError as error:
            said = of_connection(error)
            raise
        finally:
            attempt.closed(server.pipe.written - sent, server.pipe.read - received, said)

    async def _upstream(self, head: Head, attempt: Attempt) -> Upstream:
        """
        A connection to the host of *head*: the one from the request before if it fits, or a new one.

        Raises NotAllowed if the policy refuses or it failed, OSError if the host has gone within the TLS handshake.
        """
        if not self._proxy:
            self._check_goal(head)
        elif head.form != "absolute":
            raise refusal("a request to a proxy without the whole URL", status=400)
        request = Request(head.host.name, head.host.address, head.port, self._scheme, head.method, head.target)
        policy = self._tenancy.policy
        granted = self._granted or await self._tenancy.approval(policy, request)
        server = self._server
        if server is not None and server.pipe.is_quiet and (server.name, server.port) == (
                request.name, request.port) and (request.name or server.address == request.address):
            decision = decide(policy, replace(request, address=server.address), granted=granted)
            if decision.verdict != ALLOW:
                raise NotAllowed(decision)
        else:
            self._close_server()
            made, asked, decision = await dial(policy, request, self._lookup, granted=granted)
            pipe = Pipe(made)
            if self._sealing is not None:
                pipe = await self._sealing.outer(pipe, request.name, policy.limits.connect)
            server = self._server = Upstream(pipe, request.name, asked.address, request.port)
        if server.address is not None:
            attempt.allowed(decision, server.address, granted)
        return server

    def _check_goal(self, head: Head) -> None:
        """Check that the request is for the host to which the job has connected."""
        if head.form == "authority":
            raise refusal("CONNECT on a port that is no proxy's", status=405)
        if Goal(head.host.name, head.host.address, head.port) != self._goal:
            raise refusal(f"the request is for {head.authority}, and the connection to "
                          f"{self._goal.name or self._goal.address} port {self._goal.port}")

    async def _exchange(self, head: Head, server: Pipe) -> bool:
        """Pass on the request and its response. Returns whether another request may follow."""
        limits = self._tenancy.policy.limits
        put = None
        if self._sealing is not None:
            put = await self._sealing.injection(self._tenancy.policy, head, limits.connect)
        responses = Responses(limits.response)
        await server.send(responses.request(head if put is None else put.head))
        sending = asyncio.ensure_future(self._send_body(responses, server, None if put is None else put.body))
        responding = asyncio.ensure_future(self._send_response(responses, server, put))
        try:
            await asyncio.wait((sending, responding), return_when=asyncio.FIRST_COMPLETED)
            if not responding.done() and isinstance(sending.exception(), HeadError):
                sending.result()  # otherwise the host waits for the rest of the body, and we for its response
            if await responding:
                sending.cancel()
                await self._client.send(responses.rest())
                await server.send(self._requests.rest())
                await join(self._client, server, limits.request, limits.response)
                return False
            if not sending.done():
                return False  # the host has answered before it had the whole request
            sending.result()
        finally:
            await cancelled(sending, responding)
        if not responses.keeps:
            self._close_server()
        return self._requests.is_done

    async def _send_body(self, responses: Responses, server: Pipe, swap: Swap | None) -> None:
        while True:
            event = self._requests.next()
            if isinstance(event, BodyEnd):
                if swap is not None and (rest := swap.end()):
                    await server.send(responses.data(rest))
                await server.send(responses.end())
                return
            if isinstance(event, bytes):
                piece = event if swap is None else swap.feed(event)
                if piece:
                    await server.send(responses.data(piece))
                continue
            self._requests.receive(await self._client.receive(min(ROOM, self._requests.room)))

    async def _send_response(self, responses: Responses, server: Pipe, put: Injection | None) -> bool:
        """Pass the host's response on to the client. Returns whether the host has switched to another protocol."""
        await asyncio.sleep(0)  # a quick response may be there before `_send_body` has had the turn that it needs
        ended = False
        while True:
            event = responses.next()
            if event is None:
                if responses.is_switched:
                    return True
                if ended:
                    raise ResponseError(fault("response-none"))
                data = await server.receive(ROOM if put is None else SEARCHED)
                ended = not data
                responses.receive(data)
                continue
            if put is not None:
                if isinstance(event, h11.EndOfMessage) and (rest := put.rest()) is not None:
                    await self._client.send(self._requests.send(rest))
                event = put.response(event)
            await self._client.send(self._requests.send(event))
            if isinstance(event, h11.EndOfMessage):
                return False
            if isinstance(event, h11.InformationalResponse) and responses.is_switched:
                return True

    async def answer(self, status: int, text: str) -> None:
        """Answer in the host's place. Read, for a bounded time, what the client still sends, so that it gets the answer."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self._client.send(self._requests.refuse(status, text))
                self._client.finish()
                left = _LAST_BYTES
                while left > 0 and (data := await self._client.receive()):
                    left -= len(data)

    def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.pipe.close()

    def rest(self) -> bytes:
        return self._requests.rest()


async def serve_requests(tenancy: Tenancy, client: Pipe, lookup: Lookup, goal: Goal, scheme: str = "http",
                         opened: Opened | None = None) -> None:
    """Serve a connection on which requests come for one host."""
    try:
        with suppress(OSError):
            await Served(tenancy, client, lookup, goal, scheme, opened).run()
    finally:
        client.close()
