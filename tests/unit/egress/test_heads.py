"""Request heads: what is read of one, and each way of smuggling that is refused."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.egress.heads import MAX_FIELDS, MAX_HEAD, Head, HeadError, find_end, parse_head
from leeward.spec.hosts import Host

HOST = "Host: example.org"


def head(*lines: str) -> bytes:
    """Lines as a head."""
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def test_a_head_of_origin_form() -> None:
    """What goes on: no Host, nothing of this hop's, names in lower case."""
    assert Head("GET", "origin", "/a?b", Host("example.org"), 80,
                ((b"accept", b"*/*"), (b"x-one", b"1, 2"), (b"x-one", b""), (b"x-two", b"\xe9")), 0,
                True) == parse_head(
        head("GET /a?b HTTP/1.1", "Host: Example.org", "Accept: */*", "X-One:1, 2 \t", "X-One:",
             "Connection: X-Hop, TE", "X-Hop: 1", "TE: trailers", "Keep-Alive: 5", "Proxy-Connection: keep-alive",
             "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Proxy-Authorization: Basic eA==", "Trailer: x",
             "X-Two: \u00e9"))


@pytest.mark.parametrize(("line", "host", "form", "target", "found", "port"), [
    ("GET / HTTP/1.1", "example.org.:8080", "origin", "/", Host("example.org"), 8080),
    ("GET //a HTTP/1.1", "example.org", "origin", "//a", Host("example.org"), 80),
    ("GET http://EXAMPLE.org/a?b HTTP/1.1", "example.org", "absolute", "/a?b", Host("example.org"), 80),
    ("GET http://example.org HTTP/1.1", "example.org:80", "absolute", "/", Host("example.org"), 80),
    ("GET http://example.org:81?x HTTP/1.1", "example.org:81", "absolute", "/?x", Host("example.org"), 81),
    ("CONNECT example.org:443 HTTP/1.1", "example.org:443", "authority", "", Host("example.org"), 443),
    ("CONNECT example.org:443 HTTP/1.1", "example.org", "authority", "", Host("example.org"), 443),
    ("CONNECT [::1]:443 HTTP/1.1", "[::1]:443", "authority", "", Host("", ip_address("::1")), 443),
    ("CONNECT 0x7f.1:22 HTTP/1.1", "127.0.0.1", "authority", "", Host("", ip_address("127.0.0.1")), 22),
    ("OPTIONS * HTTP/1.1", "example.org", "asterisk", "*", Host("example.org"), 80),
    ("GET / HTTP/1.1", "2130706433", "origin", "/", Host("", ip_address("127.0.0.1")), 80),
])
def test_forms_of_the_target(line: str, host: str, form: str, target: str, found: Host, port: int) -> None:
    """Which host and port are meant, and the target as it goes on."""
    read = parse_head(head(line, f"Host: {host}"))

    assert (form, target, found, port) == (read.form, read.target, read.host, read.port)


def test_a_tunnel_by_http_1_0_needs_no_host_field() -> None:
    """As Python's own client asks for one before 3.12."""
    read = parse_head(head("CONNECT example.org:443 HTTP/1.0"))

    assert ("authority", Host("example.org"), 443, False) == (read.form, read.host, read.port, read.keeps)


@pytest.mark.parametrize(("authority", "host", "port"), [
    ("example.org", "example.org", 443), ("example.org:80", "example.org:80", 80), ("[::1]:81", "[::1]:81", 81),
])
def test_the_authority_that_goes_on(authority: str, host: str, port: int) -> None:
    """In TLS the port that needn't be said is 443."""
    read = parse_head(head("GET / HTTP/1.1", f"Host: {authority}"), "https")

    assert port == read.port
    assert host == read.authority


@pytest.mark.parametrize(("lines", "length", "keeps", "upgrade"), [
    (("GET / HTTP/1.1",), 0, True, ""),
    (("GET / HTTP/1.1", "Connection: close"), 0, False, ""),
    (("GET / HTTP/1.1", "Connection: Keep-Alive, CLOSE"), 0, False, ""),
    (("GET / HTTP/1.0",), 0, False, ""),
    (("GET / HTTP/1.0", "Connection: keep-alive"), 0, True, ""),
    (("POST / HTTP/1.1", "Content-Length: 007"), 7, True, ""),
    (("POST / HTTP/1.1", "Transfer-Encoding: Chunked"), None, True, ""),
    (("GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: WebSocket"), 0, True, "websocket"),
    (("GET / HTTP/1.1", "Upgrade: websocket"), 0, True, ""),
    (("GET / HTTP/1.1", "Connection: upgrade", "Upgrade: h2c"), 0, True, ""),
    (("GET / HTTP/1.1", "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c"), 0, True, ""),
    (("POST / HTTP/1.1", "Expect: 100-Continue", "Content-Length: 1"), 1, True, ""),
])
def test_length_persistence_and_upgrade_of_a_head_are_read(lines: tuple[str, ...], length: int | None, keeps: bool,
                                                           upgrade: str) -> None:
    """The body, another request, another protocol."""
    read = parse_head(head(*lines, HOST))

    assert (length, keeps, upgrade) == (read.length, read.keeps, read.upgrade)


@pytest.mark.parametrize(("lines", "status", "reason"), [
    # Two readings of the body.
    (("POST / HTTP/1.1", HOST, "Content-Length: 5", "Transfer-Encoding: chunked"), 400, "both"),
    (("POST / HTTP/1.1", HOST, "Content-Length: 5", "Transfer-Encoding: identity"), 400, "both"),
    (("POST / HTTP/1.1", HOST, "Content-Length: 5", "Content-Length: 5"), 400, "2 fields content-length"),
    (("POST / HTTP/1.1", HOST, "Content-Length: 5, 5"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length: +5"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length: 0x5"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length: \u00b2"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length:"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length: -0"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Content-Length: 1234567890123456"), 400, "no number"),
    (("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400, "2 fields"),
    (("POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip, chunked"), 501, "other than chunked"),
    (("POST / HTTP/1.1", HOST, "Transfer-Encoding: xchunked"), 501, "other than chunked"),
    (("POST / HTTP/1.1", HOST, "Transfer-Encoding: \x0bchunked"), 400, "no field"),
    (("POST / HTTP/1.1", HOST, "Transfer-Encoding:"), 501, "other than chunked"),
    (("POST / HTTP/1.0", HOST, "Transfer-Encoding: chunked"), 400, "HTTP/1.0"),
    (("POST / HTTP/1.1", HOST, "Connection: content-length", "Content-Length: 5"), 400, "Connection field"),
    (("POST / HTTP/1.1", HOST, "Connection: Host"), 400, "Connection field"),
    # Lines.
    (("GET / HTTP/1.1", HOST, " folded"), 400, "folded"),
    (("GET / HTTP/1.1", HOST, "A: b", "\tc"), 400, "folded"),
    (("GET / HTTP/1.1", " Host: example.org"), 400, "folded"),
    (("GET / HTTP/1.1", "Host : example.org"), 400, "no field"),
    (("GET / HTTP/1.1", HOST, "A\0: b"), 400, "no field"),
    (("GET / HTTP/1.1", HOST, "A: b\0c"), 400, "no field"),
    (("GET / HTTP/1.1", HOST, "A"), 400, "no field"),
    (("GET / HTTP/1.1", HOST, ": b"), 400, "no field"),
    (("GET / HTTP/1.1", HOST, "A: b\nC: d"), 400, "bare"),
    (("GET / HTTP/1.1", HOST, "A: b\rC: d"), 400, "bare"),
    (("GET / HTTP/1.1", HOST, *("A: b" for _ in range(MAX_FIELDS))), 431, "fields"),
    # The first line.
    (("GET  / HTTP/1.1", HOST), 400, "no request line"), (("GET / HTTP/1.1 ", HOST), 400, "no request line"),
    (("GET /a b HTTP/1.1", HOST), 400, "no request line"), (("GET /", HOST), 400, "no request line"),
    (("GET\t/ HTTP/1.1", HOST), 400, "no request line"), (("G@T / HTTP/1.1", HOST), 400, "no request line"),
    (("GET /\u00e9 HTTP/1.1", HOST), 400, "no request line"), (("GET / http/1.1", HOST), 400, "no request line"),
    (("GET / HTTP/2.0", HOST), 505, "version"), (("PRI * HTTP/2.0",), 505, "version"),
    (("GET / HTTP/1.2", HOST), 505, "version"), (("GET /" + "a" * 16384 + " HTTP/1.1", HOST), 414, "16384"),
    (("GET /a#b HTTP/1.1", HOST), 400, "fragment"), (("GET http://example.org/#b HTTP/1.1", HOST), 400, "fragment"),
    (("GET a HTTP/1.1", HOST), 400, "the target"), (("GET * HTTP/1.1", HOST), 400, "the target"),
    (("TRACE / HTTP/1.1", HOST), 405, "TRACE"),
    # Two hosts.
    (("GET / HTTP/1.1",), 400, "no field host"), (("GET / HTTP/1.0",), 400, "no field host"),
    (("CONNECT example.org:443 HTTP/1.1",), 400, "no field host"),
    (("CONNECT example.org:443 HTTP/1.0", "Host: other.org"), 400, "different hosts"),
    (("GET / HTTP/1.1", HOST, HOST), 400, "2 fields host"), (("GET / HTTP/1.1", "Host:"), 400, "the host"),
    (("GET / HTTP/1.1", "Host: a.org, b.org"), 400, "the host"), (("GET / HTTP/1.1", "Host: u@a.org"), 400, "the host"),
    (("GET / HTTP/1.1", "Host: a.org/"), 400, "the host"), (("GET / HTTP/1.1", "Host: a.org:"), 400, "the host"),
    (("GET / HTTP/1.1", "Host: \u00e9.org"), 400, "ASCII"), (("GET / HTTP/1.1", "Host: [fe80::1%25eth0]"), 400, "zone"),
    (("GET http://other.org/ HTTP/1.1", HOST), 400, "different hosts"),
    (("GET http://example.org:81/ HTTP/1.1", HOST), 400, "different hosts"),
    (("GET http://example.org/ HTTP/1.1", "Host: example.org:81"), 400, "different hosts"),
    (("GET https://example.org/ HTTP/1.1", HOST), 400, "scheme"),
    (("GET http://u:p@example.org/ HTTP/1.1", HOST), 400, "user information"),
    (("GET ftp://example.org:80/ HTTP/1.1", HOST), 400, "scheme"),
    (("CONNECT other.org:443 HTTP/1.1", HOST), 400, "different hosts"),
    (("CONNECT example.org:443 HTTP/1.1", "Host: example.org:80"), 400, "different hosts"),
    (("CONNECT example.org HTTP/1.1", HOST), 400, "without a port"),
    (("CONNECT / HTTP/1.1", HOST), 400, "the host"),
    (("CONNECT example.org:443 HTTP/1.1", HOST, "Content-Length: 1"), 400, "CONNECT with a body"),
    (("GET / HTTP/1.1", HOST, "Expect: x"), 417, "expectation"),
])
def test_a_malformed_head_is_refused(lines: tuple[str, ...], status: int, reason: str) -> None:
    """Each with the status to answer."""
    with pytest.raises(HeadError, match=reason) as caught:
        parse_head(head(*lines))
    assert status == caught.value.status


def test_the_end_of_a_head_is_found_at_any_split() -> None:
    """Looked at from where the look before ended."""
    data = head("GET / HTTP/1.1", HOST)
    for cut in range(len(data)):
        assert find_end(data[:cut]) == 0
        assert len(data) == find_end(data + b"\n more", cut)


@pytest.mark.parametrize("data", [b"\n", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nA: b\n\r\n\r\n", b"a\n\n"])
def test_bare_line_feeds_are_refused_as_they_come(data: bytes) -> None:
    """Not only once the head is whole: programs differ in where such a head ends."""
    with pytest.raises(HeadError, match="bare line feed"):
        find_end(data)


def test_a_head_has_a_bound() -> None:
    """Whether it ends or not."""
    with pytest.raises(HeadError) as caught:
        find_end(b"a" * (MAX_HEAD + 1))
    assert caught.value.status == 431
    with pytest.raises(HeadError):
        find_end(b"a" * MAX_HEAD + b"\r\n\r\n")
    assert find_end(b"a" * MAX_HEAD) == 0
    with pytest.raises(HeadError):
        parse_head(b"GET / HTTP/1.1\r\n")


BEGUN = head("GET / HTTP/1.1", HOST)[:-2]


@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda data: BEGUN + data + b"\r\n\r\n"))
def test_any_bytes_are_a_head_or_head_error(data: bytes) -> None:
    """A head, or HeadError."""
    try:
        end = find_end(data)
        read = parse_head(data[:end]) if end else None
    except HeadError as error:
        status, read = error.status, None
    else:
        status = 400
    assert status in (400, 405, 413, 414, 417, 431, 501, 505)
    assert read is None or not set("\r\n \0") & set(read.host.text + read.target)
