"""
The OpenAPI description of REST, made from the routes.

Runs in:   the operator's program that decides; pure except for the handler.
Source:    spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
from typing import Any

import leeward
from leeward.approvals.web.calls import WebCall
from leeward.approvals.web.fields import WebField
from leeward.approvals.web.gate import SAFE
from leeward.approvals.web.routes import ROUTES, Row, WebRoute, route
from leeward.dataclass import MISSING

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
