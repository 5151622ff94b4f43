"""The process: how its answers are sent, and its end."""

from __future__ import annotations

import asyncio

import pytest

from leeward.base.paced_reading import PIECE

pytestmark = pytest.mark.needs("extra-serve")


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent = []

    def write(self, data):
        self.sent.append(bytes(data))

    def close(self):
        self.sent.append("closed")


def test_a_websocket_whose_client_has_gone_does_not_keep_the_server_from_ending(monkeypatch):
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    from leeward.apps.serve.serving import sockets_of

    def fails(self):
        raise AssertionError

    monkeypatch.setattr(WebSocketsSansIOProtocol, "shutdown", fails)
    kind = sockets_of(["ports"])
    made = kind.__new__(kind)
    made.transport = Transport()
    made.transport.abort = lambda: made.transport.sent.append("aborted")
    made.shutdown()
    assert ["aborted"] == made.transport.sent
    assert "none" == sockets_of(["run-code"])


UPGRADE = (b"GET /api/kernels/a/channels HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
           b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
PING = b"\x89\xfd\0\0\0\0" + b"p" * 125


class Reading(asyncio.Transport):
    """One whose other end reads nothing: what is written stays."""

    def __init__(self):
        super().__init__()
        self.held, self.is_over, self.protocol = bytearray(), False, None

    def write(self, data):
        self.held += data
        if len(self.held) > 65536:
            self.protocol.pause_writing()

    def is_closing(self):
        return self.is_over

    def close(self):
        self.is_over = True  # asyncio waits until all is read

    def abort(self):
        self.is_over = True
        self.held.clear()
        self.protocol.connection_lost(None)

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def opened(handler, early=b"", head=UPGRADE, made=lambda _: None):
    """A WebSocket whose client reads nothing, and its tenant's use."""
    import uvicorn
    from uvicorn.server import ServerState

    from leeward.apps.serve.calls import Use
    from leeward.apps.serve.connections import EndingTransport
    from leeward.apps.serve.jupyter_face import refused
    from leeward.apps.serve.serving import sockets_of
    from leeward.apps.serve.sockets import SocketEndpoint
    from leeward.apps.serve.tokens import ServeTenant

    use, tenant = Use(), ServeTenant("t", "t")

    async def knows(_request):
        return tenant, use

    config = uvicorn.Config(SocketEndpoint("x", knows, refused, handler), lifespan="off", log_config=None)
    socket, transport = sockets_of(["jupyter"])(config, ServerState(), {}), Reading()
    transport.protocol = socket
    made(transport)
    socket.connection_made(EndingTransport(transport, asyncio.get_running_loop()))
    socket.data_received(head + early)
    async with asyncio.timeout(10):
        while not transport.held and not transport.is_over:
            await asyncio.sleep(0)
    return socket, transport, use


def test_answers_to_pings_that_nobody_reads_are_few():
    async def over(call):
        await call.accept()
        await call.message()

    async def run():
        made, transport, _ = await opened(over)
        for _ in range(1000):
            made.data_received(PING * 50)
        assert 0 < len(transport.held) < 200_000
        transport.held.clear()
        made.resume_writing()
        assert 50 * 127 == len(transport.held)  # the last ones
        transport.abort()

    asyncio.run(run())


def test_a_message_has_so_many_frames_and_no_more():
    """Empty ones end at no bound of bytes; with fewer a message is whole."""
    from leeward.apps.serve.door_socket import MOST_PIECES

    had = []

    async def over(call):
        await call.accept()
        had.append(await call.message())
        await call.message()

    async def run():
        made, transport, _ = await opened(over)
        piece = b"\0\x80\0\0\0\0"
        made.data_received(b"\x01\x81\0\0\0\0x" + piece * (MOST_PIECES - 2) + b"\x80" + piece[1:])
        while not had:
            await asyncio.sleep(0)
        assert ["x"] == had
        made.data_received(b"\x01\x81\0\0\0\0x" + piece * (MOST_PIECES - 1))
        while len(made.frames) < MOST_PIECES:
            await asyncio.sleep(0)
        assert not transport.is_over
        made.data_received(piece * 20_000)
        while not transport.is_over:
            await asyncio.sleep(0)
        assert (True, b"\x88\x02\x03\xf1", MOST_PIECES) == (transport.is_over, transport.held[-4:], len(made.frames))
        transport.abort()

    asyncio.run(run())


def test_many_small_frames_leave_turns_to_others():
    had, pongs = [], b"\x8a\x80\0\0\0\0" * 20_000

    async def over(call):
        await call.accept()
        had.append(await call.message())

    async def run():
        turns, (made, transport, _) = 0, await opened(over)
        made.data_received(pongs + b"\x81\x81\0\0\0\0x")
        while not had:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= len(pongs) // PIECE
        transport.abort()

    asyncio.run(run())


def test_nothing_is_written_to_a_websocket_whose_client_has_gone():
    """asyncio would log each answer to a ping, and what has to be known would be among thousands."""
    async def over(call):
        await call.accept()
        await call.message()

    async def run():
        made, transport, _ = await opened(over)
        transport.is_over, written = True, len(transport.held)  # it was reset; the next iteration of the loop tells
        made.data_received(PING * 100)
        assert written == len(transport.held)
        transport.abort()

    asyncio.run(run())


@pytest.mark.parametrize("ended", ["before it opens", "by what is no text"])
def test_a_websockets_end_writes_no_line_of_the_log(caplog, ended):
    """Else any client could fill it."""
    async def handler(call):
        if "before it opens" == ended:
            transports[0].close()  # and the rest of an answer before it is still to be read
        await call.accept()
        await call.send({"type": "websocket.send", "text": "x"})
        await call.message()

    transports = []

    async def run():
        made, transport, _ = await opened(handler, made=transports.append)
        if "by what is no text" == ended:
            made.data_received(b"\x81\x81\0\0\0\0\xff")
            assert b"\x88\x02\x03\xef" == transport.held[-4:]  # 1007
        for _ in range(10):
            await asyncio.sleep(0)
        assert transport.is_over
        transport.abort()

    asyncio.run(run())
    assert [] == caplog.messages


def test_a_record_is_one_line_that_drives_no_terminal():
    import logging
    import os

    from leeward.apps.serve.serving import _LineHandler

    read, written = os.pipe()
    _LineHandler(written).emit(logging.LogRecord("x", logging.ERROR, "a.py", 1, "a\nb\x1b[2J\u202e", (), None))
    os.close(written)
    with open(read, "rb") as reader:
        assert b"a\\nb\\x1b[2J\\u202e\n" == reader.read()


def test_a_flood_of_connections_is_taken_a_few_in_each_round():
    """Else calls over the others wait for all that have come, and those that have gone stay open as long."""
    import socket
    import struct

    from leeward.apps.serve.serving import MOST_UNTAKEN, TAKEN, bind

    async def run():
        listener, counts, made = bind("127.0.0.1", 0), [], []

        class Counted(asyncio.Protocol):
            def connection_made(self, transport):
                made.append(transport)

        clients = [socket.create_connection(listener.getsockname()) for _ in range(5 * TAKEN)]
        server = await asyncio.get_running_loop().create_server(Counted, sock=listener, backlog=TAKEN)
        (most,) = struct.unpack_from("I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128), 28)
        async with asyncio.timeout(10):
            while len(made) < len(clients):
                counts.append(len(made))
                await asyncio.sleep(0)
        for each in (*clients, *made, server):
            each.close()
        return most, max(after - before for before, after in zip(counts, [*counts[1:], len(made)], strict=True))

    assert (MOST_UNTAKEN, TAKEN) == asyncio.run(run())


def test_a_websocket_that_its_class_cannot_read_is_ended():
    """Such as one with a longer line than it takes."""
    async def run():
        _, transport, _ = await opened(None, head=UPGRADE[:-2] + b"X: " + b"x" * 9000 + b"\r\n\r\n")
        assert transport.is_over

    asyncio.run(run())


@pytest.mark.parametrize(("early", "late"), [
    (b"\x81\x81\0\0\0\0\xff", b""), (b"\x0c\x80\0\0\0\0", b""), (b"", b"\x81\x81\0\0\0\0\xff\x88\x80\0\0\0\0")])
def test_what_is_no_message_before_a_websocket_is_open_or_beside_its_end_ends_it(early, late):
    """Without an exception, which the log would have as a fault of the server's."""
    async def handler(call):
        await call.accept()
        await call.message()

    async def run():
        made, transport, use = await opened(handler, early)
        if late:
            made.data_received(late)
        assert transport.is_over
        for _ in range(10):
            await asyncio.sleep(0)
        assert (0, 0) == (use.connections, use.streams)

    asyncio.run(run())


@pytest.mark.parametrize("end", ["an error", "the client's", "a ping without an answer"])
def test_a_websocket_that_ends_and_whose_client_reads_nothing_has_its_seat_until_it_is_gone(monkeypatch, end):
    """Else one tenant could have all connections that the server takes."""
    from leeward.apps.serve import connections
    from leeward.apps.serve.problems import bad

    async def handler(call):
        await call.accept()
        await call.send({"type": "websocket.send", "bytes": bytes(100_000)})
        if "an error" == end:
            raise bad("x")
        await call.message()

    async def run():
        made, transport, use = await opened(handler)
        while len(transport.held) < 100_000:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert 1 == use.connections
        if "the client's" == end:
            made.eof_received()
        else:
            made.keepalive_timeout()
        assert transport.is_over
        async with asyncio.timeout(10):
            while use.connections:
                await asyncio.sleep(0)
        assert not transport.held

    monkeypatch.setattr(connections, "LAST_S", 0.01)
    asyncio.run(run())


def test_websockets_that_are_opened_too_fast_are_refused(monkeypatch):
    from leeward.apps.serve import calls

    async def handler(call):
        await call.accept()

    async def run():
        from leeward.apps.serve.calls import Use
        from leeward.apps.serve.jupyter_face import refused
        from leeward.apps.serve.sockets import SocketEndpoint
        from leeward.apps.serve.tokens import ServeTenant, TenantQuota

        use, told = Use(), []

        async def knows(_request):
            return ServeTenant("t", "t", quota=TenantQuota(rate=1)), use

        async def receive():
            return {"type": "websocket.connect"}

        async def send(event):
            told.append(event.get("status", event["type"]))

        for _ in range(2):
            scope = {"type": "websocket", "headers": [], "query_string": b"", "path": "/",
                     "extensions": {"websocket.http.response": {}}}
            await SocketEndpoint("x", knows, refused, handler)(scope, receive, send)
        return told

    monkeypatch.setattr(calls, "PAUSE_S", 0.0)
    assert ["websocket.accept", "websocket.close", 429] == asyncio.run(run())[:3]
