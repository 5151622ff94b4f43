"""A connection of HTTP/1: which requests are refused, what an answer is, and how long a client is waited for."""

from __future__ import annotations

import asyncio
import ssl

import pytest

pytestmark = pytest.mark.needs("extra-serve")

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /a%20b?c=%20 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: y\r\n\r\n"
CHUNKS = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Transport(asyncio.Transport):
    """One whose client reads what *reads* says."""

    def __init__(self, protocol, reads=True):
        super().__init__()
        self.protocol, self.sent, self.held = protocol, [], 0
        self.is_over, self.is_aborted, self.is_paused, self.reads = False, False, False, reads

    def write(self, data):
        self.sent.append(bytes(data))
        if not self.reads:
            self.held += len(data)
            self.protocol.pause_writing()

    def get_write_buffer_size(self):
        return self.held

    def close(self):
        self.is_over = True

    def abort(self):
        self.is_over = self.is_aborted = True
        self.held = 0

    def is_closing(self):
        return self.is_over

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def set_protocol(self, protocol):
        self.protocol = protocol


async def echo(scope, receive, send):
    """Answers with the body, in two pieces, and tells its length where the path is /."""
    body = b""
    while (event := await receive())["type"] == "http.request":
        body += event["body"]
        if not event["more_body"]:
            break
    length = [(b"content-length", b"%d" % (len(body) + 1))] if scope["path"] == "/" else []
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": b"<", "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def never(scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass


async def early(scope, receive, send):
    """Answers before it has read."""
    await send({"type": "http.response.start", "status": 413, "headers": []})
    await send({"type": "http.response.body"})


async def turns(count=30):
    for _ in range(count):
        await asyncio.sleep(0)


def run(*pieces, app=echo, then=None, reads=True, ws="none"):
    """The requests that *app* had, what was sent, and the transport; after each piece the loop has its turns."""
    import uvicorn
    from uvicorn.server import ServerState

    from leeward.apps.serve.connections import DoorConnection

    had = []

    async def told(scope, receive, send):
        had.append(scope)
        await app(scope, receive, send)

    async def over():
        config = uvicorn.Config(told, lifespan="off", log_config=None, ws=ws)
        config.load()
        state = ServerState()
        made = DoorConnection(config, state, {})
        transport = Transport(made, reads)
        made.connection_made(transport)
        for piece in pieces:
            if not transport.is_over:
                made.data_received(piece)
                await turns()
        if then is not None:
            await then(made, transport)
        made.connection_lost(None)
        await turns()
        assert ([], []) == ([*state.connections], [*state.tasks])
        return had, b"".join(transport.sent), transport

    return asyncio.run(over())


START = b"GET / HTTP/1.1\r\nHost: a\r\n"
REFUSED = [
    GET.replace(b"\r", b""), START + b"X: b\n\r\n", START + b"X: b\r\n c\r\n\r\n", b"\r\n" + GET, b"GET /\r\n\r\n",
    START + b"X : b\r\n\r\n", START + b"X: a\0b\r\n\r\n", START + b"X: a\rb\r\n\r\n", START + b"X\xff: b\r\n\r\n",
    START + b": b\r\n\r\n", START + b"Host: a\r\n\r\n", START + b"hOST: b\r\n\r\n", GET.replace(b"Host", b" Host"),
    GET.replace(b"GET ", b"GET  "), GET.replace(b"GET ", b"GET\t"), GET.replace(b"/ ", b"/\x80 "),
    GET.replace(b"/ ", b"/a#b "),
    GET.replace(b"/ ", b"http://a/ "), GET.replace(b"/ ", b"* "), GET.replace(b"/ ", b"a:80 "), GET.replace(b"GET", b"G@T"),
    GET.replace(b"1.1", b"2.0"), GET.replace(b"1.1", b"0.9"), GET.replace(b"1.1", b"1.2"), GET.replace(b"HTTP", b"http"),
    START + b"X: y\r\n" * 128 + b"\r\n", START + b"X: " + b"y" * 32768 + b"\r\n\r\n", b"GET /" + b"a" * 32768,
    *(START + told + b"\r\n\r\n0\r\n\r\n" for told in (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5\r\ncontent-length: 6", b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length: -5",
        b"Content-Length: 0x5", b"Content-Length: 1_0", b"Content-Length: ", b"Content-Length: " + b"9" * 20,
        b"Content-Length: \xb2", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding: ", b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \"chunked\"",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\ntransfer-encoding: x")),
    START.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]


@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("head", REFUSED)
def test_a_head_that_can_be_read_in_two_ways_is_refused(head, before):
    for pieces in ([before + head + GET], [before, *(head[at:at + 4096] for at in range(0, len(head), 4096)), GET]):
        had, sent, transport = run(*(piece for piece in pieces if piece))
        assert transport.is_over
        answers = [each[:4] for each in sent.split(b"HTTP/1.1")[1:]]
        assert [b" 200"] * len(had) == answers[:-1]
        assert (bool(before), True) == (bool(had), answers[-1] in (b" 400", b" 431", b" 501"))


@pytest.mark.parametrize("chunks", [
    b"1;x=y\r\na\r\n0\r\n\r\n", b"1 \r\na\r\n0\r\n\r\n", b"0x1\r\na\r\n0\r\n\r\n", b"+1\r\na\r\n0\r\n\r\n",
    b"-1\r\na\r\n0\r\n\r\n", b"1\na\r\n0\r\n\r\n", b"1\r\naX\r\n0\r\n\r\n12345", b"1\r\na\n0\r\n\r\n12345678",
    b"1\r\nab\r\n0\r\n\r\n123", b"000000001\r\na\r\n0\r\n\r\n", b"fffffffffffffffff\r\na", b"\r\n1\r\na\r\n0\r\n\r\n12",
    b"0\r\nX: y\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\n\n0123456789", b"0;x\r\n\r\n0123456789"])
def test_chunks_that_can_be_read_in_two_ways_are_refused(chunks):
    """Whether they are the whole request, or in pieces; and no request is taken out of what follows."""
    for pieces in ([CHUNKS + chunks + GET], [CHUNKS, *(chunks[at:at + 1] for at in range(len(chunks))), GET]):
        had, sent, transport = run(*pieces)
        assert (1, 1, True) == (len(had), sent.count(b" 400 "), transport.is_over)
        assert b" 200 " not in sent
    _, sent, transport = run(CHUNKS, chunks + GET, app=early)
    assert (1, True) == (sent.count(b"HTTP/1.1"), transport.is_over)


def test_the_same_bytes_are_the_same_requests_however_they_come():
    """Bodies of a length, in chunks, empty ones; what is whole waits for no more."""
    data = POST + b"abc" + GET + CHUNKS + b"2\r\nab\r\n0B\r\n\r\n1\r\n2\r\n345\r\n00\r\n\r\n" + CHUNKS + b"0\r\n\r\n" + GET
    whole = run(data)
    assert (["/a b", "/", "/", "/", "/"], b"c=%20") == ([each["path"] for each in whole[0]], whole[0][0]["query_string"])
    assert b"\r\n\r\n<ab\r\n1\r\n2\r\n345HTTP/1.1 200" in whole[1]
    assert 5 == whole[1].count(b"HTTP/1.1 200 OK\r\n")
    for size in (1, 2, 7):
        assert whole[1] == run(*(data[at:at + size] for at in range(0, len(data), size)))[1]
    assert not whole[2].is_over


@pytest.mark.parametrize(("head", "answer"), [
    (POST + b"abc", b"Transfer-Encoding: chunked\r\n\r\n1\r\n<\r\n3\r\nabc\r\n0\r\n\r\n"),
    (GET, b"content-length: 1\r\n\r\n<"), (GET.replace(b"GET", b"HEAD"), b"content-length: 1\r\n\r\n"),
    (b"GET /a HTTP/1.0\r\n\r\n", b"Connection: close\r\n\r\n<"),
    (START + b"Connection: x, Close\r\n\r\n", b"content-length: 1\r\nConnection: close\r\n\r\n<")])
def test_an_answer_ends_where_its_head_says(head, answer):
    _, sent, transport = run(head)
    assert (b"HTTP/1.1 200 OK\r\n" + answer, b"close" in answer) == (sent, transport.is_over)


def test_an_answer_without_a_body_tells_no_length_of_one():
    async def answers(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body"})

    assert run(GET, app=answers)[1] == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_what_is_written_in_one_iteration_is_sent_in_one_piece():
    assert 1 == len(run(GET)[2].sent)


def test_a_client_that_asks_before_its_body_is_told_to_go_on():
    asks = POST.replace(b"X: y", b"Expect: 100-continue")
    assert run(asks, b"abc")[1].startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    for each in (asks, asks.replace(b"100-c", b"100-C"), asks.replace(b"100", b"x, 100")):
        _, sent, transport = run(each, GET, app=early)  # whether the body comes is open, so that nothing else may
        assert (True, 1) == (transport.is_over, sent.count(b"HTTP/1.1"))
    assert b"100 Continue" not in run(asks.replace(b"P/1.1", b"P/1.0"), b"abc")[1]  # which it doesn't know


def test_requests_before_an_answer_wait_and_no_more_is_read():
    had, _, transport = run(POST + b"abc" + GET * 5000, app=never)
    assert (1, True) == (len(had), transport.is_paused)
    assert run(POST.replace(b"3", b"300000") + bytes(200_000), app=never)[0]
    had, sent, transport = run(POST + b"abc" + GET * 5000, then=lambda made, transport: turns(20_000))
    assert (5001, 5001, False) == (len(had), sent.count(b" 200 "), transport.is_paused)


def test_a_body_waits_in_the_system_until_somebody_reads_it():
    asked = asyncio.Event()

    async def late(scope, receive, send):
        await asked.wait()
        await echo(scope, receive, send)

    async def then(made, transport):
        assert transport.is_paused
        asked.set()
        await turns()
        assert not transport.is_paused
        made.data_received(bytes(100_000))
        await turns()

    assert 300_001 == len(run(POST.replace(b"/a%20b?c=%20", b"/").replace(b"3", b"300000") + bytes(200_000), app=late,
                              then=then)[1].partition(b"\r\n\r\n")[2])


def test_a_body_that_nobody_reads_does_not_hold_up_what_follows():
    assert not run(POST.replace(b"3", b"300000") + bytes(200_000), app=early)[2].is_paused


def test_no_websocket_begins_while_its_client_does_not_read():
    """Its class has no bound for what is written before the transport tells it."""
    from leeward.apps.serve.serving import sockets_of

    _, sent, transport = run(GET + START + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", reads=False,
                             ws=sockets_of(["ports"]))
    assert (True, 1) == (transport.is_over, sent.count(b" 400 "))


def test_a_body_that_comes_after_its_answer_is_no_request():
    had, sent, _ = run(POST.replace(b"3", b"%d" % len(GET)), GET[:9], GET[9:] + POST + b"abc", app=early)
    assert (["/a b"] * 2, 2) == ([each["path"] for each in had], sent.count(b" 413 "))


@pytest.mark.parametrize(("headers", "pieces"), [
    ([(b"x", b"a\r\nSet-Cookie: b")], [b""]), ([(b"x: y\r\nz", b"a")], [b""]), ([(b"x", b"a\0b")], [b""]),
    ([(b"content-length", b"1")], [b"ab"]), ([(b"content-length", b"1")], [b""]), ([(b"content-length", b"1")] * 2, [b"a"])])
def test_an_answer_that_would_be_read_as_another_ends_the_connection(headers, pieces):
    async def answers(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece})

    _, sent, transport = run(GET + GET, app=answers)
    assert (True, 1) == (transport.is_over, sent.count(b"HTTP/1.1"))
    assert not {b"Cookie", b"ab"} & {*sent.replace(b":", b" ").split()}


@pytest.mark.parametrize("seconds", ["HEAD_S", "IDLE_S"])
def test_every_head_and_every_wait_for_one_has_its_seconds(monkeypatch, seconds):
    from leeward.apps.serve import connections

    monkeypatch.setattr(connections, seconds, 0.01)
    slow = [(), (GET[:9],), (GET, GET[:9]), (GET + GET[:9],), (POST + b"abc", b"G")] if "HEAD_S" == seconds else [(GET,)]

    async def until_over(made, transport):
        async with asyncio.timeout(10):
            while not transport.is_over:
                for piece in (b"X", b"x") if "HEAD_S" == seconds and transport.sent else ():  # a byte now and then is no head
                    made.data_received(piece)
                await asyncio.sleep(0.001)

    for pieces in slow:
        had, sent, _ = run(*pieces, then=until_over)
        assert (len(had), "HEAD_S" == seconds and pieces != ()) == (sent.count(b" 200 "), b" 408 " in sent)


def test_what_comes_of_a_body_behind_its_answer_has_its_seconds(monkeypatch):
    from leeward.apps.serve import connections

    monkeypatch.setattr(connections, "HEAD_S", 0.01)

    async def until_over(made, transport):
        async with asyncio.timeout(10):
            while not transport.is_over:
                made.data_received(b"x")
                await asyncio.sleep(0.001)

    for head in (POST.replace(b"3", b"30000"), CHUNKS + b"fff\r\n"):
        assert 1 == run(head, app=early, then=until_over)[1].count(b"HTTP/1.1")


def test_an_answer_of_which_nothing_is_read_is_ended(monkeypatch):
    from leeward.apps.serve import connections

    monkeypatch.setattr(connections, "UNREAD_S", 0.01)

    async def until_over(made, transport):
        async with asyncio.timeout(10):
            while not transport.is_aborted:
                await asyncio.sleep(0.001)

    for head in (GET, START + b"Connection: close\r\n\r\n", b"nothing\r\n\r\n"):
        run(head, reads=False, then=until_over)


def test_an_answer_that_was_broken_off_ends_the_connection():
    async def fails(scope, receive, send):
        if scope["path"] != "/":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError

    assert (b"HTTP/1.1 500", True) == (run(GET, app=fails)[1][:12], run(GET, app=fails)[2].is_over)
    _, sent, transport = run(POST + b"abc", app=fails)
    assert (True, False) == (transport.is_over, sent.endswith(b"0\r\n\r\n"))


def test_strangers_keep_no_tenant_out(monkeypatch):
    """Where there is no room the oldest connection over which no tenant has called makes it."""
    import uvicorn
    from uvicorn.server import ServerState

    from leeward.apps.serve import connections
    from leeward.apps.serve.calls import Use

    async def run():
        state, config = ServerState(), uvicorn.Config(echo, lifespan="off", log_config=None)

        def connected():
            made = connections.CallerConnection(config, state, {})
            made.connection_made(Transport(made))
            return made

        first, second, third = (connected() for _ in range(3))
        first.use = Use(connections=1)
        fourth = connected()
        assert [False, True, False, False] == [each.transport.is_aborted for each in (first, second, third, fourth)]
        second.connection_lost(None)
        third.use = fourth.use = Use(connections=2)
        assert connected().transport.is_aborted
        for each in (first, third, fourth):
            each.connection_lost(None)
        assert not connections.CallerConnection.strangers

    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    asyncio.run(run())


def test_who_connects_and_begins_no_tls_keeps_nobody_out(monkeypatch, tmp_path):
    """The oldest of those ends, and none that has agreed upon it."""
    import uvicorn
    from uvicorn.server import ServerState

    from kit import egress_hosts
    from leeward.apps.serve import connections
    from leeward.apps.serve.serving import bind

    monkeypatch.setattr(connections, "most_connections", lambda: 16)
    monkeypatch.setattr(connections, "MOST_GREETING", 4)
    (tmp_path / "pem").write_text(egress_hosts.CERTIFICATE)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pem")

    async def over():
        config, state = uvicorn.Config(echo, lifespan="off", log_config=None, ws="none"), ServerState()
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: connections.CallerConnection(config, state, {}), sock=(listener := bind("127.0.0.1", 0)), ssl=tls)
        at = listener.getsockname()[:2]
        reader, writer = await asyncio.open_connection(
            *at, ssl=egress_hosts.trusting(), server_hostname="example.org")
        idle = [await asyncio.open_connection(*at) for _ in range(12)]
        for old, _ in idle[:8]:
            assert b"" == await old.read()
        assert not any(new.at_eof() for new, _ in idle[8:])
        writer.write(GET)
        assert b"HTTP/1.1 200 OK\r\n" == await reader.readline()
        for each in (writer, *(writer for _, writer in idle)):
            each.transport.abort()
        server.close()
        await turns()

    asyncio.run(asyncio.wait_for(over(), 30))
