"""
Servers in sandboxes, at names and at paths of this one: PORT-ID.NAME/... and /ports/ID/PORT/...

Trust:     none in the server inside, whose pages are hostile: those at a name have an origin of their own, those at a path
           get none (CSP sandbox), and neither sets what holds beyond it. It is told no token of this server's. One
           exchange is one connection to it, so no answer can be taken for that to somebody else's request.
Holds:     who has no token of the tenant's or the sandbox's is served if the sandbox isn't private, which its id, of 130
           random bits, stands for. A tenant's token opens no port of another's.
Bounds:    as of other calls, by tenant; connections that are being made for each sandbox; bodies as the quota says.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from leeward.apps.serve.calls import ClientGone, ServeCall, ServeEndpoint, Use, pieces_of
from leeward.apps.serve.door import Door, token_in
from leeward.apps.serve.e2b.boxes import OWN_PORTS, OpenBox, is_id
from leeward.apps.serve.nodes import ID
from leeward.apps.serve.problems import CLOSED, GONE, ServeProblem, bad, unknown_token
from leeward.apps.serve.sockets import MOST_MESSAGE, SocketCall, SocketEndpoint, first_of
from leeward.apps.serve.tokens import ServeTenant
from leeward.client.websocket_opening import Opening
from leeward.errors import SandboxOver

#: Seconds until a WebSocket has to be open.
OPEN_S = 60.0
#: Bytes that are read at once, and of a head of the server's: at most.
PIECE, MOST_HEAD = 1 << 16, 65536

#: Tokens of this server begin so; also those that it doesn't know any more, or not yet. Headers of its faces with a tenant's
#: token, and with a sandbox's own.
OURS, TENANTS, BOXS = "e2b_", ("x-api-key", "open-sandbox-api-key"), ("x-access-token", "x-execd-access-token")

#: Heads that are about one connection, or are for this server, in either direction.
_OURS = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect",
    b"proxy-authenticate", b"proxy-authorization", b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port"})
#: Heads of answers that say something of other names, ports or pages than the server's own.
_BEYOND = frozenset({b"alt-svc", b"clear-site-data", b"strict-transport-security"})
#: Pages at a path have no origin. They share the path's with this server.
_NO_ORIGIN = (b"content-security-policy", b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts")
_PATH = re.compile(rf"/ports/({ID})/([0-9]{{1,5}})(/.*|)".encode(), re.DOTALL)

Head = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class PortPlace:
    """A port of a sandbox, and what is asked of the server there."""

    sandbox: str
    port: int
    target: bytes
    at_path: bool


def place_of(scope: Scope) -> PortPlace | None:
    """
    What a request is for: by the first label of its Host, the two headers of E2B's clients, or its path. A page at a name
    has that name's port alone, whatever paths it asks for and headers it sends: its requests to this server would count as
    those of whoever looks at it.
    """
    heads = dict(scope["headers"])
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    port, _, sandbox = heads.get(b"host", b"").partition(b".")[0].lower().partition(b"-")
    found = _place(sandbox, port, scope["raw_path"] + query)
    if found is None and b"e2b-sandbox-id" in heads:
        return _place(heads[b"e2b-sandbox-id"], heads.get(b"e2b-sandbox-port", b""), scope["raw_path"] + query)
    if found is None and not is_id(sandbox.decode("latin-1")) and (path := _PATH.fullmatch(scope["raw_path"])) is not None:
        return _place(path[1], path[2], (path[3] or b"/") + query, at_path=True)
    return found


def _place(sandbox: bytes, port: bytes, target: bytes, at_path: bool = False) -> PortPlace | None:
    if not is_id(sandbox.decode("latin-1")) or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        return None
    return None if int(port) in OWN_PORTS else PortPlace(sandbox.decode(), int(port), target, at_path)


class PortsFace:
    """The ASGI application of all requests that are for a port."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for a port."""
        return place_of(scope) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["place"] = place = place_of(scope)
        assert place is not None

        def form(problem: ServeProblem) -> Response:
            row: dict[str, Any] = {"sandboxId": place.sandbox, "message": problem.message, "code": problem.status}
            return JSONResponse(row | ({"port": place.port} if problem.message == CLOSED else {}), problem.status)

        if scope["type"] == "http":
            await ServeEndpoint(f"port {place.port}", self.knows, form, self.answer)(scope, receive, send)
        else:
            await SocketEndpoint(f"port {place.port}", self.knows, form, self.pass_messages)(scope, receive, send)

    async def knows(self, request: HTTPConnection) -> tuple[ServeTenant, Use] | None:
        """Whose sandbox it is. `state.box` is it from then on."""
        identity, headers, boxes = request.state.place.sandbox, request.headers, self._door.boxes
        tenant = self._door.found(headers.get("x-api-key", ""))  # another key is the server's inside
        if tenant is None and identity not in await boxes.ids():  # else each guess would be a connection to the daemon
            raise ServeProblem(502, GONE)
        try:
            box = await boxes.find(tenant, identity)
        except ServeProblem as problem:
            raise ServeProblem(502, GONE) if problem.status == 404 else problem from None
        if box.is_private and tenant is None and not any(
                self._is_boxs(identity, headers.get(name, "")) for name in ("e2b-traffic-access-token", "x-access-token")):
            raise unknown_token()
        request.state.box = box
        owner = boxes.tenant_of(box)
        return owner, self._door.use_of(owner)

    def _is_boxs(self, sandbox: str, token: str) -> bool:
        return any(self._door.tokens.is_derived(purpose, sandbox, token) for purpose in ("traffic", "envd"))

    async def dialled(self, request: HTTPConnection) -> socket.socket:
        """A connection to the server; ServeProblem if there is none."""
        box: OpenBox = request.state.box
        try:
            return await self._door.boxes.dial(box, request.state.place.port)
        except SandboxOver:
            raise ServeProblem(502, GONE) from None

    def _heads(self, request: HTTPConnection) -> list[Head]:
        """The heads of a request that the server gets: not those that are for this one, nor a token of it."""
        headers, sandbox = request.headers, request.state.place.sandbox
        own = {name.encode() for name in TENANTS if headers.get(name, "").startswith(OURS)}
        own |= {name.encode() for name in BOXS if self._is_boxs(sandbox, headers.get(name, ""))}
        if token_in(headers.get("authorization", "")).startswith(OURS):
            own.add(b"authorization")
        return [each for each in passed_on(request.scope["headers"]) if each[0] not in own]

    # --- HTTP -----------------------------------------------------------------------

    async def answer(self, call: ServeCall) -> Response:
        place: PortPlace = call.request.state.place
        if not place.target.startswith(b"/"):
            raise bad("a target begins with a slash")
        heads = [*self._heads(call.request), (b"connection", b"close")]
        if b"chunked" in dict(call.request.scope["headers"]).get(b"transfer-encoding", b"").lower():
            heads = [each for each in heads if each[0] != b"content-length"] + [(b"transfer-encoding", b"chunked")]
        return _Passed(self, call, heads, place)

    # --- WebSocket ------------------------------------------------------------------

    async def pass_messages(self, call: SocketCall) -> None:
        place: PortPlace = call.request.state.place
        heads = [(name.decode(), value.decode("latin-1")) for name, value in self._heads(call.request)
                 if name != b"host" and not name.startswith(b"sec-websocket-")]
        host = call.request.headers["host"]
        made = await self.dialled(call.request)
        try:
            there = await Opening(
                f"ws://{host}{place.target.decode('latin-1')}", sock=made, compression=None, proxy=None,
                subprotocols=[Subprotocol(each) for each in call.request.scope["subprotocols"]] or None,
                additional_headers=heads, user_agent_header=None, open_timeout=OPEN_S, ping_interval=None,
                max_size=MOST_MESSAGE, max_queue=1)
        except (WebSocketException, OSError, ValueError):
            made.close()
            raise ServeProblem(502, "the server there opens no WebSocket") from None
        async with there:
            await call.accept(there.subprotocol)
            await _both(call, there)


async def _both(call: SocketCall, there: ClientConnection) -> None:
    """Pass messages on until one end closes."""
    async def up() -> None:
        while True:
            await there.send(await call.message())

    async def down() -> None:
        async for message in there:
            kind = "text" if isinstance(message, str) else "bytes"
            await call.send({"type": "websocket.send", kind: message})

    with suppress(ConnectionClosed):
        await first_of(up(), down())


def passed_on(heads: Iterable[Head]) -> list[Head]:
    """*heads* without those of one connection and this server's own."""
    heads = list(heads)
    named = {each.strip().lower() for name, value in heads if name.lower() == b"connection" for each in value.split(b",")}
    return [(name.lower(), value) for name, value in heads if name.lower() not in _OURS and name.lower() not in named]


def shown(heads: Iterable[Head], at_path: bool) -> list[Head]:
    """The heads of an answer that the caller gets: nothing in them holds for more than the server's own name or page."""
    heads = list(heads)
    dropped = _BEYOND | ({b"content-length"} if any(name.lower() == b"transfer-encoding" for name, _ in heads) else set())
    found = [(name, value) for name, value in passed_on(heads) if name not in dropped and not (
        name == b"set-cookie" and (at_path or b"domain" in value.lower()))]
    return [*found, _NO_ORIGIN] if at_path else found


class _Passed(Response):
    """A request that is passed on, and its answer as it comes."""

    def __init__(self, face: PortsFace, call: ServeCall, heads: list[Head], place: PortPlace) -> None:
        self._face, self._call, self._heads, self._place = face, call, heads, place
        self._wire = h11.Connection(h11.CLIENT, MOST_HEAD)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._call.request
        reader, writer = await asyncio.open_connection(sock=await self._face.dialled(request), limit=PIECE)
        sending = asyncio.ensure_future(self._sent(request, writer))
        answering = asyncio.ensure_future(self._answered(reader, send))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()  # the client has gone, or sends too much
            answering.result()
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)
            writer.transport.abort()

    async def _sent(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Send the request, and then wait for the end of the client; ClientGone."""
        try:
            head = h11.Request(method=request.method, target=self._place.target, headers=self._heads)
            writer.write(self._wire.send(head) or b"")
            async for piece in pieces_of(request, self._call.tenant.quota.body):
                writer.write(self._wire.send(h11.Data(piece)) or b"")
                await writer.drain()
            writer.write(self._wire.send(h11.EndOfMessage()) or b"")
        except h11.LocalProtocolError:
            raise bad("this isn't a request that can be passed on") from None
        except ConnectionError:
            pass  # it reads no more, and may have answered
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientGone

    async def _answered(self, reader: asyncio.StreamReader, send: Send) -> None:
        try:
            while not isinstance(event := await self._event(reader), h11.Response):
                if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                    raise ServeProblem(502, "the server there speaks no HTTP")
            await send({"type": "http.response.start", "status": event.status_code,
                        "headers": shown(event.headers.raw_items(), self._place.at_path)})
            while isinstance(event := await self._event(reader), h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (h11.RemoteProtocolError, ConnectionError):
            raise ServeProblem(502, "the server there speaks no HTTP, or broke off") from None

    async def _event(self, reader: asyncio.StreamReader) -> Any:
        while (event := self._wire.next_event()) is h11.NEED_DATA:
            self._wire.receive_data(await reader.read(PIECE))
        return event
