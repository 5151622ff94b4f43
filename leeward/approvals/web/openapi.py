"""
The OpenAPI description of REST, made from the table of routes.

Runs in:   the operator's program that decides; pure except for the handler.
Source:    spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

import leeward
from leeward.approvals.routes import ROUTES, ServiceRoute
from leeward.approvals.rules import CATEGORIES, MODES
from leeward.approvals.web.calls import WebCall

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_SWITCH: dict[str, Any] = {"type": "boolean"}
_CATEGORY = {"type": "string", "enum": list(CATEGORIES)}
_EFFECT = {"type": "string", "enum": ["allow", "deny"]}
_COMMAND = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_SAID = {"reason": _TEXT, "asker": _TEXT}

#: The fields of bodies by the route's name; those with a star are required.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "ask": {"category*": _CATEGORY, "action": _TEXT, "host": _TEXT, "port": _WHOLE, "path": _TEXT, "content": _TEXT,
            "old": _TEXT, "new": _TEXT, "command": _COMMAND, "branch": _TEXT, "description": _TEXT, **_SAID},
    "approve": {"always": _SWITCH, "everywhere": _SWITCH, "hunks": {"type": "array", "items": _WHOLE},
                "profile": _TEXT},
    "deny": {"always": _SWITCH, "everywhere": _SWITCH},
    "bulk": {"approved*": _SWITCH, "ids": {"type": "array", "items": _WHOLE}, "category": _CATEGORY, "upto": _WHOLE},
    "add_rule": {"rule*": _TEXT, "effect*": _EFFECT, "project": _TEXT},
    "remove_rule": {"rule*": _TEXT, "project": _TEXT},
    "set_mode": {"category*": _CATEGORY, "mode*": {"type": "string", "enum": list(MODES)}},
    "set_config": {"key*": _TEXT, "value*": {}},
    "propose": {"key*": _TEXT, "value*": {}, **_SAID},
    "exec": {"command*": _COMMAND, "cwd": _TEXT, "timeout": _NUMBER, "profile": _TEXT, **_SAID},
    "packages": {"command*": _COMMAND, **_SAID},
    "sync_files": {"sandbox": _TEXT, "over": _SWITCH, "again": _SWITCH}, "sync_git": {"sandbox": _TEXT},
    "close_sandbox": {"left": _SWITCH},
    "open_sandbox": {"path*": _TEXT, "options": {"type": "object"}},
    "login_link": {}, "program_token": {},
}

QUERIES: Mapping[str, Mapping[str, Any]] = {
    "requests": {"which": {"type": "string", "enum": ["pending", "recent"]}, "after": _WHOLE, "limit": _WHOLE,
                 "category": _CATEGORY, "sandbox": _TEXT},
    "request": {"wait": _NUMBER}, "run": {"wait": _NUMBER}, "audit": {"limit": _WHOLE, "sandbox": _TEXT},
}

#: Routes that answer 201.
CREATED = ("ask", "exec", "packages", "propose", "sync_files", "sync_git", "add_rule", "open_sandbox", "login_link",
           "program_token")

ERRORS = {"400": "what was sent can't be done; the message says why", "401": "no session and no token",
          "403": "not for this caller", "404": "there is none", "409": "stale, or decided before",
          "413": "a body that is too large", "429": "too much at once; Retry-After says when again",
          "503": "shutting down, or the daemon is away"}


def document() -> dict[str, Any]:
    """The description, for JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        if route.method != "WEBSOCKET":
            path = re.sub(r":int\}", "}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    error = {"type": "object", "required": ["error", "detail"], "properties": {"error": _TEXT, "detail": _TEXT}}
    return {"openapi": "3.1.0",
            "info": {"title": "leeward approvals", "version": leeward.__version__,
                     "description": "A person decides what leaves a sandbox."},
            "paths": paths, "security": [{"token": []}, {"session": []}],
            "components": {"schemas": {"Error": error}, "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "leeward_PORT",
                            "description": "of a browser; each change needs the header X-CSRF-Token as well"}}}}


def _operation(route: ServiceRoute) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.name, "summary": route.about,
                             "description": "Sandboxes may call it." if route.asks else "The operator's alone."}
    parameters = [{"name": name, "in": "path", "required": True, "schema": _WHOLE if kind else _TEXT}
                  for name, kind in re.findall(r"\{(\w+)(:int)?\}", route.path)]
    parameters += [{"name": name, "in": "query", "schema": schema}
                   for name, schema in QUERIES.get(route.name, {}).items()]
    if parameters:
        found["parameters"] = parameters
    if route.name in BODIES:
        fields = BODIES[route.name]
        schema = {"type": "object", "properties": {name.rstrip("*"): each for name, each in fields.items()},
                  "required": [name[:-1] for name in fields if name.endswith("*")]}
        found["requestBody"] = {"required": bool(schema["required"]),
                                "content": {"application/json": {"schema": schema}}}
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found["responses"] = {"201" if route.name in CREATED else "200": {
        "description": "done", "content": {"application/json": {"schema": {"type": "object"}}}},
        **{status: {"description": about, "content": refused} for status, about in ERRORS.items()}}
    return found


async def openapi(call: WebCall) -> Response:
    """Answers with the description."""
    return JSONResponse(document())
