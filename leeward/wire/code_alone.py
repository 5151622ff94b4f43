"""
Recognizes a small request of code and nothing else by comparison with a template.

Trust:     none. Every byte is compared, or bounded by the frame's own length. Any other request is left to
           `frames.decode` and `requests.parse_request`, which also report what is wrong with it.

Why:       while all workers are busy most requests are such ones, and to survey, decode and parse one takes ten times
           as long.
"""

from __future__ import annotations

from leeward.wire.frames import HEADER
from leeward.wire.requests import Execute, encode_request
from leeward.wire.schema import MAX_ID

#: Bytes of a request that is compared. The general way copies less of a larger one.
MOST = 1 << 16

#: An encoded request is taken apart: the bytes before its id, and those between id and code.
_ID, _CODE = MAX_ID - 1, b"\0code\0"
_BEFORE_ID, _, _REST = encode_request(Execute(_ID, code=_CODE))[HEADER:].partition(b"\xcf" + _ID.to_bytes(8, "big"))
_BEFORE_CODE = _REST.removesuffix(bytes((0xC4, len(_CODE))) + _CODE)

#: Bytes of an unsigned number by its first byte, and of a binary's length.
_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4}


def code_alone(payload: bytes) -> Execute | None:
    """The request in *payload*, or None if it may be any other request, or none at all."""
    if len(payload) > MOST:
        return None
    head, _, rest = payload.partition(_BEFORE_CODE)
    if not rest or not head.startswith(_BEFORE_ID):
        return None
    packed = head[len(_BEFORE_ID):]
    if len(packed) == 1 and packed[0] < 0x80:
        number = packed[0]
    elif packed and _NUMBERS.get(packed[0], 0) == len(packed) - 1 > 0:
        number = int.from_bytes(packed[1:], "big")
    else:
        return None
    width = _LENGTHS.get(rest[0])
    if width is None or len(rest) <= width or not 0 < number <= MAX_ID:
        return None
    code = rest[1 + width:]
    return Execute(number, code=code) if int.from_bytes(rest[1:1 + width], "big") == len(code) else None
