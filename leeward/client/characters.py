"""Text that comes in pieces, which are cut anywhere; for the clients and the approvals service."""

from __future__ import annotations


def begun(data: bytes) -> bytes:
    """The first bytes of a character of UTF-8 with which *data* ends; b"" if it ends with a whole one."""
    for count in range(1, min(3, len(data)) + 1):
        byte = data[-count]
        if byte & 0xC0 != 0x80:  # of a character's bytes only the first
            size = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 1
            return data[-count:] if size > count else b""
    return b""


def text_of_piece(before: bytes, data: bytes, *, last: bool = False) -> tuple[str, bytes]:
    """
    The text of *data* after *before*, the character that the piece before has begun, with U+FFFD for what is invalid;
    and the character that *data* has begun, which is in the text if this piece is the *last*.
    """
    whole = before + data
    left = b"" if last else begun(whole)
    return whole[:len(whole) - len(left)].decode("utf-8", "replace"), left
