"""Addresses that names must not lead to, and URLs."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.egress.addresses import RANGES, opened, parse_url, range_of
from leeward.egress.policy import Request, decide
from leeward.spec.egress_policy import Policy, narrow, parse_policy
from leeward.spec.hosts import Address, InvalidHost

ANY = parse_policy({"allow": ["*"]})


def refused(address: Address, policy: Policy) -> str:
    """Why no name may lead to *address*; "" if one may."""
    return decide(policy, Request("a.example", address, 443)).reason


@pytest.mark.parametrize(("address", "what"), [
    ("0.0.0.0", "this network"), ("0.1.2.3", "this network"), ("10.0.0.1", "private"), ("100.64.0.1", "CGNAT"),
    ("100.127.255.255", "CGNAT"), ("100.100.100.200", "metadata"), ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"), ("169.254.1.1", "link-local"), ("169.254.169.254", "metadata"),
    ("172.16.0.1", "private"), ("172.31.255.255", "private"), ("192.0.0.8", "protocol"), ("192.0.2.1", "documentation"),
    ("192.88.99.1", "6to4"), ("192.168.1.1", "private"), ("198.18.0.1", "benchmark"), ("198.19.255.255", "benchmark"),
    ("198.51.100.1", "documentation"), ("203.0.113.1", "documentation"), ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"), ("240.0.0.1", "reserved"), ("255.255.255.255", "broadcast"),
    ("::", "unspecified"), ("::1", "loopback"), ("::7f00:1", "IPv4-compatible"), ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:10.0.0.1", "private"), ("::ffff:0:127.0.0.1", "translated"), ("64:ff9b::7f00:1", "NAT64"),
    ("64:ff9b:1::1", "NAT64"), ("100::1", "discard"), ("2001::1", "Teredo"), ("2001:2::1", "benchmark"),
    ("2001:10::1", "ORCHID"), ("2001:db8::1", "documentation"), ("2002:7f00:1::", "6to4"), ("3fff::1", "documentation"),
    ("fc00::1", "private"), ("fd12::1", "private"), ("fd00:ec2::254", "metadata"), ("fe80::1", "link-local"),
    ("fec0::1", "site-local"), ("ff02::1", "multicast"), ("4000::1", "reserved"), ("::2:0:0:0", "reserved"),
])
def test_every_refused_range_is_refused_by_name(address: str, what: str) -> None:
    """An address of each range, and the range's name: the smallest range counts."""
    found = range_of(ip_address(address))

    assert found is not None
    assert what in found.what
    assert refused(ip_address(address), ANY).endswith(f"{found.what} ({found.network})")


@pytest.mark.parametrize("address", [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
    "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "223.255.255.255", "::ffff:1.1.1.1", "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "3ffe::1",
])
def test_addresses_beside_the_ranges_are_public(address: str) -> None:
    """What lies beside the ranges is public."""
    assert range_of(ip_address(address)) is None
    assert "" == refused(ip_address(address), ANY)


@given(st.integers(0, 2**32 - 1).map(ip_address) | st.integers(0, 2**128 - 1).map(ip_address))
def test_addresses_that_python_calls_special_are_refused(address: object) -> None:
    """The table has all that `ipaddress` doesn't call global; the module is an independent witness."""
    found = ip_address(str(address))
    if not found.is_global or found.is_multicast or found.is_reserved:
        assert range_of(found) is not None


@pytest.mark.parametrize(("by", "address", "opens"), [
    ("10.0.0.0/8", "10.1.2.3", True), ("10.1.2.3", "10.1.2.3", True), ("0.0.0.0/0", "10.1.2.3", False),
    ("10.0.0.0/7", "10.1.2.3", False), ("169.254.0.0/16", "169.254.1.1", True),
    ("169.254.0.0/16", "169.254.169.254", False), ("169.254.169.254", "169.254.169.254", True),
    ("::/0", "fd00::1", False), ("fd00::/8", "fd00::1", True), ("fd00::/8", "fd00:ec2::254", False),
    ("::1", "::1", True), ("4000::/16", "4000::1", False), ("10.0.0.0/8", "::ffff:10.0.0.1", True),
])
def test_a_range_is_opened_by_its_name(by: str, address: str, opens: bool) -> None:
    """By a range within the one that is refused; a larger one means the internet."""
    policy = replace(ANY, addresses=(ip_network(by),))

    assert opens == (refused(ip_address(address), policy) == "")


def test_every_policy_has_to_open_a_range() -> None:
    """A client can't open what its operator hasn't."""
    client, operator = (parse_policy({"allow": ["*"], "addresses": each}) for each in (["10.0.0.0/8"], ["10.1.0.0/16"]))
    policy = narrow(operator, client)

    assert "" == refused(ip_address("10.1.0.1"), policy)
    assert "private IP blocked: a.example leads to 10.2.0.1, private (10.0.0.0/8)" == refused(ip_address("10.2.0.1"), policy)
    assert refused(ip_address("10.1.0.1"), narrow(operator, ANY))


def test_versions_are_distinguished() -> None:
    """A range of one version opens none of the other."""
    for each in RANGES:
        other = ip_network("::/128" if each.network.version == 4 else "0.0.0.0/32")
        assert not opened(other, each)


@pytest.mark.parametrize(("text", "form"), [
    ("http://Example.org", "http://example.org/"), ("HTTPS://example.org:443/a?b#c", "https://example.org/a?b"),
    ("http://example.org:443/", "http://example.org:443/"), ("http://example.org?x=/y@z", "http://example.org/?x=/y@z"),
    ("http://2130706433/", "http://127.0.0.1/"), ("http://[::ffff:127.0.0.1]:81/", "http://127.0.0.1:81/"),
    ("https://[2001:DB8::1]/", "https://[2001:db8::1]/"), ("http://b\u00fccher.example./", "http://xn--bcher-kva.example/"),
    ("http://user:pw@example.org/", "http://example.org/"), ("http://a@[::1]:8080", "http://[::1]:8080/"),
    ("ftp://example.org:21/x", "ftp://example.org:21/x"),
])
def test_urls_in_one_form(text: str, form: str) -> None:
    """Scheme, host, port and target; user information is told and left out."""
    url = parse_url(text)

    assert form == url.text
    assert ("@" in text.partition("?")[0]) == url.user
    assert form == parse_url(form).text


@pytest.mark.parametrize("text", [
    "", "example.org", "//example.org/", "http:/example.org", "http:///x", "http://", "http://:80/", "http://a:b/",
    "http://a:/", "http://a:99999/", "http://a b/", "http://a\\@b/", "http://a\t/", "http://a\n/", "http://a@b@c/",
    "http://[::1/", "http://[fe80::1%25eth0]/", "http://::1/", "http://1.2.3.4.5/", "ftp://example.org/", "1http://a/",
    "ht tp://a/", "http://a/\u00e9", "http://" + "a" * 17000, "http://a%2eb/", "h\u00e9://a/",
])
def test_doubtful_urls_are_refused(text: str) -> None:
    """What is doubtful is refused."""
    with pytest.raises(InvalidHost):
        parse_url(text)


@given(st.text(max_size=60) | st.text("htps:/.@[]?#0123456789abcdef%\\", max_size=40).map("http://{}".format))
def test_any_text_is_a_url_or_invalid_host(text: str) -> None:
    """A URL that reads back as itself, or InvalidHost."""
    try:
        url = parse_url(text)
    except InvalidHost:
        return
    form = url.text if url.scheme in ("http", "https") else ""
    assert not form or form == parse_url(form).text
