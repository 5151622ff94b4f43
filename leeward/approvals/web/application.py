"""
The app: the routes of both tables (`routes.ROUTES`, `pages.PAGES`) behind the gate.

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

from leeward.approvals.routes import ROUTES
from leeward.approvals.service import ApprovalService
from leeward.approvals.web import api, pages
from leeward.approvals.web.access import PageAccess
from leeward.approvals.web.calls import WebParts, answered
from leeward.approvals.web.feed import LiveFeed
from leeward.approvals.web.gate import WebGate
from leeward.approvals.web.live import live
from leeward.approvals.web.openapi import openapi

#: Routes whose body may have a file's content.
WITH_CONTENT = ("ask",)


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

    handlers = {**api.HANDLERS, "openapi": openapi}
    routes: list[BaseRoute] = []
    for route in ROUTES:
        if route.method == "WEBSOCKET":
            routes.append(WebSocketRoute(route.path, look_on))
            continue
        answer = answered(parts, handlers[route.name], who="asks" if route.asks else "operator",
                          content=route.name in WITH_CONTENT)
        routes.append(Route(route.path, answer, methods=[route.method], name=route.name))
    for route in pages.PAGES:
        answer = answered(parts, pages.HANDLERS[route.name],
                          who="anyone" if route.name in pages.FOR_ANYONE else "operator", page=True)
        routes.append(Route(route.path, answer, methods=[route.method], name=route.name))
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
