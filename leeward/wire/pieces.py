"""
Messages in pieces, in which large values aren't copied: a copy of 1 MiB takes half a millisecond of page faults.

Runs in:   the daemon, and the processes in a sandbox that answer it; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from msgpack import Packer

from leeward.wire.frames import HEADER

Piece = Union[bytes, memoryview]  # noqa: UP007  # Python 3.9 can't evaluate the other form

#: Bytes from which a binary value is a piece of its own.
APART = 1 << 12
#: The first byte of such a value, before its length: MessagePack's bin 32.
_BINARY = b"\xc6"


def pieces_of(message: Mapping[str, Any], errors: str = "strict") -> list[Piece]:
    """*message* in MessagePack, searched for large values in maps alone. *errors*: for text that isn't valid Unicode."""
    packer, pieces = Packer(autoreset=False, unicode_errors=errors), list[Piece]()
    _put(packer, pieces, message)
    return [*pieces, packer.bytes()]


def _put(packer: Packer, pieces: list[Piece], value: object) -> None:
    # A function in `pieces_of` would refer to itself, and keep the large values until a collection.
    if isinstance(value, (bytes, memoryview)) and len(value) >= APART:
        pieces.extend((packer.bytes() + _BINARY + len(value).to_bytes(4, "big"), value))
        packer.reset()
    elif isinstance(value, Mapping):
        packer.pack_map_header(len(value))
        for name, each in value.items():
            packer.pack(name)
            _put(packer, pieces, each)
    else:
        packer.pack(value)


def framed(body: Sequence[Piece]) -> list[Piece]:
    """*body* with its length in front. Small pieces are joined."""
    pieces: list[Piece] = []
    small = [sum(map(len, body)).to_bytes(HEADER, "big")]
    for piece in body:
        if len(piece) < APART:
            small.append(bytes(piece))
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(piece)
    rest = b"".join(small)
    return [*pieces, rest] if rest else pieces
