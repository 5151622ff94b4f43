"""
Client hellos for tests: made by hand, and by OpenSSL.

Runs in:   the tests.
"""

from __future__ import annotations

import ssl
import struct


def block(data: bytes, size: int) -> bytes:
    """Return *data* behind its length, which takes *size* bytes."""
    return len(data).to_bytes(size, "big") + data


def server_name(name: bytes, kind: int = 0) -> bytes:
    """Return the extension with a server's name."""
    return struct.pack(">H", 0) + block(block(bytes([kind]) + block(name, 2), 2), 2)


def hello(*extensions: bytes, session: bytes = b"s" * 32, tail: bytes = b"") -> bytes:
    """Return a client hello as a message of the handshake."""
    body = (b"\x03\x03" + b"r" * 32 + block(session, 1) + block(b"\x13\x01\x13\x02", 2) + block(b"\0", 1)
            + block(b"".join(extensions), 2) + tail)
    return b"\x01" + block(body, 3)


def records(message: bytes, *sizes: int) -> bytes:
    """Return *message* in records of these sizes; the last record has the rest."""
    pieces, place = [], 0
    for size in (*sizes, len(message)):
        pieces.append(message[place:place + size])
        place += size
    return b"".join(b"\x16\x03\x01" + block(piece, 2) for piece in pieces if piece)


def of_openssl(name: str | None, *protocols: str) -> bytes:
    """Return the bytes that this machine's OpenSSL sends first."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    if protocols:
        context.set_alpn_protocols(list(protocols))
    sent = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()
