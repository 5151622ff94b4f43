"""
Reads the body of a call: bounded in bytes and time, and of the types that its route takes.

Runs in:   the operator's program that decides.
Trust:     none. Any bytes give a value or WebProblem.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import anyio
from starlette.requests import ClientDisconnect, Request

from leeward.approvals.web.problems import WebProblem, too_large

#: Bytes of a body, at most: of most calls, and of one that brings a file's content.
MOST_BODY, MOST_CONTENT_BODY = 1 << 16, 24 << 20

#: Bytes of bodies that are being read for one caller, at most.
MOST_HELD = 64 << 20

#: Seconds until a body has to be there.
BODY_S = 30.0

#: Fields of a form, at most.
MOST_FIELDS = 1000


def bad(message: str) -> WebProblem:
    return WebProblem(400, "bad_request", message)


class BodyReader:
    """
    Bodies, of which each caller has so many bytes at once. On one event loop.
    """

    def __init__(self) -> None:
        self._held: defaultdict[str, int] = defaultdict(int)

    async def read(self, request: Request, caller: str, most: int) -> bytes:
        """
        Raises:
            WebProblem: too large, too slow, or too much of this caller at once.
        """
        said = request.headers.get("content-length", "0")
        if not said.isascii() or not said.isdigit() or int(said[:20]) > most:
            raise too_large(most)
        pieces, size = list[bytes](), 0
        try:
            with anyio.fail_after(BODY_S):
                async for piece in request.stream():
                    size += len(piece)
                    self._held[caller] += len(piece)
                    if size > most:
                        raise too_large(most)
                    if self._held[caller] > MOST_HELD:
                        raise WebProblem(429, "busy", "too much is being sent at once", retry_after=1)
                    pieces.append(piece)
        except TimeoutError:
            raise WebProblem(408, "too_slow", f"a body is there within {BODY_S:g} seconds") from None
        except ClientDisconnect:
            raise bad("a body that was cut off") from None
        finally:
            self._held[caller] -= size
            if self._held[caller] <= 0:
                del self._held[caller]
        return b"".join(pieces)


def json_fields(body: bytes) -> dict[str, Any]:
    """
    The object that *body* is; an empty one of no body.

    Raises:
        WebProblem: it is none.
    """
    if not body:
        return {}
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # no half of a pair
    except (ValueError, RecursionError):
        raise bad("a body is one object of JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise bad("a body is one object of JSON in UTF-8")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def form_fields(body: bytes) -> dict[str, Any]:
    """
    The fields of a form of a page; of several of one name, the last.

    Raises:
        WebProblem: it is none.
    """
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body),
                              max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError:
        raise bad("a form that no page of ours sends") from None


def text(fields: Mapping[str, Any], name: str, default: str | None = None, most: int = 70000) -> str:
    """
    Raises:
        WebProblem: it isn't there and has no default, is no text or is too long.
    """
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise bad(f"{name}: a text")
    if len(value) > most:
        raise bad(f"{name}: {most} characters at most")
    return value


def number(fields: Mapping[str, Any], name: str, default: float | None = None, *, least: float = 0,
           most: float = 2**53) -> float:
    """
    Raises:
        WebProblem: it isn't there and has no default, is no number or out of bounds.
    """
    value = fields.get(name, default)
    if isinstance(value, str):  # of a query or a form
        try:
            value = float(value[:30])
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise bad(f"{name}: a number from {least:g} to {most:g}")
    return value


def whole(fields: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 0,
          most: int = 2**53) -> int:
    """
    Raises:
        WebProblem: it isn't there and has no default, is no whole number or out of bounds.
    """
    value = number(fields, name, default, least=least, most=most)
    if value != int(value):
        raise bad(f"{name}: a whole number")
    return int(value)


def switch(fields: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    """
    Raises:
        WebProblem: it isn't there and has no default, or is neither true nor false.
    """
    value = fields.get(name, default)
    if isinstance(value, str) and value in ("true", "false"):  # of a form
        return "true" == value
    if not isinstance(value, bool):
        raise bad(f"{name}: true or false")
    return value


def numbers(fields: Mapping[str, Any], name: str, most: int) -> list[int] | None:
    """
    A list of whole numbers; None where there is none.

    Raises:
        WebProblem: it is no such list, or too long.
    """
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > most or not all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= 2**53 for each in value):
        raise bad(f"{name}: a list of {most} whole numbers at most")
    return value
