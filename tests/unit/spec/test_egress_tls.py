"""Which TLS the broker ends."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.spec.egress_policy import parse_policy
from leeward.spec.egress_tls import LeaseSeal, ends, is_for, needs_seal

SECRETS = {"KEY": {"from": "env:KEY", "hosts": ["api.example.org", "*.in.example.org"]}}


@pytest.mark.parametrize(("table", "names", "others"), [
    ({"allow": ["*", "http://a.org/x", "GET http://a.org", "https://a.org"]}, [], ["a.org", ""]),
    ({"secrets": SECRETS}, ["api.example.org", "x.in.example.org"], ["in.example.org", "example.org", ""]),
    ({"allow": ["GET https://a.org"]}, ["a.org"], ["b.a.org"]),
    ({"allow": ["GET *.a.org"]}, ["b.a.org"], ["a.org"]),
    ({"allow": ["*"], "deny": ["https://a.org/x/*"]}, ["a.org"], ["b.org"]),
    ({"ask": ["https://a.org/x"]}, ["a.org"], ["b.org"]),
    ({"methods": ["GET"]}, ["a.org"], [""]),
    ({"within": {"secrets": SECRETS}}, ["api.example.org"], ["a.org"]),
])
def test_tls_ends_where_requests_have_to_be_seen(table: dict[str, Any], names: list[str], others: list[str]) -> None:
    policy = parse_policy(table)

    assert bool(names) == needs_seal(policy)
    assert all(ends(policy, name, 443) for name in names)
    assert not any(ends(policy, name, 443) for name in others)


def test_a_secrets_hosts() -> None:
    secret = parse_policy({"secrets": SECRETS}).secrets[0]

    assert [True, True, False, False] == [is_for(secret, name, 443) for name in (
        "api.example.org", "a.b.in.example.org", "evilapi.example.org", "api.example.org.evil.net")]


def test_a_secret_is_for_the_ports_that_its_hosts_name() -> None:
    """A host without a port has it on every port; the broker ends no TLS for it elsewhere."""
    policy = parse_policy({"secrets": {"KEY": {"hosts": ["a.org:8080", "a.org:8443", "*.a.org:9090", "b.org"]}}})
    secret = policy.secrets[0]

    for place in (("a.org", 8080), ("a.org", 8443), ("x.a.org", 9090), ("b.org", 1), ("b.org", 443)):
        assert is_for(secret, *place)
        assert ends(policy, *place)
    for place in (("a.org", 443), ("a.org", 80), ("a.org", 9090), ("x.a.org", 8080), ("a.org", 80808)):
        assert not is_for(secret, *place)
        assert not ends(policy, *place)


def test_the_repr_of_a_seal_has_no_key() -> None:
    assert "key" not in repr(LeaseSeal(b"key", b"", ("leeward-key",)))


def test_no_tls_is_ended_for_authorities() -> None:
    """And yet the broker has to be told of them, and sandboxes need a file of their own."""
    policy = parse_policy({"allow": ["a.org"], "authorities": "/etc/x.pem"})

    assert needs_seal(policy)
    assert not ends(policy, "a.org", 443)
