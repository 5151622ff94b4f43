"""
The app: all routes behind the gate.

Runs in:   the operator's program that decides. One app answers all of its listeners: the operator's socket and the
           sandboxes' bridges, which identify the caller, and TCP, where the gate identifies the caller.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from leeward.approvals.service import ApprovalService
from leeward.approvals.web import api, openapi, pages  # noqa: F401  # they declare routes
from leeward.approvals.web.access import PageAccess
from leeward.approvals.web.calls import WebParts, answered
from leeward.approvals.web.feed import LiveFeed
from leeward.approvals.web.gate import WebGate
from leeward.approvals.web.live import live
from leeward.approvals.web.routes import ROUTES

#: The module has imported whatever declares routes, so its ROUTES are all of them.
__all__ = ["ROUTES", "application"]


def application(service: ApprovalService, access: PageAccess | None = None, feed: LiveFeed | None = None) -> Starlette:
    """
    Args:
        service: to serve.
        access: sessions, links and tokens; None for new ones.
        feed: of viewers; None for a new one.

    Returns:
        The app; its `state.parts` is the WebParts.
    """
    parts = WebParts(service, access or PageAccess(), feed or LiveFeed(service.queue))
    service.subscribe_output(parts.feed.output)

    async def look_on(socket: WebSocket) -> None:
        await live(parts, socket)

    routes: list[BaseRoute] = [
        WebSocketRoute(route.path, look_on) if route.method == "WEBSOCKET" else
        Route(route.path, answered(parts, route), methods=[route.method], name=route.name) for route in ROUTES]
    app = Starlette(routes=routes, middleware=[Middleware(WebGate, access=parts.access)],
                    exception_handlers={HTTPException: _no_route, Exception: _failed})
    app.router.redirect_slashes = False
    app.state.parts = parts
    return app


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    code = {404: "not_found", 405: "no_method"}.get(status, "bad_request")
    return JSONResponse({"error": code, "detail": "there is no such route"}, status)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal", "detail": "this failed; the service's log has more"}, 500)
