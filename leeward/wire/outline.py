"""
Read just enough of a request to refuse it, whether it is a job outside of a session, and its id; or to serve it, if it is
code alone. Every byte is compared, or bounded by the frame's own length.

Trust:     none. A request that isn't clearly such a job has no outline, and is parsed in full, which checks everything
           and gives the exact error. An outline says only that the values are well-formed and within the limits of
           `decode`: a client that is refused because no worker is free isn't told of invalid text and wrong fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leeward.errors import PeerError
from leeward.wire.frames import BINARY, HEADER, UNSIGNED, VERSION, skip, survey
from leeward.wire.requests import Execute, encode_request
from leeward.wire.schema import MAX_ID

if TYPE_CHECKING:
    from leeward.wire.frames import Bytes

#: Bytes of a field's name, at most: those of a short text. All names of the protocol are shorter.
_LONGEST = 31
_SHORT_TEXT, _SHORT_MAP = 0xA0, 0x80

#: Values in a field, at most, of a request that wasn't surveyed. One with more is parsed in full instead.
_FEW = 64


def whole(payload: bytes | memoryview) -> int:
    """The id of the job that *payload* asks for; 0 if it asks for something else or has no outline."""
    places: list[int] = []
    try:
        survey(payload, tops=places)
    except (PeerError, IndexError):
        return 0
    return _job(payload, [*places, len(payload)])


def unread(payload: Bytes) -> int:
    """
    As `whole`, for a payload that wasn't surveyed, and that the client may change meanwhile; 0 if a field has more than
    _FEW values.
    """
    places = [1]
    try:
        for _ in range(2 * (payload[0] & 15)):
            places.append(skip(payload, places[-1], _FEW))
    except IndexError:
        return 0
    return _job(payload, places)


def _job(payload: Bytes, places: Sequence[int]) -> int:
    """The id of the job. *places*: where each key and value of the map begins, and where the last one ends."""
    if not _SHORT_MAP < payload[0] < _SHORT_MAP + 16 or places[-1] != len(payload):
        return 0
    found: dict[bytes, tuple[int, int]] = {}
    for at, start, end in zip(places[::2], places[1::2], places[2::2], strict=False):
        key = bytes(payload[at + 1:start])
        if not _SHORT_TEXT < payload[at] <= _SHORT_TEXT + _LONGEST or key in found:
            return 0
        found[key] = start, end
    if not {b"v", b"id", b"op"} <= found.keys() or b"session" in found:
        return 0
    if _number(payload, *found[b"v"]) != VERSION or bytes(payload[slice(*found[b"op"])]) != b"\xa7execute":
        return 0
    return _number(payload, *found[b"id"])


def _number(payload: Bytes, start: int, end: int) -> int:
    first = payload[start]
    if first < 0x80:
        return first
    return int.from_bytes(payload[start + 1:end], "big") if first in UNSIGNED and end <= len(payload) else 0


# --- code alone -------------------------------------------------------------------

#: Bytes of a request that is compared. The general way copies less of a larger one.
MOST = 1 << 16

#: An encoded request is taken apart: the bytes before its id, and those between id and code.
_ID, _CODE = MAX_ID - 1, b"\0code\0"
_BEFORE_ID, _, _REST = encode_request(Execute(_ID, code=_CODE))[HEADER:].partition(b"\xcf" + _ID.to_bytes(8, "big"))
_BEFORE_CODE = _REST.removesuffix(bytes((0xC4, len(_CODE))) + _CODE)


def code_alone(payload: bytes) -> Execute | None:
    """
    The request in *payload* by comparison with a template, if it is a small one of code and nothing else; else None.

    While all workers are busy most requests are such ones, and to survey, decode and parse one takes ten times as long.
    """
    if len(payload) > MOST:
        return None
    head, _, rest = payload.partition(_BEFORE_CODE)
    if not rest or not head.startswith(_BEFORE_ID):
        return None
    packed = head[len(_BEFORE_ID):]
    if len(packed) == 1 and packed[0] < 0x80:
        number = packed[0]
    elif packed and UNSIGNED.get(packed[0], 0) == len(packed) - 1 > 0:
        number = int.from_bytes(packed[1:], "big")
    else:
        return None
    width = BINARY.get(rest[0])
    if width is None or len(rest) <= width or not 0 < number <= MAX_ID:
        return None
    code = rest[1 + width:]
    return Execute(number, code=code) if int.from_bytes(rest[1:1 + width], "big") == len(code) else None
