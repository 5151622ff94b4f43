"""Whether the first line of a connection is HTTP."""

from __future__ import annotations

import pytest

from leeward.egress.opening import MAX_LINE, FirstLine


def read(data: bytes, size: int = 1 << 20) -> bool | None:
    line, found = FirstLine(), None
    for at in range(0, len(data), size):
        found = line.feed(data[at:at + size])
        if found is not None:
            return found
    return found


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1", b"get /x y HTTP/1.0\r\n", b"\r\n\r\n POST\t/\thttp/1.1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"X!#$-_.~9|` /  HTTP/3", b"GET http://evil.test/\r\n", b"get   HTTPS://evil.test/\n", b"PROXY TCP4 1.2.3.4",
    "GET /\xe9 HTTP/1.1".encode(), b"GET /\0 HTTP/1.1", b"M" * 3000 + b" / HTTP/1.1", b"GET /" + b"x" * 60000 + b" HTTP/1.1",
    b"GET evil.test:80 HTTP/1.1", b"\r\n" * 9000 + b"GET / HTTP/1.1", b"GET\x0b/\x0bHTTP/1.1", b"GET\x0c/\x0cHTTP/1.1",
    b"\x0c\x0bGET\r/\rHTTP/1.1", b"GET\x1c/\x1fHTTP/1.1", b"GET\x85/\xa0HTTP/1.1", b"GET\xa0/ HTTP/1.1",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11", b"GET\x0chttp://evil.test/"])
def test_a_request_is_one_however_it_is_written_and_cut(data: bytes) -> None:
    assert read(data)
    assert read(data, 1)
    assert read(data, 7)


@pytest.mark.parametrize("data", [
    b"SSH-2.0-OpenSSH_9.2\r\n", b"SSH-2.0-x\r\nhttp://a", b"EHLO example.org\r\n", b"\x00\x00\x00\x08",
    b"AMQP\0\0\x09\x01", b"GET key\r\n",
    b"*1\r\n$4\r\nPING\r\n", b"INVITE sip:a@b SIP/2.0\r\n", b"DESCRIBE rtsp:x RTSP/1.0\r\n", b"USER a\r\n",
    b"{}", "\xe9".encode(), b"\r\n\r\n\0\r\nQUIET\n", b"\r\n\r\n\0GET / HTTP/1.1", b"EHLO\r\n"])
def test_another_protocol_is_none(data: bytes) -> None:
    assert read(data) is False
    assert read(data, 1) is False


@pytest.mark.parametrize("data", [b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1", b"M" * (1 << 20) + b" / HTTP/1.1"])
def test_a_line_may_be_as_long_as_servers_take_one(data: bytes) -> None:
    assert read(data, 65521)


@pytest.mark.parametrize("data", [b"a " + b"x" * (MAX_LINE + 1), b"a" * (MAX_LINE + 1)])
def test_a_longer_line_is_none(data: bytes) -> None:
    assert read(data) is False


@pytest.mark.parametrize("data", [b"", b"\r\n", b"\r\n\r\n\0\r\n", b"ping", b"ping pong", b"GET / HTTP", b"GET / HT"])
def test_what_could_become_a_request_waits(data: bytes) -> None:
    assert read(data) is None


def test_little_is_kept_of_a_long_line() -> None:
    line = FirstLine()
    assert line.feed(b"GET " + b"x" * 60000) is None

    assert len(line._method) + len(line._target) + len(line._last) < 100
