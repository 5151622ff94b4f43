"""Network entries: what each means as rules of egress, and why the bad ones are refused."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError
from leeward.spec.domains import SHARED_DOMAINS
from leeward.spec.egress_rules import NAMES_V4
from leeward.spec.hosts import parse_host

GOOD = [
    ("api.github.com", ["api.github.com"]),
    ("API.GitHub.com.", ["api.github.com"]),
    ("  api.github.com\t", ["api.github.com"]),
    ("*.example.net", ["*.example.net"]),
    ("*.Example.NET.", ["*.example.net"]),
    ("*.a.example.co.uk", ["*.a.example.co.uk"]),
    ("*.example.co.uk", ["*.example.co.uk"]),
    ("db:5432", ["db:5432"]),
    ("db", ["db"]),
    ("github.com:22,443", ["github.com:22", "github.com:443"]),
    (" GitHub.com : 22 , 443 ", ["github.com:22", "github.com:443"]),
    ("github.com:443,443", ["github.com:443"]),
    ("*.example.net:8443", ["*.example.net:8443"]),
    ("10.0.0.5:22", ["10.0.0.5:22"]),
    ("10.0.0.0/8", ["10.0.0.0/8"]),
    ("10.0.0.0/8:5432", ["10.0.0.0/8:5432"]),
    ("0x0a000005", ["10.0.0.5"]),
    ("[2001:db8::1]:443", ["[2001:db8::1]:443"]),
    ("[2001:db8::/32]", ["2001:db8::/32"]),
    ("[2001:db8::1] : 443", ["[2001:db8::1]:443"]),
    ("bücher.example", ["xn--bcher-kva.example"]),
    ("_x.example.org", ["_x.example.org"]),
]

BAD = [
    ("", "empty"),
    ("   ", "empty"),
    ("example..com", "two dots"),
    (".example.com", "a dot at the start"),
    ("-example.com", "other characters"),
    ("exam ple.com", "a blank within"),
    ("host:", "no port after the colon"),
    ("host:0", "1 to 65535"),
    (":0", "no host"),
    ("host:65536", "1 to 65535"),
    (":65536", "no host"),
    ("host:https", "1 to 65535"),
    (":https", "no host"),
    ("host:80,", "no port after the comma"),
    ("80,", "other characters"),
    ("host:,80", "1 to 65535"),
    ("host:80,,443", "1 to 65535"),
    ("host:\u0661", "1 to 65535"),
    ("host:+80", "1 to 65535"),
    ("host:8_0", "1 to 65535"),
    ("host:1,2,3,4,5,6,7,8,9", "8 ports at most"),
    ("ex*mple.com", "whole labels"),
    ("*example.com", "whole labels"),
    ("a.*.example.com", "whole labels"),
    ("*.*.example.com", "whole labels"),
    ("*.", "empty"),
    ("*", "every host"),
    ("*:443", "every host"),
    ("10.0.0.0/33", "number of bits"),
    ("/33", "no address before"),
    ("10.0.0.5/8", "bits after its prefix"),
    ("example.com/33", "a slash goes with an address"),
    ("0.0.0.0/0", "nearly every address"),
    ("0.0.0.0/1", "nearly every address"),
    ("[::]/0", "after an address in brackets"),
    ("[::/0]", "nearly every address"),
    ("host:80:443", "separated by commas"),
    (":80:443", "no host"),
    ("2001:db8::1", "in brackets"),
    ("[2001:db8::1", "after an address in brackets"),
    ("[2001:db8::1%eth0]", "zone"),
    ("*.com", "public suffix"),
    ("*.co.uk", "public suffix"),
    ("*.CO.UK.", "public suffix"),
    ("*.internal", "public suffix"),
    ("*.10.0.0.1", "no sub-domains"),
    ("*.googleapis.com", "buckets|public suffix"),
    ("*.GoogleAPIs.com.", "buckets|public suffix"),
    ("*.storage.googleapis.com", "public suffix|bucket"),
    ("*.core.windows.net", "storage accounts"),
    ("*.s3.amazonaws.com", "public suffix"),
    ("*.github.io", "public suffix"),
    ("https://example.org", "no URL"),
    ("example.org/x", "a slash goes with an address"),
    ("user@example.org", "can't name a user"),
    ("GET example.org", "a blank within"),
    ("198.18.0.1", "names in sandboxes"),
    ("256.1.1.1", "too large"),
    ("1.2.3.4.5", "more than four parts"),
    ("faß.example", "IDNA"),
    ("exa\u200dmple.org", "IDNA"),
    ("a\nb.example", "a blank within"),
    ("a\0b", "other characters"),
    ("x" * 600, "at most 512 characters"),
    ("x" * 64 + ".org", "63 characters"),
    (7, "is a text"),
    (None, "is a text"),
    (["a"], "is a text"),
]


@pytest.mark.parametrize(("entry", "rules"), GOOD)
def test_an_entry_becomes_rules(entry, rules):
    assert rules == [rule.text for rule in parse_entry(entry)]


@pytest.mark.parametrize(("entry", "reason"), BAD)
def test_a_bad_entry_says_why(entry, reason):
    with pytest.raises(SettingsError, match=reason) as error:
        parse_entry(entry, "/p/.leeward/agent.toml", "network.allow[3]")

    assert str(error.value).startswith("/p/.leeward/agent.toml: network.allow[3]: ")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("entry", "host", "fits"), [
    ("api.github.com", "api.github.com", True),
    ("api.github.com", "API.GITHUB.COM.", True),
    ("api.github.com", "evil-api.github.com", False),
    ("api.github.com", "api.github.com.evil.com", False),
    ("api.github.com", "x.api.github.com", False),
    ("*.example.net", "a.b.example.net", True),
    ("*.example.net", "a.b.example.net.", True),
    ("*.example.net", "example.net", False),
    ("*.example.net", "evilexample.net", False),
    ("10.0.0.0/8", "10.255.0.1", True),
    ("10.0.0.0/8", "11.0.0.1", False),
    ("10.0.0.0/8", "0x0a000001", True),
])
def test_an_entry_names_its_hosts(entry, host, fits):
    given_host = parse_host(host)

    assert fits == any(rule.names_host(given_host.name, given_host.address) for rule in parse_entry(entry))


def test_an_entry_without_ports_leaves_them_to_the_policy():
    """On 80 and 443 the broker lets HTTP and TLS pass alone, unless a rule names the port."""
    assert [0] == [rule.port for rule in parse_entry("example.org")]
    assert [443] == [rule.port for rule in parse_entry("example.org:443")]


@pytest.mark.parametrize("domain", SHARED_DOMAINS)
def test_a_shared_domain_can_be_written_and_has_a_reason(domain):
    assert domain == parse_host(domain).name
    assert SHARED_DOMAINS[domain].isprintable()
    with pytest.raises(SettingsError):
        parse_entry(f"*.{domain}")
    parse_entry(f"one.host.{domain}")


@given(st.text(max_size=40) | st.text(alphabet="*.:,/[]ab10-x \t", max_size=24))
def test_any_text_is_rules_or_one_error(text):
    """What comes out is about one host or range, without methods and paths, and says the same when it is read again."""
    try:
        rules = parse_entry(text)
    except SettingsError as caught:
        error = caught
    else:
        error = None
    assert error is None or str(error).isprintable()
    if error is not None:
        return
    assert rules
    for rule in rules:
        assert "any" != rule.kind
        assert rule.is_whole
        again = rule.text
        if rule.network is not None and 6 == rule.network.version and not again.startswith("["):
            again = f"[{again}]"
        assert [rule] == list(parse_entry(again))


@given(st.ip_addresses(v=4), st.integers(8, 32))
def test_a_range_is_read_as_it_is_written(address, bits):
    network = ip_network(f"{ip_address(int(address) >> (32 - bits) << (32 - bits))}/{bits}")
    assume(not network.subnet_of(NAMES_V4))

    assert parse_entry(str(network))[0].names_host("", address)
