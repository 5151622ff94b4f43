"""
The Model Context Protocol by HTTP (streamable), by its own SDK, with the tools of `leeward mcp`.

Whose:     a tenant has a server of the SDK's of its own, so no session of another's can be named. Up to the revision
           2025-11-25 each session has a sandbox, which ends with it. Later ones have no sessions: there a call names its
           sandbox, and without a name has the token's own; a caller without a token has to choose a name.
Calls:     of tools run in threads, as in `leeward mcp`, and count as the tenant's jobs. One is ended by
           `notifications/cancelled`, and where there are no sessions by a closed connection.
Restart:   sessions are gone with the process, as clients expect (404). A sandbox with a name is found again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import anyio.from_thread
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leeward import __version__
from leeward.apps.faces.mcp.server import BUSY, Context, ToolServer, place_of, server_of, templates_of
from leeward.apps.faces.mcp.tools import TOOLS, SandboxTools
from leeward.apps.serve.calls import SMALL, ServeCall, Use, check_values, in_turn, routed
from leeward.apps.serve.door import ANYBODY, Door
from leeward.apps.serve.e2b.boxes import Boxes
from leeward.apps.serve.problems import ServeProblem, for_caller
from leeward.apps.serve.tokens import ServeTenant
from leeward.client.sandbox import Sandbox

#: Sessions of a tenant, and sandboxes of it that this process knows; threads of all calls; bytes of a message: at most.
MOST_SESSIONS, MOST_KNOWN, MOST_THREADS, MOST_BODY = 256, 256, 512, 1 << 20
#: Seconds without a call after which a session ends; seconds of a call.
SESSION_S, CALL_S = 1800.0, 120.0

_TEMPLATE = "mcp"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SESSION = "mcp-session-id"

#: The tools where a call names its sandbox.
_NAMED = [types.Tool.model_validate({**tool, "inputSchema": {**tool["inputSchema"], "properties": {
    **tool["inputSchema"]["properties"], "sandbox": {"type": "string", "description":
        "The name of a sandbox, which is made at its first use. Without a name it is the caller's own one."}}}})
    for tool in TOOLS]


def routes(door: Door) -> list[BaseRoute]:
    return [routed("GET POST DELETE", "/mcp", door.knows, refused, McpFace(door).answer)]


def refused(problem: ServeProblem) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": BUSY, "message": problem.message}},
                        problem.status, headers)


def _weighed(body: bytes) -> None:
    """Take as long as the SDK will, which no rest follows; ServeProblem for too many values."""
    check_values(body)
    with suppress(ValueError, RecursionError):  # the SDK tells
        json.loads(body)


class McpFace:
    def __init__(self, door: Door) -> None:
        self._door, self._boxes = door, door.boxes
        self._threads = anyio.CapacityLimiter(MOST_THREADS)
        self._servers: dict[str, TenantServer] = {}  # by the tenant's id
        door.at_end.append(self.close)

    async def answer(self, call: ServeCall) -> ASGIApp:
        for identity in [each for each in self._servers if self._door.tenant(each) is None]:
            gone = self._servers.pop(identity, None)  # another call may have taken it meanwhile
            if gone is not None:
                await gone.close()
        server = self._servers.get(call.tenant.id)
        if server is None:
            server = self._servers[call.tenant.id] = TenantServer(self._door, self._boxes, self._threads, call)
        await server.begin()
        body = await call.body(MOST_BODY) if call.request.method == "POST" else b""
        if len(body) > SMALL:
            await in_turn(call.use, _weighed, body)
        return partial(server.serve, body)

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()


class TenantServer:
    """
    The sessions and sandboxes of one tenant.

    Its methods that the SDK calls find the sandbox of a call, whose ToolServer has the answer.
    """

    def __init__(self, door: Door, boxes: Boxes, threads: anyio.CapacityLimiter, call: ServeCall) -> None:
        self.tenant: ServeTenant = call.tenant
        self._use: Use = call.use
        self._door, self._boxes, self._threads = door, boxes, threads
        self._known: OrderedDict[str, ToolServer] = OrderedDict()  # by session or name
        self._user = AuthenticatedUser(AccessToken(token="", client_id=call.tenant.id, scopes=[]))
        self._manager = StreamableHTTPSessionManager(
            server_of(self, __version__), session_idle_timeout=SESSION_S, max_sessions=MOST_SESSIONS,
            max_request_body_size=MOST_BODY,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False))  # `gate` has looked
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- the SDK's server -----------------------------------------------------------

    async def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        await self._ready.wait()

    async def _run(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await self._over.wait()

    async def close(self) -> None:
        """End the sessions and their sandboxes."""
        self._over.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        for key in list(self._known):
            await self._forget(key)

    async def serve(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose body was read."""
        left, status = [body], 0

        async def once() -> Message:
            return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

        async def told(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._manager.handle_request({**scope, "user": self._user}, once, told)
        if scope["method"] == "DELETE" and status < 300:
            await self._forget(f"session {dict(scope['headers']).get(_SESSION.encode(), b'').decode('latin-1')}")

    # --- whose sandbox --------------------------------------------------------------

    async def _of(self, context: Context, name: str) -> ToolServer:
        """What answers a call; MCPError if it has to name a sandbox and doesn't."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if not name and self.tenant == ANYBODY:
                raise MCPError(types.INVALID_PARAMS, "without a token a call has to name its sandbox: choose a name that"
                                                     " nobody guesses, as the argument `sandbox`")
            if name and not _NAME.fullmatch(name):
                raise MCPError(types.INVALID_PARAMS, "a sandbox's name has at most 64 letters, digits and ._-")
            key = f"name {name}"
        else:
            if name:
                raise MCPError(types.INVALID_PARAMS, "a session has one sandbox here, which has no name")
            assert context.request is not None
            key = f"session {context.request.headers.get(_SESSION, '')}"
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ToolServer(SandboxTools(
                partial(self._opened, key), CALL_S, Sandbox.detach if key.startswith("name") else Sandbox.close,
                for_caller), name, self._threads)
        self._known.move_to_end(key)
        while len(self._known) > MOST_KNOWN:
            await self._forget(next(iter(self._known)))
        return found

    def _opened(self, key: str) -> tuple[Sandbox, None]:
        """In a thread: the sandbox of a session or a name, a new one if there is none."""
        identity = anyio.from_thread.run(self._open, key)
        return self._door.nodes.attach_blocking(identity), None

    async def _open(self, key: str) -> str:
        box = await self._boxes.open_as_told(self.tenant, self._use, _TEMPLATE, f"mcp {key}")
        return box.id

    async def _forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            await anyio.to_thread.run_sync(known.tools.close, limiter=self._threads)

    # --- the answers ----------------------------------------------------------------

    async def list(self, context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return types.ListToolsResult(tools=_NAMED)
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in TOOLS])

    async def call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = dict(params.arguments or {})
        name = given.pop("sandbox", "")
        tools = await self._of(context, name if isinstance(name, str) else "/")
        if self._use.jobs >= self.tenant.quota.jobs:
            raise MCPError(BUSY, f"{self.tenant.quota.jobs} jobs run or wait, as many as are allowed at once")
        self._use.jobs += 1
        try:
            return await tools.call(context, params.model_copy(update={"arguments": given}))
        finally:
            self._use.jobs -= 1

    async def resources(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS and self.tenant == ANYBODY:
            return types.ListResourcesResult(resources=[])
        return await (await self._of(context, "")).resources(context, params)

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS and self.tenant == ANYBODY:
            return types.CompleteResult(completion=types.Completion(values=[]))
        return await (await self._of(context, "")).complete(context, params)

    async def templates(self, context: Context,
                        _params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return templates_of("{sandbox}" if context.protocol_version in MODERN_PROTOCOL_VERSIONS else "")

    async def resource(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        name, _ = place_of(params.uri)
        return await (await self._of(context, name)).resource(context, params)
