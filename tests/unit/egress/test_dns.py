"""Queries and answers byte by byte, and the table of a sandbox's names."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.egress import dns
from leeward.egress.dns import AAAA, HTTPS, SVCB, A, Messages, NameTable, answer, framed, parse_query, respond
from leeward.errors import PeerError
from leeward.spec.egress_rules import NAMES_V4, NAMES_V6


def encoded(name: str) -> bytes:
    """A name as a message has it."""
    return b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"


def query(name: str = "example.org", kind: int = A, group: int = 1, flags: int = 0x0100, extra: bytes = b"",
          extras: int = 0, number: int = 7) -> bytes:
    """A query's bytes."""
    return struct.pack(">HHHHHH", number, flags, 1, 0, 0, extras) + encoded(name) + struct.pack(">HH", kind,
                                                                                                group) + extra


OPT = struct.pack(">BHHIH", 0, 41, 4096, 0, 4) + b"\0\x0a\0\0"


def read(message: bytes) -> tuple[int, int, list[tuple[int, bytes]]]:
    """Flags, records of OPT, and type with data of each answer, of a message that answers one question."""
    _, flags, questions, answers, authorities, others = struct.unpack_from(">HHHHHH", message)
    assert (questions, authorities) == (1, 0)
    place = message.index(b"\0", 12) + 5
    found = []
    for _ in range(answers):
        pointer, kind, group, ttl, length = struct.unpack_from(">HHHIH", message, place)
        assert (pointer, group, ttl) == (0xc00c, 1, dns.TTL)
        place += 12
        found.append((kind, message[place:place + length]))
        place += length
    assert others == (1 if len(message) - place else 0)
    return flags, others, found


@pytest.mark.parametrize(("given_", "name"), [
    ("example.org", "example.org"), ("EXAMPLE.Org", "example.org"), ("_x.example.org", "_x.example.org"),
    ("127.0.0.1", ""), ("a b.org", ""), ("", ""), ("b\u00fc.org", ""), ("x-.org", ""), ("2130706433", ""),
])
def test_the_name_of_a_query_is_read(given_: str, name: str) -> None:
    """The name in its canonical form; "" where no host has it."""
    found = parse_query(query(given_, AAAA))

    assert (found.number, found.name, found.kind, found.group, found.extended) == (7, name, AAAA, 1, False)
    assert found.question == encoded(given_) + struct.pack(">HH", AAAA, 1)


def test_a_dot_within_a_label_is_none_between_labels() -> None:
    """The label "example.org" isn't the name example.org."""
    message = query("x").replace(b"\x01x\0", b"\x0bexample.org\0")

    assert parse_query(message).name == ""


@pytest.mark.parametrize("message", [
    b"", b"\0" * 11, query()[:-1], query() + b"\0", query(flags=0x8100), query(flags=0x2800),
    query()[:4] + b"\0\2" + query()[6:], query()[:4] + b"\0\0" + query()[6:],
    query()[:6] + b"\0\1" + query()[8:], query()[:8] + b"\0\1" + query()[10:],
    query(extras=1), query(extras=9, extra=OPT * 9), query(extras=2, extra=OPT * 2),
    query(extras=1, extra=b"\1x" + OPT), query(extras=1, extra=OPT[:-1]), query("a" * 64),
    query(".".join(["a" * 63] * 5)),
    struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", query() + b"x" * 1300,
])
def test_a_malformed_query_is_one_error(message: bytes) -> None:
    """One error, and nothing else."""
    with pytest.raises(PeerError):
        parse_query(message)


@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda data: query()[:12] + data))
def test_any_bytes_are_a_query_or_peer_error(message: bytes) -> None:
    """A query that is answered, or PeerError."""
    try:
        found = parse_query(message)
    except PeerError:
        return
    reply = respond(found, NameTable(b"key"), lambda _: True)
    assert reply[:2] == message[:2]
    assert reply[2] & 0x80


def test_answers_of_an_allowed_name() -> None:
    """One address of the type that was asked for, the same each time; of other types none, and no error."""
    table = NameTable(b"key")
    four, six = table.addresses("example.org")
    for kind, data in ((A, [(A, four.packed)]), (AAAA, [(AAAA, six.packed)]), (HTTPS, []), (SVCB, []), (15, []), (255,
                                                                                                                  [])):
        flags, _, found = read(respond(parse_query(query(kind=kind)), table, lambda name: name == "example.org"))

        assert (flags, found) == (0x8180, data)
    assert four in NAMES_V4
    assert six in NAMES_V6
    assert (table.name(four), table.name(six), len(table)) == ("example.org", "example.org", 1)


@pytest.mark.parametrize("message", [query("other.org"), query("other.org", HTTPS), query("127.0.0.1"), query(group=3),
                                     query("1.0.0.127.in-addr.arpa", 12), query("")])
def test_other_names_are_none(message: bytes) -> None:
    """NXDOMAIN, and no place in the table."""
    table = NameTable(b"key")
    flags, _, found = read(respond(parse_query(message), table, lambda name: name == "example.org"))

    assert (flags & 15, found, len(table)) == (dns.NO_SUCH_NAME, [], 0)


def test_edns_is_answered_by_its_own() -> None:
    """A query with OPT gets OPT, one without none."""
    table = NameTable(b"key")
    found = parse_query(query(extras=1, extra=OPT))

    assert found.extended
    assert read(respond(found, table, lambda _: True))[1] == 1
    assert read(respond(parse_query(query()), table, lambda _: True))[1] == 0
    assert read(answer(found, code=dns.SERVER_FAILURE))[0] & 15 == dns.SERVER_FAILURE


def test_queries_over_tcp_survive_any_split() -> None:
    """Cut anywhere, the same messages."""
    stream = framed(query()) + framed(query("a.example.org", AAAA))
    for cut in range(len(stream) + 1):
        messages = Messages()

        assert [query(), query("a.example.org", AAAA)] == [*messages.feed(stream[:cut]), *messages.feed(stream[cut:])]
        assert b"" == messages._held


def test_no_message_is_held_that_is_too_long() -> None:
    """Its length is refused before its bytes come; so is one shorter than a head."""
    for length in (dns.MAX_QUERY + 1, 65535, 11, 0):
        messages = Messages()
        with pytest.raises(PeerError):
            list(messages.feed(struct.pack(">H", length) + b"x" * 20))
        assert b"" == messages._held


def test_a_full_table_gives_no_more() -> None:
    """Names that were there keep their addresses; the next one gets SERVFAIL."""
    table = NameTable(b"key", most=2)
    first, second = table.addresses("a"), table.addresses("b")

    assert table.addresses("c") == ()
    assert (table.addresses("a"), table.addresses("b"), len(table)) == (first, second, 2)
    flags, _, found = read(respond(parse_query(query("c")), table, lambda _: True))
    assert (flags & 15, found) == (dns.SERVER_FAILURE, [])


def test_addresses_come_back_after_a_restart() -> None:
    """The same key gives the same addresses in another order, another key others."""
    words = [f"{number}.example.org" for number in range(200)]
    first, again, other = NameTable(b"key"), NameTable(b"key"), NameTable(b"other")
    given_ = {word: first.addresses(word) for word in words}

    assert sum(given_[word] == again.addresses(word) for word in reversed(words)) >= 195  # but for those that met
    assert sum(given_[word] == other.addresses(word) for word in words) <= 5


def test_no_two_names_have_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that would be drawn the same place stand beside each other, around the end of the range."""
    class Drawn:
        def __init__(self, *_: object, **__: object) -> None: ...

        def digest(self) -> bytes:
            return (NAMES_V4.num_addresses - 3).to_bytes(8, "big")

    monkeypatch.setattr(dns.hashlib, "blake2b", Drawn)
    table = NameTable(b"key")
    given_ = [table.addresses(name)[0] for name in "abc"]

    assert list(map(str, given_)) == ["198.19.255.254", "198.18.0.1", "198.18.0.2"]
    assert [table.name(address) for address in given_] == ["a", "b", "c"]
    assert table.name(ip_address("198.18.0.3")) is None
    assert table.name(ip_address("1.1.1.1")) is None
