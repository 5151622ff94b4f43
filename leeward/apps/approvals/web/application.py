"""
The app: all routes behind the gate, and their description for OpenAPI. One app answers all of its listeners: the
operator's socket and the sandboxes' bridges, which identify the caller, and TCP, where the gate does.

Source:    spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

import leeward
from leeward.apps.approvals.daemon_view import DaemonView
from leeward.apps.approvals.service import ApprovalService
from leeward.apps.approvals.web import api, daemon_page, pages  # noqa: F401  # they declare routes
from leeward.apps.approvals.web.feed import LiveFeed
from leeward.apps.approvals.web.gate import SAFE, PageAccess, WebGate
from leeward.apps.approvals.web.held import HeldDecisions
from leeward.apps.approvals.web.http_call import PageFrame, PageParts, WebCall, WebParts, answered
from leeward.apps.approvals.web.routes import ROUTES, Row, WebField, WebRoute, route
from leeward.apps.approvals.web.websocket import live
from leeward.base.dataclass import MISSING

#: The module has imported whatever declares routes, so its ROUTES are all of them.
__all__ = ["ROUTES", "application", "viewing"]

#: The pages of who decides, and those of `leeward ui`, none of whose routes changes anything.
DECIDING = PageFrame({"/queue": "Queue", "/rules": "Rules", "/config": "Configuration", "/sandboxes": "Sandboxes",
                      "/history": "History", "/daemon": "Daemon"}, "leeward approvals page", decides=True)
VIEWING = PageFrame({"/daemon": "Daemon"}, "leeward ui")
VIEWED = ("home", "daemon_page", "login_page", "static_file")


def application(service: ApprovalService, access: PageAccess | None = None, feed: LiveFeed | None = None) -> Starlette:
    """The app that serves *service*; its `state.parts` is the WebParts."""
    parts = WebParts(frame=DECIDING, access=access or PageAccess(), daemon=service.daemon, service=service,
                     feed=feed or LiveFeed(service.queue), held=HeldDecisions(service.queue))
    service.subscribe_stop(parts.held.close)
    service.subscribe_output(parts.feed.output)

    async def look_on(socket: WebSocket) -> None:
        await live(parts, socket)

    return _behind_gate(parts, [
        WebSocketRoute(route.path, look_on) if route.method == "WEBSOCKET" else _route(parts, route) for route in ROUTES])


def viewing(daemon: DaemonView, access: PageAccess) -> Starlette:
    """The app of `leeward ui`, which has the routes of VIEWED alone; its `state.parts` is the PageParts."""
    parts = PageParts(frame=VIEWING, access=access, daemon=daemon)
    return _behind_gate(parts, [_route(parts, route) for route in ROUTES if route.name in VIEWED])


def _route(parts: PageParts, route: WebRoute) -> Route:
    return Route(route.path, answered(parts, route), methods=[route.method], name=route.name)


def _behind_gate(parts: PageParts, routes: list[BaseRoute]) -> Starlette:
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


ERRORS = {"400": "what was sent can't be done; the message says why", "401": "no session and no token",
          "403": "not for this caller", "404": "there is none", "409": "stale, or decided before",
          "413": "a body that is too large", "429": "too much at once; Retry-After says when again",
          "503": "shutting down, or the daemon is away"}


def document() -> dict[str, Any]:
    """The description, for JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for each in ROUTES:
        if not each.page and each.method != "WEBSOCKET":
            path = re.sub(r":int\}", "}", each.path)
            paths.setdefault(path, {})[each.method.lower()] = _operation(each)
    error = {"type": "object", "required": ["error", "detail"],
             "properties": {name: {"type": "string"} for name in ("error", "detail")}}
    return {"openapi": "3.1.0",
            "info": {"title": "leeward approvals", "version": leeward.__version__,
                     "description": "A person decides what leaves a sandbox."},
            "paths": paths, "security": [{"token": []}, {"session": []}],
            "components": {"schemas": {"Error": error}, "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "leeward_PORT",
                            "description": "of a browser; each change needs the header X-CSRF-Token as well"}}}}


def _operation(each: WebRoute) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.name, "summary": each.about,
                             "description": "Sandboxes may call it." if each.who == "asks" else "The operator's alone."}
    parameters = [{"name": name, "in": "path", "required": True,
                   "schema": {"type": "integer", "minimum": 0} if kind else {"type": "string"}}
                  for name, kind in re.findall(r"\{(\w+)(:int)?\}", each.path)]
    schemas = {name: _schema(field) for name, field in each.fields.items()}
    if each.method in SAFE:
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    else:
        needed = [name for name, field in each.fields.items() if field.is_needed]
        found["requestBody"] = {"required": bool(needed), "content": {"application/json": {"schema": {
            "type": "object", "properties": schemas, "required": needed}}}}
    if parameters:
        found["parameters"] = parameters
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found["responses"] = {str(each.status): {
        "description": "done", "content": {"application/json": {"schema": {"type": "object"}}}},
        **{status: {"description": about, "content": refused} for status, about in ERRORS.items()}}
    return found


def _schema(field: WebField) -> dict[str, Any]:
    default = {} if field.default in (MISSING, None) else {"default": field.default}
    return {**field.check.schema, **default, "description": field.about}


@route("GET", "/api/openapi.json", "This description.", who="asks")
async def openapi(call: WebCall) -> Row:
    return document()
