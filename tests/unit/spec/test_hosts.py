"""Hosts: every spelling of one host gives the same value, and no text gives anything but a host or InvalidHost."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.spec.hosts import Host, InvalidHost, is_below, parse_host, parse_port, split_port, unmapped

LABELS = st.from_regex(r"[a-z0-9_](?:[a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(lambda labels: ".".join([*labels, "org"]))


@pytest.mark.parametrize("text", [
    "127.0.0.1", "127.0.0.1.", "2130706433", "0x7f000001", "0X7F000001", "0x7f.1", "0177.0.0.1", "0177.0x0.0.01",
    "127.1",
    "127.0.1", "017700000001", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]", "::ffff:7f00:1", "[0:0:0:0:0:FFFF:7F00:0001]",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "0x7f.0x.0x.1",
])
def test_number_forms_of_one_address(text: str) -> None:
    """They are all 127.0.0.1, and no name."""
    assert Host("", IPv4Address("127.0.0.1")) == parse_host(text)


@pytest.mark.parametrize(("text", "name"), [
    ("example.org", "example.org"), ("EXAMPLE.Org.", "example.org"), ("b\u00fccher.example", "xn--bcher-kva.example"),
    ("B\u00dcCHER.example", "xn--bcher-kva.example"), ("xn--bcher-kva.EXAMPLE", "xn--bcher-kva.example"),
    ("_dmarc.example.org", "_dmarc.example.org"), ("localhost", "localhost"), ("a" * 63 + ".org", "a" * 63 + ".org"),
    ("1e100.net", "1e100.net"), ("0x7f.example", "0x7f.example"), ("r3---sn.example", "r3---sn.example"),
])
def test_names_in_one_form(text: str, name: str) -> None:
    """Lower case, A-labels, no final dot."""
    assert Host(name) == parse_host(text)


@pytest.mark.parametrize("text", [
    "", ".", "..", "a..b", ".a", "a.org..", "-a.org", "a-.org", "a" * 64 + ".org", "a." * 127 + "org", "a b", "a/b",
    "a\0.org", "a%2eorg", "user@host", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "08.1.1.1", "4294967296",
    "foo.1", "foo.0x7f", "99999999999999999999999999999999999999", "fe80::1%eth0", "[fe80::1%25eth0]", "[::1", "::1]",
    "[1.2.3.4]", ":::", "1::2::3", "stra\u00dfe.de", "a\u200db.org", "\u2100.org", "x" * 600, "\ud800.org",
    "a\n.org", "a.org\n",
])
def test_a_malformed_host_is_refused(text: str) -> None:
    """Texts that name none, or that programs read in different ways."""
    with pytest.raises(InvalidHost):
        parse_host(text)


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_in_every_form(value: int) -> None:
    """Decimal, octal, hexadecimal, in one number and in parts."""
    address = IPv4Address(value)
    parts = list(address.packed)
    for text in (str(address), str(value), hex(value), f"0{value:o}", ".".join(map(hex, parts)),
                 ".".join(f"0{part:o}" for part in parts), f"{parts[0]}.{value & 0xffffff}",
                 f"::ffff:{address}", f"[::FFFF:{value >> 16:x}:{value & 0xffff:x}]"):
        assert Host("", address) == parse_host(text)


@given(st.integers(0, 2**128 - 1))
def test_an_ipv6_address_in_every_form(value: int) -> None:
    """Short, long, in capitals, in brackets."""
    address = IPv6Address(value)
    for text in (str(address), address.exploded, address.exploded.upper(), f"[{address}]"):
        assert Host("", unmapped(address)) == parse_host(text)


@given(NAMES)
def test_a_name_is_its_own_form(name: str) -> None:
    """What was brought into the form stays as it is."""
    assert name == parse_host(name.upper() + ".").name == parse_host(name).name


@given(st.text(max_size=40) | st.text("0123456789abcdefx.:[]%-\u3002\uff0e", max_size=40))
def test_any_text_is_a_host_or_invalid_host(text: str) -> None:
    """A host that reads back as itself, or InvalidHost."""
    try:
        host = parse_host(text)
    except InvalidHost:
        return
    assert bool(host.name) == (host.address is None)
    assert host == parse_host(host.text)


@pytest.mark.parametrize(("name", "parent", "below"), [
    ("a.example.org", "example.org", True), ("b.a.example.org", "example.org", True),
    ("example.org", "example.org", False), ("evilexample.org", "example.org", False),
    ("example.org.evil.net", "example.org", False), (".example.org", "example.org", False), ("org", "example.org",
                                                                                             False),
])
def test_sub_domains_are_anchored_at_both_ends(name: str, parent: str, below: bool) -> None:
    """Anchored at both ends."""
    assert below == is_below(name, parent)


@pytest.mark.parametrize(("text", "found"), [
    ("a.org", ("a.org", 0)), ("a.org:80", ("a.org", 80)), ("[::1]", ("[::1]", 0)), ("[::1]:443", ("[::1]", 443)),
    ("a.org:00080", ("a.org", 80)),
])
def test_host_and_port(text: str, found: tuple[str, int]) -> None:
    """As authorities have them."""
    assert found == split_port(text)


@pytest.mark.parametrize("text", ["a:", "a:0", "a:65536", "a:+1", "a:1_0", "a:\u0661", "::1", "[::1", "[::1]80",
                                  "a:80:80",
                                  "a: 80", "a:000080"])
def test_doubtful_ports_are_refused(text: str) -> None:
    """Doubtful ones are refused."""
    with pytest.raises(InvalidHost):
        split_port(text)


def test_ports_have_bounds() -> None:
    """1 to 65535."""
    assert (1, 65535) == (parse_port("1"), parse_port("65535"))
    assert unmapped(ip_address("::1")) == IPv6Address("::1")
