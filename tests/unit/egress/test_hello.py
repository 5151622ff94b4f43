"""Client hellos: whatever way they are cut, the same name; and no bytes give anything but a hello, "more" or HelloError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.hellos import block, hello, of_openssl, records, server_name
from leeward.egress.hello import MAX_BYTES, MAX_HELLO, MAX_RECORDS, Hello, HelloError, HelloReader

ALPN = b"\0\x10" + block(block(block(b"h2", 1) + block(b"http/1.1", 1), 2), 2)
ECH = b"\xfe\x0d" + block(b"\0" * 40, 2)
NAMED = server_name(b"Example.org")


def parse_hello(data: bytes) -> Hello | None:
    """The hello at the start of *data*, given as one piece."""
    return HelloReader().feed(data)


@pytest.mark.parametrize(("name", "protocols"), [
    ("example.org", ("h2", "http/1.1")), ("a.example.org", ()), (None, ()),
])
def test_a_hello_of_openssl_is_read(name: str | None, protocols: tuple[str, ...]) -> None:
    """Name and protocols of a real client."""
    assert Hello(name or "", protocols) == parse_hello(of_openssl(name, *protocols))


@pytest.mark.parametrize(("extensions", "found"), [
    ((), Hello("")), ((NAMED,), Hello("example.org")), ((ALPN, NAMED), Hello("example.org", ("h2", "http/1.1"))),
    ((NAMED, ECH), Hello("example.org", hidden=True)), ((b"\xff\xce\0\0",), Hello("", hidden=True)),
    ((b"\x0a\x0a\0\0", NAMED), Hello("example.org")),
])
def test_name_and_protocols_of_a_hello_are_read(extensions: tuple[bytes, ...], found: Hello) -> None:
    """Each extension that is read, among others."""
    assert found == parse_hello(records(hello(*extensions)))


def test_a_hello_without_extensions() -> None:
    """As of TLS 1.0: there may be none at all."""
    body = hello()[4:-2]

    assert Hello("") == parse_hello(records(b"\x01" + block(body, 3)))


def test_a_hello_survives_any_split() -> None:
    """Over packets and over records, at every byte."""
    message = hello(ALPN, NAMED, ECH)
    found = Hello("example.org", ("h2", "http/1.1"), True)
    stream = records(message)
    for cut in range(1, len(stream)):
        reader = HelloReader()

        assert reader.feed(stream[:cut]) is None
        assert found == reader.feed(stream[cut:])
    for cut in range(1, len(message)):
        assert found == parse_hello(records(message, cut))
    reader = HelloReader()
    stream = records(message, 1, 1, 1, 1, 1, 40) + b"what follows"
    given_ = [reader.feed(stream[place:place + 1]) for place in range(len(records(message, 1, 1, 1, 1, 1, 40)))]
    assert given_[-1] == found
    assert not any(given_[:-1])


@pytest.mark.parametrize(("data", "is_tls"), [
    (b"GET / HTTP/1.1\r\n", False), (b"SSH-2.0-x", False), (b"\x16\x02", False), (b"\x80\x2e\x01\x03", False),
    (b"\x15\x03\x01\0\2\1\0", False), (b"\x16\x03\x01\0\0", True), (b"\x16\x03\x01\x40\x01", True),
    (b"\x16\x03\x01\0\1\x02", True), (records(b"\x01\x00\x40\x01"), True), (records(hello(NAMED), 9)[:14] + b"\x17",
                                                                            True),
    (records(hello(NAMED, NAMED)), True), (records(hello(NAMED, tail=b"x")), True),
    (records(hello(session=b"s" * 33)), True), (records(hello(server_name(b"10.0.0.1"))), True),
    (records(hello(server_name(b"2130706433"))), True), (records(hello(server_name(b"::1"))), True),
    (records(hello(server_name(b""))), True), (records(hello(server_name(b"a b"))), True),
    (records(hello(server_name(b"\xff.org"))), True), (records(hello(server_name(b"a.org", kind=1))), True),
    (records(hello(b"\0\0" + block(block(b"\0" + block(b"a", 2) + b"\0" + block(b"b", 2), 2), 2))), True),
    (records(hello(b"\0\0" + block(block(b"\0" + block(b"a", 2), 2) + b"x", 2))), True),
    (records(hello(b"\0\0\0\1")), True), (records(hello(b"\0\x10" + block(block(b"\0", 2), 2))), True),
    (records(b"\x01" + block(hello(NAMED)[4:30], 3)), True),
])
def test_a_malformed_hello_is_one_error(data: bytes, is_tls: bool) -> None:
    """The error says whether the bytes were TLS at all."""
    with pytest.raises(HelloError) as caught:
        parse_hello(data)
    assert caught.value.is_tls == is_tls


def test_hellos_have_bounds() -> None:
    """Bytes of the message, of all records, and records."""
    large = hello(NAMED, b"\0\x15" + block(b"\0" * (MAX_HELLO - 200), 2))
    assert parse_hello(records(large, 4000, 4000)) == Hello("example.org")
    with pytest.raises(HelloError, match="the most"):
        parse_hello(records(b"\x01" + (MAX_HELLO + 1).to_bytes(3, "big")))
    with pytest.raises(HelloError, match="record 65"):
        parse_hello(records(large, *[1] * 70))
    largest = hello(b"\0\x15" + block(b"\0" * (MAX_HELLO - 81), 2))
    assert len(largest) == 4 + MAX_HELLO
    stream = records(largest, *[1] * (MAX_RECORDS - 1))
    assert len(stream) == MAX_BYTES
    reader = HelloReader()
    assert reader.feed(stream[:-1]) is None
    assert reader.feed(stream[-1:]) == Hello("")


@given(st.binary(max_size=100) | st.binary(max_size=80).map(lambda data: records(b"\x01" + block(data, 3))))
def test_any_bytes_are_read_alike_at_once_and_one_by_one(data: bytes) -> None:
    """The same whether they come at once or one by one."""
    def outcome(pieces: list[bytes]) -> object:
        reader = HelloReader()
        for piece in pieces:
            try:
                found = reader.feed(piece)
            except HelloError:
                return HelloError
            if found is not None:
                return found
        return None

    assert outcome([data]) == outcome([data[place:place + 1] for place in range(len(data))])
