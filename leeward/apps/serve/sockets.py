"""One WebSocket: who opens it, its tenant's quota, and its refusal by an answer of HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from leeward.apps.serve.calls import ClientGone, Form, Use, admitted, call_told, count_connection, paced
from leeward.apps.serve.problems import problem_of, unknown_token
from leeward.apps.serve.tokens import ServeTenant
from leeward.errors import told_with_place

_log = logging.getLogger("leeward.serve")

#: Bytes of one message, at most.
MOST_MESSAGE = 4 << 20


@dataclass(slots=True)
class SocketCall:
    """A WebSocket of a tenant's; the handler accepts it."""

    request: HTTPConnection
    tenant: ServeTenant
    use: Use
    receive: Receive
    send: Send

    async def accept(self, subprotocol: str | None = None) -> None:
        await self.send({"type": "websocket.accept", "subprotocol": subprotocol})

    async def message(self) -> bytes | str:
        """The next message of the client's; ClientGone when it has closed."""
        event = await self.receive()
        if event["type"] != "websocket.receive":
            raise ClientGone
        found: bytes | str = event["bytes"] if event.get("text") is None else event["text"]
        return found


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until the first one ends, and raise what it raises; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _seated(tenant: ServeTenant, use: Use) -> Iterator[None]:
    """Count a connection while the block runs; ServeProblem if the tenant has too many."""
    count_connection(tenant, use)
    try:
        yield
    finally:
        use.connections -= 1


class SocketEndpoint:
    """The ASGI application of one kind of WebSocket; arguments as for ServeEndpoint."""

    def __init__(self, name: str, knows: Callable[[HTTPConnection], Awaitable[tuple[ServeTenant, Use] | None]], form: Form,
                 handler: Callable[[SocketCall], Awaitable[None]]) -> None:
        self._name, self._knows, self._form, self._handler = name, knows, form, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with call_told(self._name) as told, ExitStack() as seat:  # which is kept until the client has taken the end
            async def send_once(message: Message) -> None:
                if message["type"] == "websocket.accept":
                    told.status = 101
                told.status = message.get("status", told.status)
                try:
                    await send(message)
                except OSError:
                    raise ClientGone from None

            try:
                request = HTTPConnection(scope)
                await receive()  # that the client wants to connect
                known = await self._knows(request)
                if known is None:
                    raise unknown_token()
                told.tenant, told.use = known[0].name, known[1]
                await paced(known[1], known[0])
                with admitted(known[1], known[0]):
                    seat.enter_context(_seated(*known))
                    await self._handler(SocketCall(request, *known, receive, send_once))
                await send_once({"type": "websocket.close", "code": 1000})
            except ClientGone:
                pass
            except asyncio.CancelledError:
                if told.use is None or not told.use.is_revoked:
                    raise
                with suppress(ClientGone):
                    await send_once({"type": "websocket.close", "code": 1008})
            except Exception as error:
                problem = problem_of(error)
                if problem.status == 500:
                    _log.error("%s failed: %s", self._name, told_with_place(error))
                with suppress(ClientGone):
                    if told.status:
                        await send_once({"type": "websocket.close", "code": 1011})
                    else:
                        await self._form(problem)(scope, receive, send_once)
