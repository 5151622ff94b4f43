"""
The WebSocket: a viewer gets new requests and decisions, and can decide.

Sends:     init, request, resolve, rules, output, shutdown, error. After `shutdown`, and after an `error` whose code is
           "behind", the connection ends.
Takes:     approve and deny: `{"type": "approve", "id": 7, "always": false, "everywhere": false, "csrf": "..."}`. A
           browser has to send the session's CSRF token, and of a change the hunks and the digest; a program with a
           token or on the operator's socket has none of these.
Bounds:    a received message has 64 KiB at most. A viewer that doesn't read its messages is dropped: see feed.py.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from leeward.apps.approvals.web import bodies
from leeward.apps.approvals.web.api import DECISION, decide_one
from leeward.apps.approvals.web.blocking_calls import in_thread
from leeward.apps.approvals.web.feed import LiveViewer
from leeward.apps.approvals.web.gate import SESSION_KEY, Operator, credential_of
from leeward.apps.approvals.web.http_call import WebParts, is_csrf
from leeward.apps.approvals.web.json_objects import request_row, rules_row
from leeward.apps.approvals.web.problems import WebProblem, bad, forbidden, problem_of
from leeward.apps.approvals.web.routes import WebField, route, whole
from leeward.errors import LeewardError

#: Requests of the first message.
FIRST = 100

#: Characters of a received message, at most.
MOST_MESSAGE = 65536

#: Seconds that sending a message may take.
SEND_S = 10.0

#: Seconds without a message after which the session is checked again.
LOOK_S = 30.0


_BEHIND = {"type": "error", "error": "behind", "detail": "messages came faster than they were taken; connect again"}
_UNAUTHORIZED = {"type": "error", "error": "unauthorized", "detail": "the session is over"}

#: Of a message.
FIELDS = {"id": WebField(whole(), "of the request"), **{name: DECISION[name] for name in (
    "always", "everywhere", "hunks", "digest")}}


@route("WEBSOCKET", "/api/live", "Sends init, request, resolve, rules, output, shutdown, error; takes approve and deny.",
       FIELDS)
async def live(parts: WebParts, socket: WebSocket) -> None:
    """Answer a WebSocket."""
    credential = credential_of(socket.scope)
    if not isinstance(credential, Operator):
        await socket.close(1008, "forbidden" if credential else "unauthorized")
        return
    try:
        viewer = parts.feed.look()
    except LeewardError:
        await socket.close(1013, "busy")
        return
    try:
        await socket.accept()
        with anyio.fail_after(SEND_S):
            await socket.send_text(json.dumps(await _first(parts)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_send, parts, socket, viewer, tasks.cancel_scope)
            await _receive(parts, socket, credential)
            tasks.cancel_scope.cancel()
    except* (WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
        pass  # the viewer has left
    finally:
        parts.feed.leave(viewer)


async def _first(parts: WebParts) -> dict[str, Any]:
    queue = parts.service.queue
    found, status = await in_thread(queue.pending, FIRST), await in_thread(parts.service.status)
    return {"type": "init", "requests": [request_row(each, whole=False) for each in found],
            "pending": status["pending"], "rules": rules_row(queue.rules()), "status": status}


async def _send(parts: WebParts, socket: WebSocket, viewer: LiveViewer, scope: anyio.CancelScope) -> None:
    session = socket.scope.get(SESSION_KEY)
    try:
        while True:
            texts: list[str] = []
            with anyio.move_on_after(LOOK_S):
                texts = await viewer.take()
            is_over = viewer.dropped or (session is not None and parts.access.is_over(session))
            if is_over:
                texts = [json.dumps(_BEHIND if viewer.dropped else _UNAUTHORIZED)]
            for text in texts:
                with anyio.fail_after(SEND_S):
                    await socket.send_text(text)
                if text.startswith('{"type": "shutdown"'):
                    await socket.close(1001, "shutdown")
                    return
            if is_over:
                await socket.close(1008 if not viewer.dropped else 1013)
                return
    except (WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
        pass
    finally:
        scope.cancel()


async def _receive(parts: WebParts, socket: WebSocket, credential: Operator) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            fields = message_fields(message.get("text"))
            await _decide(parts, socket, credential, fields)
        except LeewardError as error:
            problem = problem_of(error)
            with anyio.fail_after(SEND_S):
                await socket.send_text(json.dumps({"type": "error", **problem.body}))


def message_fields(text: object) -> dict[str, Any]:
    """The JSON object of a message."""
    if not isinstance(text, str) or len(text) > MOST_MESSAGE:
        raise bad(f"a message is one object of JSON with {MOST_MESSAGE} characters at most")
    return bodies.json_fields(text.encode("utf-8", "replace"))


async def _decide(parts: WebParts, socket: WebSocket, credential: Operator, fields: dict[str, Any]) -> None:
    kind = fields.get("type")
    if kind not in ("approve", "deny"):
        raise bad("type: approve or deny")
    session = socket.scope.get(SESSION_KEY)
    if session is not None and (not is_csrf(session, fields.get("csrf")) or parts.access.is_over(session)):
        raise forbidden("it lacks the session's CSRF token, or the session is over")
    said = {name: each.read(fields, name) for name, each in FIELDS.items()}
    number = said.pop("id")
    try:
        await decide_one(parts, number, kind == "approve", credential.by, in_browser=session is not None, **said)
    except WebProblem as problem:
        problem.more.setdefault("id", number)
        raise
