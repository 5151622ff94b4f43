"""What an end that isn't trusted does to a WebSocket of a client's: it is played here, by bytes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leeward.base.paced_reading import PIECE

pytestmark = pytest.mark.needs("extra-serve")

#: Far more than the buffers of a socket and of the client hold of answers.
PINGS, PAYLOAD = 20_000, 125
ANSWER, END, MESSAGE = 6 + PAYLOAD, 6, 14 + (1 << 20)


def opened(serve: Callable[[socket.socket, Any], Coroutine[Any, Any, None]]) -> None:
    """Open a WebSocket, and have *serve* play its other end; it has the socket and the connection."""
    async def main() -> None:
        from leeward.client.websocket_opening import Opening

        near, far = socket.socketpair()
        loop = asyncio.get_running_loop()
        far.setblocking(False)
        with far:
            opening = asyncio.gather(Opening("ws://a/", sock=near, compression=None, proxy=None))
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await loop.sock_recv(far, 65536)
            key = next(line.split()[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
            accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            await loop.sock_sendall(far, b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                    b"Sec-WebSocket-Accept: %b\r\n\r\n" % accepted)
            made, = await opening
            try:
                await serve(far, made)
            finally:
                made.transport.abort()

    asyncio.run(main())


def ping(payload: bytes) -> bytes:
    return bytes((0x89, PAYLOAD)) + payload * PAYLOAD


def test_of_pings_whose_answers_nobody_reads_only_the_last_is_answered():
    async def serve(far: socket.socket, made: Any) -> None:
        loop, size, held = asyncio.get_running_loop(), 0, b""
        await loop.sock_sendall(far, ping(b"a") * PINGS + ping(b"b") + b"\x82\x01x")

        assert b"x" == await made.recv()
        assert made.transport.get_write_buffer_size() < 1 << 20

        while len(held) < ANSWER or held[2] ^ held[ANSWER - 1] != ord("b"):  # the last byte of the last whole answer
            data = await loop.sock_recv(far, 65536)
            size += len(data)
            held = (held + data)[-ANSWER - size % ANSWER:]
        assert size < ANSWER * PINGS

    opened(serve)


def test_pings_are_answered_behind_what_is_sent_meanwhile_and_so_is_the_end():
    async def serve(far: socket.socket, made: Any) -> None:
        loop, found = asyncio.get_running_loop(), b""
        sending = asyncio.ensure_future(made.send(b"s" * (1 << 20)))
        await asyncio.sleep(0)
        await loop.sock_sendall(far, ping(b"a") + ping(b"b") + b"\x88\x00")
        while len(found) < MESSAGE + 2 * ANSWER + END:
            found += await loop.sock_recv(far, 65536)
        await sending
        one, other, end = found[MESSAGE:][:ANSWER], found[MESSAGE + ANSWER:][:ANSWER], found[-END:]

        assert [b"\x8a", b"\x8a", b"\x88"] == [each[:1] for each in (one, other, end)]
        assert b"ab" == bytes(each[2] ^ each[-1] for each in (one, other))

    opened(serve)


def test_many_small_frames_leave_turns_to_others():
    async def serve(far: socket.socket, made: Any) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        pongs = b"\x8a\x00" * (1 << 15)
        await asyncio.get_running_loop().sock_sendall(far, pongs + b"\x82\x01x")
        beside = asyncio.ensure_future(other())
        assert b"x" == await made.recv()
        beside.cancel()
        assert turns >= len(pongs) // PIECE

    opened(serve)


def test_no_redirection_is_followed():
    from leeward.client.websocket_opening import Opening

    error = ConnectionError()
    assert error is Opening("ws://a/").process_redirect(error)
