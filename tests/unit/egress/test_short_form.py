"""The short form of a policy for `fetch`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from leeward.egress.policy import Request, decide
from leeward.egress.short_form import parse_short_form
from leeward.spec.egress_policy import EgressLimits, PolicyError, parse_policy


def test_every_key_of_the_short_form_is_one_of_a_policy() -> None:
    """All of them at once."""
    assert parse_short_form({
        "allowed_domains": ["example.org", "*.example.org"], "blocked_domains": ["bad.example.org"],
        "deny_private_ips": True, "allowed_methods": ["get"], "allowed_schemes": ["https"], "max_request_body": "1K",
        "max_response_body": 2048, "connect_timeout": 1.5, "request_timeout": "3s", "max_redirects": 4,
        "max_concurrent": 5, "max_requests_per_minute": 6,
    }) == parse_policy({
        "allow": ["example.org", "*.example.org"], "deny": ["bad.example.org"], "methods": ["GET"],
        "schemes": ["https"], "limits": {"request": 1024, "response": 2048, "connect": 1.5, "total": 3.0,
                                         "redirects": 4, "connections": 5, "per_minute": 6}})
    assert parse_short_form({}).limits == EgressLimits()


def test_the_short_form_allows_no_host_by_default() -> None:
    """Without domains, and of private addresses without the key for them; metadata in no case."""
    request = Request("example.org", None, 443, "https", "GET", "/")
    assert decide(parse_short_form({}), request).cause == "unlisted"
    assert decide(parse_short_form({"allowed_domains": ["*"]}), request).verdict == "need-address"
    closed, opened = (parse_short_form({"allowed_domains": ["*"], "deny_private_ips": each}) for each in (True, False))
    for address in ("10.0.0.1", "192.168.1.1", "127.0.0.1", "::1", "fd12::1", "169.254.1.1"):
        request = Request("example.org", ip_address(address), 443)
        assert ["deny", "allow"] == [decide(each, request).verdict for each in (closed, opened)]
    for address in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "224.0.0.1", "0.0.0.0"):
        assert decide(opened, Request("example.org", ip_address(address), 443)).verdict == "deny"


@pytest.mark.parametrize(("given", "place", "reason"), [
    ([], "fetch_policy", "is a table"), ({"domains": []}, "fetch_policy.domains", "unknown; these are known"),
    ({"allowed_domains": ["a/b"]}, "fetch_policy.allowed_domains[0]", "a slash"),
    ({"max_request_body": -1}, "fetch_policy.max_request_body", "must be from 0"),
    ({"connect_timeout": "soon"}, "fetch_policy.connect_timeout", "not a time"),
    ({"deny_private_ips": 1}, "fetch_policy.deny_private_ips", "true or false"),
    ({"allowed_methods": ["FETCH"]}, "fetch_policy.allowed_methods[0]", "not a known method"),
])
def test_errors_name_the_key_that_was_given(given: Any, place: str, reason: str) -> None:
    """And not the one that it stands for."""
    with pytest.raises(PolicyError, match=reason) as caught:
        parse_short_form(given)
    assert caught.value.place == place
