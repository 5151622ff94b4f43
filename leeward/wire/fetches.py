"""
The requests and answers of one `fetch`, between client, daemon and broker: bounds, and a check for each field.

Trust:     none. Requests come from a client. Answers come from the broker, and contain what a host has sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest, PeerError, brief
from leeward.wire.fields import binary_of, entries, text

#: Of a request: characters of the URL and the method, fields, characters of all of them, and bytes of the body.
MAX_URL, MAX_METHOD, MAX_FIELDS, MAX_HEAD, MAX_BODY = 8192, 64, 64, 64 << 10, 16 << 20

#: Of a response: fields, characters of all of them, and URLs before the last one.
_MOST_FIELDS, _MOST_HEAD, _MOST_HISTORY = 4096, 256 << 10, 50

#: The entries of a policy that a client sends, and characters of it as a whole, about.
_MAX_POLICY, _MAX_POLICY_TEXT = 32, 64 << 10


def url(value: object, what: str) -> str:
    return text(value, what, MAX_URL)


def method(value: object, what: str) -> str:
    return text(value, what, MAX_METHOD)


def headers(value: object, what: str) -> tuple[tuple[str, str], ...]:
    found = []
    for row in entries(value, list, what, MAX_FIELDS):
        if not isinstance(row, list) or len(row) != 2:
            raise BadRequest(f"each of {what} is a name and a value")
        found.append((text(row[0], "a header's name", 256), text(row[1], "a header's value", MAX_HEAD)))
    if sum(len(name) + len(content) for name, content in found) > MAX_HEAD:
        raise BadRequest(f"{what} have more than {MAX_HEAD} characters together")
    return tuple(found)


body = binary_of(MAX_BODY)


def policy(value: object, what: str) -> dict[str, Any]:
    """The check of a policy's size. `spec.egress_policy` and `egress.short_form` check its meaning."""
    found: dict[str, Any] = entries(value, dict, what, _MAX_POLICY)
    if len(brief(found, _MAX_POLICY_TEXT + 1)) > _MAX_POLICY_TEXT:
        raise BadRequest(f"{what} has more than about {_MAX_POLICY_TEXT} characters")
    return found


def policy_entries(*policies: Mapping[str, Any]) -> int:
    """The number of rules and other entries in *policies*: reading one costs as much as a small request."""
    return sum(len(value) if isinstance(value, (list, dict)) else 1 for each in policies for value in each.values())


def check_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """
    The fields of *answer* that a fetch has: of a failure, or of a response without its body. PeerError if it is
    malformed.
    """
    if "failed" in answer:
        sent = answer.get("sent", True)
        if type(sent) is not bool:
            raise PeerError("a fetch's answer: sent is no bool")
        return {**{name: _text(answer.get(name)) for name in ("failed", "message", "url")}, "sent": sent}
    status, fields, history = answer.get("status"), answer.get("headers"), answer.get("history")
    if type(status) is not int or not 100 <= status <= 999:
        raise PeerError("a fetch's answer: no status")
    if not isinstance(fields, list) or len(fields) > _MOST_FIELDS or not all(
            isinstance(row, list) and len(row) == 2 for row in fields):
        raise PeerError("a fetch's answer: no headers")
    if not isinstance(history, list) or len(history) > _MOST_HISTORY:
        raise PeerError("a fetch's answer: no history")
    return {"status": status, "headers": [[_text(name), _text(value)] for name, value in fields],
            "history": [_text(each) for each in history], "url": _text(answer.get("url")),
            "address": _text(answer.get("address"))}


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_HEAD:
        raise PeerError("a fetch's answer: something is no text")
    return value
