"""
The protocol of `leeward mcp`: messages of the Model Context Protocol by standard input and output.

Runs in:   the user's program, which an agent starts; pure.
Trust:     none in the messages: a model writes the arguments of calls. A message that can't be parsed is answered with
           an error, and the next one is read.
Source:    modelcontextprotocol.io, revision 2025-06-18: basic/transports (stdio), basic/lifecycle, basic/utilities
           (cancellation, ping), server/tools. JSON-RPC 2.0 without batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from leeward.dataclass import dataclass, field

#: Revisions of the protocol that this server knows; the first is offered to a client that asks for another.
REVISIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
#: Bytes of one message, at most.
MAX_MESSAGE = 16 << 20

#: Error codes of JSON-RPC 2.0.
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
#: The server has as many calls as it runs at once.
BUSY = -32000

Id = str | int


class MalformedMessage(Exception):
    """
    The message can't be accepted.

    Attributes:
        code: of the error.
        id: of the request; None if it has none that can be read.
    """

    def __init__(self, code: int, message: str, id: Id | None = None) -> None:
        super().__init__(message)
        self.code, self.id = code, id


@dataclass(frozen=True, slots=True)
class McpMessage:
    """
    A request, or a notification.

    Attributes:
        method: its name.
        id: of a request; None for a notification.
        params: its parameters.
    """

    method: str
    id: Id | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def parse_message(line: bytes) -> McpMessage | None:
    """
    The message in *line*; None if it is an answer, which this server never asks for.

    Raises:
        MalformedMessage: *line* is no message.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedMessage(PARSE_ERROR, "not JSON") from None
    if not isinstance(found, dict):
        raise MalformedMessage(INVALID_REQUEST, "not a JSON object")
    id = found.get("id")
    if not (isinstance(id, str) and id.isprintable() and len(id) <= 1000) and not (
            type(id) is int and abs(id) < 1 << 63):
        if "id" in found:
            raise MalformedMessage(INVALID_REQUEST, "the id is neither a text nor a whole number")
        id = None
    method, params = found.get("method"), found.get("params", {})
    if "method" not in found and id is not None and ("result" in found or "error" in found):
        return None
    if "2.0" != found.get("jsonrpc") or not isinstance(method, str):
        raise MalformedMessage(INVALID_REQUEST, "not a request of JSON-RPC 2.0", id)
    if not isinstance(params, dict):
        raise MalformedMessage(INVALID_PARAMS, "the parameters are not an object", id)
    return McpMessage(method, id, params)


def result_of(id: Id, result: Mapping[str, Any]) -> bytes:
    """
    The line with the answer to request *id*.
    """
    return _line({"jsonrpc": "2.0", "id": id, "result": result})


def error_of(id: Id | None, code: int, message: str) -> bytes:
    """
    The line with an error as the answer to request *id*.
    """
    return _line({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _line(message: Mapping[str, Any]) -> bytes:
    # In ASCII, since half of a surrogate pair has no UTF-8.
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def revision_of(asked: object) -> str:
    """
    The revision of the protocol to speak with a client that asks for *asked*.
    """
    return asked if isinstance(asked, str) and asked in REVISIONS else REVISIONS[0]
