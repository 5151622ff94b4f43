"""
Read just enough of a request to refuse it: whether it is a job outside of a session, and its id.

Trust:     none. A request that isn't clearly such a job has no outline, and is parsed in full, which checks everything
           and gives the exact error. An outline says only that the values are well-formed and within the limits of
           `decode`: a client that is refused because no worker is free isn't told of invalid text and wrong fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.errors import PeerError
from leeward.wire.frames import MAX_VALUES, VERSION, skip, survey

if TYPE_CHECKING:
    from leeward.wire.frames import Bytes

#: Bytes of a field's name, at most: those of a short text. All names of the protocol are shorter.
_LONGEST = 31
_SHORT_TEXT, _SHORT_MAP = 0xA0, 0x80
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}

#: Values in a field, at most, of a request that wasn't surveyed. One with more is parsed in full instead.
_FEW = 64


def whole(payload: bytes | memoryview) -> int:
    """The id of the job that *payload* asks for; 0 if it asks for something else or has no outline."""
    try:
        survey(payload)
    except (PeerError, IndexError):
        return 0
    return unread(payload, MAX_VALUES)


def unread(payload: Bytes, most: int = _FEW) -> int:
    """
    As `whole`, for a payload that wasn't surveyed, and that the client may change meanwhile; 0 if a field has more than
    *most* values.
    """
    found: dict[bytes, tuple[int, int]] = {}
    try:
        entries = payload[0] - _SHORT_MAP
        if not 0 < entries < 16:
            return 0
        at = 1
        for _ in range(entries):
            size = payload[at] - _SHORT_TEXT
            if not 0 < size <= _LONGEST:
                return 0
            key = bytes(payload[at + 1:at + 1 + size])
            start = at + 1 + size
            at = skip(payload, start, most)
            if key in found:
                return 0
            found[key] = start, at
    except IndexError:
        return 0
    if at != len(payload):
        return 0
    if not {b"v", b"id", b"op"} <= found.keys() or b"session" in found:
        return 0
    if _number(payload, *found[b"v"]) != VERSION or bytes(payload[slice(*found[b"op"])]) != b"\xa7execute":
        return 0
    return _number(payload, *found[b"id"])


def _number(payload: Bytes, start: int, end: int) -> int:
    first = payload[start]
    if first < 0x80:
        return first
    return int.from_bytes(payload[start + 1:end], "big") if first in _UNSIGNED and end <= len(payload) else 0
