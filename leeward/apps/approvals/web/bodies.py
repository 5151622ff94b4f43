"""
Reads the body of a call within bounds of bytes and time.

Trust:     none. Any bytes give a value or WebProblem.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import parse_qsl

import anyio
from starlette.requests import ClientDisconnect, Request

from leeward.apps.approvals.web.problems import WebProblem, bad, too_large
from leeward.base.strict_json import json_object

#: Bytes of a body, at most: of most calls, and of one with a file's content.
MOST_BODY, MOST_CONTENT_BODY = 1 << 16, 24 << 20

#: Bytes of the bodies that are being read for one caller, at most.
MOST_HELD = 64 << 20

#: Seconds until a body has to be complete.
BODY_S = 30.0

#: Fields of a form, at most.
MOST_FIELDS = 1000


class BodyReader:
    """Reads bodies, with MOST_HELD bytes at once for each caller. For one event loop."""

    def __init__(self) -> None:
        self._held: defaultdict[str, int] = defaultdict(int)

    async def read(self, request: Request, caller: str, most: int) -> bytes:
        """
        The body of a call. WebProblem if it is larger than *most* bytes, takes longer than BODY_S, is cut off, or
        *caller* sends too many bytes at once.
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
            raise WebProblem(408, "too_slow", f"a body has to be complete within {BODY_S:g} seconds") from None
        except ClientDisconnect:
            raise bad("a body that was cut off") from None
        finally:
            self._held[caller] -= size
            if self._held[caller] <= 0:
                del self._held[caller]
        return b"".join(pieces)


def json_fields(body: bytes) -> dict[str, Any]:
    """The JSON object in *body*, in UTF-8; {} for an empty body."""
    try:
        return json_object(body) if body else {}
    except ValueError:
        raise bad("a body is one object of JSON in UTF-8") from None


def form_fields(body: bytes) -> dict[str, Any]:
    """The fields of a page's form, MOST_FIELDS at most; of several with one name the last."""
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body),
                              max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError:
        raise bad("this isn't a form of the page") from None
