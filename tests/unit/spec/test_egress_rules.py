"""Rules: what each form names, and that no text gives anything but a rule or PolicyError with a reason."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.spec.egress_rules import METHODS, EgressRule, PolicyError, compared_path, parse_rule

NAMES = st.sampled_from(["example.org", "a.example.org", "x", "1e100.net", "xn--bcher-kva.example"])
HOSTS = (NAMES | NAMES.map("*.{}".format) | st.just("*")
         | st.sampled_from(["10.1.0.0/16", "127.0.0.1", "0.0.0.0/0", "169.254.169.254"]))
HOSTS6 = st.sampled_from(["2001:db8::/32", "::1", "fd00:ec2::254"])
PORTS = st.none() | st.integers(1, 65535)
PREFIXES = st.sampled_from(["", "GET ", "get,HEAD ", "POST  "])


@st.composite
def rules(draw: st.DrawFn) -> str:
    """A rule's text."""
    scheme, port = draw(st.sampled_from(["", "http://", "HTTPS://"])), draw(PORTS)
    host = draw(HOSTS)
    if "/" in host and scheme:
        host = "10.1.2.3"
    if draw(st.booleans()) and not scheme:
        six = draw(HOSTS6)
        host = f"[{six}]" if port else six
    path = draw(st.sampled_from(["", "/", "/v1/*", "/a%20b", "/~u"])) if scheme else ""
    return f"{draw(PREFIXES)}{scheme}{host}{'' if port is None else f':{port}'}{path}"


@pytest.mark.parametrize(("text", "rule"), [
    ("example.org", EgressRule("example.org", "name", "example.org")),
    (" Example.ORG. ", EgressRule("example.org", "name", "example.org")),
    ("*.example.org:8443", EgressRule("*.example.org:8443", "below", "example.org", port=8443)),
    ("*", EgressRule("*", "any")),
    ("*:22", EgressRule("*:22", "any", port=22)),
    ("10.1.0.0/16:5432", EgressRule("10.1.0.0/16:5432", "network", network=ip_network("10.1.0.0/16"), port=5432)),
    ("0x7f000001", EgressRule("127.0.0.1", "network", network=ip_network("127.0.0.1/32"))),
    ("::1", EgressRule("::1", "network", network=ip_network("::1/128"))),
    ("[::1]:80", EgressRule("[::1]:80", "network", network=ip_network("::1/128"), port=80)),
    ("[2001:db8::/32]:443", EgressRule("[2001:db8::/32]:443", "network", network=ip_network("2001:db8::/32"),
                                       port=443)),
    ("[::1]", EgressRule("::1", "network", network=ip_network("::1/128"))),
    ("::ffff:10.0.0.1", EgressRule("10.0.0.1", "network", network=ip_network("10.0.0.1/32"))),
    ("GET https://api.example.org/v1/*",
     EgressRule("GET https://api.example.org/v1/*", "name", "api.example.org", scheme="https", methods=("GET",),
          path="/v1/*")),
    ("post,GET example.org", EgressRule("GET,POST example.org", "name", "example.org", methods=("GET", "POST"))),
    ("http://[::1]:8080/", EgressRule("http://[::1]:8080/", "network", network=ip_network("::1/128"), port=8080,
                                scheme="http", path="/")),
    ("https://*", EgressRule("https://*", "any", scheme="https")),
])
def test_every_form_of_a_rule_is_parsed(text: str, rule: EgressRule) -> None:
    """Each form of the grammar, and its text in canonical form."""
    assert rule == parse_rule(text)
    assert rule == parse_rule(rule.text)


@pytest.mark.parametrize(("text", "reason"), [
    ("", "empty"), ("ftp://example.org", "not a scheme"), ("FETCH https://a.org", "not a known method"),
    ("a b.org", "not a known method"),
    ("user@example.org", "can't name a user"), ("https://u:p@example.org/", "can't name a user"),
    ("example.org/v1", "a slash goes with"),
    ("example.org:0", "1 to 65535"), ("example.org:http", "1 to 65535"), ("*.10.1.0.0", "no sub-domains"),
    ("*example.org", "a label"), ("a.*.org", "a label"), ("*.*.org", "a label"), ("**", "a label"),
    ("10.1.2.3/16", "bits after its prefix"), ("10.0.0.0/33", "number of bits"), ("10.0.0.0/+8", "number of bits"),
    ("::ffff:10.0.0.0/104", "written as one"), ("fe80::1%eth0", "zone"), ("[10.0.0.1]:80", "in brackets"),
    ("[::1", "after an address"), ("[::1]x", "after an address"), ("https://a.org/x?y", "can't have a query"),
    ("https://a.org/*/x", "only at the end"), ("https://a.org/../x", "different ways"),
    ("https://a.org/a//b", "different ways"), ("https://a.org/%2e%2e/", "different ways"),
    ("https://a.org/%61", "different ways"), ("https://a.org/a\\b", "different ways"),
    ("198.18.0.1", "names in sandboxes"), ("198.19.0.0/16:443", "names in sandboxes"),
    ("[fd6c:6565:7761:7264::7]:443", "names in sandboxes"), ("x" * 1025, "at most 1024"),
    ("https://a.org?x", "a label"), ("http:example.org", "1 to 65535"),
])
def test_a_malformed_rule_is_refused_with_its_place(text: str, reason: str) -> None:
    """Each with its place and its reason."""
    with pytest.raises(PolicyError, match=reason) as caught:
        parse_rule(text, "egress.x.allow[0]")
    assert caught.value.place == "egress.x.allow[0]"
    assert str(caught.value).startswith("egress.x.allow[0]: ")


@given(rules())
def test_a_rules_text_reads_back(text: str) -> None:
    """The one form of a rule is a rule, the same one."""
    rule = parse_rule(text)

    assert rule == parse_rule(rule.text)
    assert set(rule.methods) <= set(METHODS)


@given(st.text(max_size=60) | st.text("GET htps:/.*@[]0123456789abcdef,%?", max_size=60))
def test_any_text_is_a_rule_or_policy_error(text: str) -> None:
    """A rule that reads back as itself, or PolicyError."""
    try:
        rule = parse_rule(text)
    except PolicyError:
        return
    assert rule == parse_rule(rule.text)


@pytest.mark.parametrize(("rule", "name", "address", "named"), [
    ("example.org", "example.org", None, True), ("example.org", "a.example.org", None, False),
    ("example.org", "evilexample.org", None, False), ("example.org", "example.org.evil.net", None, False),
    ("*.example.org", "a.example.org", None, True), ("*.example.org", "example.org", None, False),
    ("*.example.org", "evilexample.org", None, False), ("*", "x", None, True), ("*", "", "1.1.1.1", True),
    ("example.org", "", "1.1.1.1", False), ("*.example.org", "", "1.1.1.1", False),
    ("10.0.0.0/8", "", "10.1.2.3", True), ("10.0.0.0/8", "", "11.1.2.3", False), ("10.0.0.0/8", "", "::1", False),
    ("10.0.0.0/8", "x", "10.1.2.3", True), ("10.0.0.0/8", "x", None, False), ("2001:db8::/32", "", "2001:db8::1", True),
])
def test_a_rule_matches_its_hosts(rule: str, name: str, address: str | None, named: bool) -> None:
    """By name or by address."""
    assert named == parse_rule(rule).names_host(name, None if address is None else ip_address(address))


@pytest.mark.parametrize(("target", "path"), [
    ("/", "/"), ("/a/b?c=/../d", "/a/b"), ("/%61%2d%7E", "/a-~"), ("/a%20b", "/a%20b"), ("/%c3%a9", "/%C3%A9"),
    ("/a;x", "/a;x"), ("/.well-known/x", "/.well-known/x"), ("/a..b", "/a..b"), ("/a.", "/a."), ("/%40", "/%40"),
])
def test_paths_in_one_form(target: str, path: str) -> None:
    """Without the query, and needless escapes undone."""
    assert path == compared_path(target)
    assert path == compared_path(path)


@pytest.mark.parametrize("target", [
    "", "*", "a", "/..", "/../a", "/a/..", "/a/./b", "/%2e%2e/a", "/%2E./a", "/a/..;x/b", "/.;/a", "//a", "/a//b",
    "/a%2fb",
    "/a%5Cb", "/a\\b", "/%", "/%4", "/%zz", "/%+1", "/%00", "/%0a", "/%252e", "/a%3bb", "/a%3fb", "/a b", "/\u00e9",
    "/a#b",
    "/%c0%ae%c0%ae/a", "/%c0%af", "/%e0%80%ae", "/%f0%80%80%ae", "/%ed%a0%80", "/%ff", "/%c3", "/%a9", "/a%c3/%a9",
    "/%25%32%65", "/%25252e", "/%u002e", "/%ef%bc%8e%ef%bc%8e/a", "/%e2%80%a5", "/%ef%bc%8f", "/%ef%bc%bc", "/%ef%bc%85",
    "/%c2%a0", "/a/%2e/b", "/a%2f%2fb", "/%09", "/%5c", "/%2e%2e%3b/", "/%2E%2E",
    "/\u0661", "/%\u0661\u0661", "/%7f", "/a\n",
])
def test_paths_that_servers_read_differently(target: str) -> None:
    """They have no one form, so a rule about a path allows none of them."""
    assert compared_path(target) is None
