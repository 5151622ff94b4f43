"""The decision: each branch by a row, and what holds of every policy."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.egress.policy import CAUSES, PROTOCOLS, VERDICTS, Decision, Request, decide, rule_for
from leeward.spec.egress_policy import NETWORK, Policy, narrow, parse_policy

PUBLIC, OTHER = ip_address("1.1.1.1"), ip_address("2606:4700::1111")
PRIVATE, LOOPBACK = ip_address("10.1.2.3"), ip_address("127.0.0.1")


def to(name: str = "example.org", address: Any = PUBLIC, port: int = 443, protocol: str = "tls", method: str = "",
       path: str = "") -> Request:
    """A request, to a public address of example.org unless told."""
    return Request(name, address, port, protocol, method, path)


def get(path: str = "/", **other: Any) -> Request:
    """One whose head was read."""
    return to(protocol=other.pop("protocol", "https"), method=other.pop("method", "GET"), path=path, **other)


#: The policy, the request, the verdict with its cause, and the rule that decided.
ROWS: tuple[tuple[dict[str, Any], Request, str, str], ...] = (
    # Nothing, and names.
    ({}, to(), "deny unlisted", ""),
    ({"allow": ["example.org"]}, to(), "allow", "example.org"),
    ({"allow": ["example.org"]}, to(address=OTHER), "allow", "example.org"),
    ({"allow": ["example.org"]}, to(address=None), "need-address", "example.org"),
    ({"allow": ["example.org"]}, to("a.example.org"), "deny unlisted", ""),
    ({"allow": ["example.org"]}, to("evilexample.org"), "deny unlisted", ""),
    ({"allow": ["example.org"]}, to("example.org.evil.net"), "deny unlisted", ""),
    ({"allow": ["*.example.org"]}, to(), "deny unlisted", ""),
    ({"allow": ["*.example.org"]}, to("a.b.example.org"), "allow", "*.example.org"),
    ({"allow": ["x", "*", "example.org"]}, to(), "allow", "*"),
    # The order: deny, allow, ask.
    ({"allow": ["example.org"], "deny": ["example.org"]}, to(), "deny blocked", "example.org"),
    ({"allow": ["*"], "deny": ["*.example.org"]}, to(), "allow", "*"),
    ({"allow": ["*"], "deny": ["*.example.org"]}, to("a.example.org"), "deny blocked", "*.example.org"),
    ({"allow": ["example.org"], "ask": ["*"]}, to(), "allow", "example.org"),
    ({"ask": ["*"]}, to(), "ask", "*"),
    ({"ask": ["*"]}, to(address=None), "ask", "*"),
    ({"ask": ["*"], "deny": ["*"]}, to(), "deny blocked", "*"),
    ({"ask": ["*"]}, to(address=LOOPBACK), "deny private", "*"),  # nobody is asked for what can't be had
    # Ports.
    ({"allow": ["example.org"]}, to(port=8443), "deny port", ""),
    ({"allow": ["example.org:8443"]}, to(port=8443), "allow", "example.org:8443"),
    ({"allow": ["example.org:8443"]}, to(), "deny port", ""),
    ({"allow": ["example.org"], "ports": [8443]}, to(port=8443), "allow", "example.org"),
    ({"allow": ["example.org"], "ports": [8443]}, to(), "deny port", ""),
    ({"allow": ["https://example.org"], "ports": [8443]}, to(), "allow", "https://example.org"),
    ({"allow": ["*:22", "*"], "deny": ["example.org:22"]}, to(port=22), "deny blocked",
     "example.org:22"),
    ({"allow": ["*"], "deny": ["example.org:22"]}, to(), "allow", "*"),
    ({"allow": ["*:9"], "deny": ["example.org"]}, to(port=9), "deny blocked", "example.org"),  # every port
    # Schemes and what can't be seen.
    ({"allow": ["https://example.org"]}, to(port=80, protocol="http"), "deny port", ""),
    ({"allow": ["https://example.org:80"]}, to(port=80, protocol="http"), "deny scheme", ""),
    ({"allow": ["http://example.org"]}, to(port=80, protocol="http"), "allow", "http://example.org"),
    ({"allow": ["example.org"]}, to(protocol="tcp"), "deny unseen", ""),
    ({"allow": ["example.org"]}, to(port=80, protocol="tcp"), "deny unseen", ""),
    ({"allow": ["example.org:443"]}, to(protocol="tcp"), "allow", "example.org:443"),
    ({"allow": ["example.org"], "ports": [5432]}, to(port=5432, protocol="tcp"), "allow", "example.org"),
    ({"allow": ["https://example.org:5432"]}, to(port=5432, protocol="tcp"), "deny scheme", ""),
    ({"allow": ["*"], "schemes": ["https"]}, to(port=80, protocol="http"), "deny scheme", ""),
    ({"allow": ["*:9"], "schemes": ["https"]}, to(port=9, protocol="tcp"), "deny scheme", ""),
    ({"allow": ["*"], "schemes": ["https"]}, to(), "allow", "*"),
    ({"allow": ["*"], "deny": ["http://example.org"]}, to(port=80, protocol="http"), "deny blocked", "http://example.org"),
    ({"allow": ["*"], "deny": ["http://example.org"]}, to(), "allow", "*"),
    ({"allow": ["*:9"], "deny": ["http://example.org"]}, to(port=9, protocol="tcp"), "deny blocked",
     "http://example.org"),
    # Methods and paths.
    ({"allow": ["GET example.org"]}, to(), "deny unseen", ""),
    ({"allow": ["GET example.org"]}, to(protocol="https"), "allow", "GET example.org"),  # each head comes again
    ({"allow": ["GET example.org"]}, get(), "allow", "GET example.org"),
    ({"allow": ["GET example.org"]}, get(method="POST"), "deny method", ""),
    ({"allow": ["GET example.org"]}, get(method="get"), "deny method", ""),
    ({"allow": ["https://example.org/v1/*"]}, to(), "deny unseen", ""),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1/a?b"), "allow", "https://example.org/v1/*"),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1/%61"), "allow", "https://example.org/v1/*"),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1"), "deny path", ""),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1/../v2"), "deny path", ""),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1/%2e%2e/v2"), "deny path", ""),
    ({"allow": ["https://example.org/v1/*"]}, get("*", method="OPTIONS"), "deny path", ""),
    ({"allow": ["https://example.org/v1"]}, get("/v1?x"), "allow", "https://example.org/v1"),
    ({"allow": ["https://example.org/v1"]}, get("/v1x"), "deny path", ""),
    ({"allow": ["GET https://example.org/a", "POST https://example.org/b"]}, get("/b"), "deny path", ""),
    ({"allow": ["*"], "deny": ["POST example.org"]}, get(), "allow", "*"),
    ({"allow": ["*"], "deny": ["POST example.org"]}, get(method="POST"), "deny blocked", "POST example.org"),
    ({"allow": ["*"], "deny": ["POST example.org"]}, to(), "deny blocked", "POST example.org"),  # it can't be seen
    ({"allow": ["*"], "deny": ["POST example.org"]}, to(protocol="https"), "allow", "*"),
    ({"allow": ["*"], "deny": ["https://example.org/x*"]}, get("/x"), "deny blocked", "https://example.org/x*"),
    ({"allow": ["*"], "deny": ["https://example.org/x*"]}, get("/a/../x"), "deny blocked", "https://example.org/x*"),
    ({"allow": ["*"], "deny": ["https://example.org/x*"]}, get("/y"), "allow", "*"),
    *(({"allow": ["*"], "deny": ["https://example.org/x*"]}, get(path), "deny blocked", "https://example.org/x*")
      for path in ("/%78", "/a%2f..%2fx", "/%252e/y", "/%c0%ae/y", "/y%ff", "/y/./z", "/y//z", "/y\\z", "/x;a=1", "/x;a/y")),
    *(({"allow": ["https://example.org/v1/*"]}, get(path), "deny path", "")
      for path in ("/v1/%252e%252e/v2", "/v1/%c0%ae%c0%ae/v2", "/v1//v2", "/v1/./v2", "/v1\\..\\v2", "/v1/%5c..%5cv2",
                   "/v1/%ef%bc%8e%ef%bc%8e/v2", "/v1/..%2fv2", "/v1;/../v2")),
    ({"allow": ["https://example.org/v1/*"]}, get("/v1/%c3%a9"), "allow", "https://example.org/v1/*"),
    ({"allow": ["*"], "deny": ["POST example.org"]}, get(method="post"), "deny blocked", "POST example.org"),
    ({"allow": ["*"], "methods": ["GET"]}, get(), "allow", "*"),
    ({"allow": ["*"], "methods": ["GET"]}, get(method="PUT"), "deny method", ""),
    ({"allow": ["*"], "methods": ["GET"]}, to(), "deny method", ""),
    ({"allow": ["*"], "methods": ["GET"]}, to(protocol="https"), "allow", "*"),
    # Where names lead to.
    ({"allow": ["example.org"]}, to(address=PRIVATE), "deny private", "example.org"),
    ({"allow": ["*"]}, to(address=LOOPBACK), "deny private", "*"),
    ({"allow": ["example.org"]}, to(address=ip_address("::ffff:127.0.0.1")), "deny private", "example.org"),
    ({"allow": ["example.org"], "addresses": ["10.1.0.0/16"]}, to(address=PRIVATE), "allow", "example.org"),
    ({"allow": ["example.org"], "addresses": ["10.2.0.0/16"]}, to(address=PRIVATE), "deny private", "example.org"),
    ({"allow": ["example.org"], "addresses": ["0.0.0.0/0"]}, to(address=PRIVATE), "deny private", "example.org"),
    ({"allow": ["example.org", "10.0.0.0/8"]}, to(address=PRIVATE), "allow", "example.org"),
    ({"allow": ["example.org", "10.0.0.0/8:22"]}, to(address=PRIVATE), "deny private", "example.org"),
    ({"allow": ["example.org", "0.0.0.0/0"]}, to(address=PRIVATE), "deny private", "example.org"),
    ({"allow": ["10.0.0.0/8"]}, to(address=PRIVATE), "deny unlisted", ""),  # the name isn't allowed
    ({"allow": ["example.org"], "deny": ["1.1.1.0/24"]}, to(), "deny blocked", "1.1.1.0/24"),
    ({"allow": ["example.org"], "deny": ["1.1.1.0/24"]}, to(address=None), "need-address", "example.org"),
    ({"allow": ["example.org"], "deny": ["10.0.0.0/8"]}, to(address=ip_address("::ffff:10.1.2.3")), "deny blocked",
     "10.0.0.0/8"),
    # Addresses themselves.
    ({}, to("", PUBLIC), "deny unlisted", ""),
    ({"allow": ["example.org"]}, to("", PUBLIC), "deny unlisted", ""),
    ({"allow": ["*"]}, to("", PUBLIC), "allow", "*"),
    ({"allow": ["*"]}, to("", PRIVATE), "deny private", ""),
    ({"allow": ["*"]}, to("", None), "deny unlisted", ""),
    ({"allow": ["0.0.0.0/0"]}, to("", PUBLIC), "allow", "0.0.0.0/0"),
    ({"allow": ["0.0.0.0/0"]}, to("", PRIVATE), "deny private", ""),
    ({"allow": ["10.1.0.0/16:5432"]}, to("", PRIVATE, 5432, "tcp"), "allow", "10.1.0.0/16:5432"),
    ({"allow": ["10.1.0.0/16:5432"]}, to("", PRIVATE, 5433, "tcp"), "deny port", ""),
    ({"allow": ["10.1.0.0/16:5432"], "addresses": ["10.0.0.0/8"]}, to("", ip_address("10.2.0.1"), 5432, "tcp"),
     "deny unlisted", ""),
    ({"allow": ["10.0.0.0/8"], "deny": ["10.1.0.0/16"]}, to("", PRIVATE), "deny blocked", "10.1.0.0/16"),
    ({"ask": ["*"]}, to("", PUBLIC), "ask", "*"),
    # Queries.
    ({}, to(address=None, port=0, protocol="dns"), "deny unlisted", ""),
    ({"allow": ["example.org:22"]}, to(address=None, port=0, protocol="dns"), "allow", "example.org:22"),
    ({"allow": ["GET https://example.org/x"]}, to(address=None, port=0, protocol="dns"), "allow",
     "GET https://example.org/x"),
    ({"allow": ["*"], "deny": ["example.org"]}, to(address=None, port=0, protocol="dns"), "deny blocked",
     "example.org"),
    ({"allow": ["*"], "deny": ["example.org:22", "POST example.org"]}, to(address=None, port=0, protocol="dns"),
     "allow",
     "*"),
    ({"allow": ["0.0.0.0/0"]}, to(address=None, port=0, protocol="dns"), "deny unlisted", ""),
    ({"allow": ["*"], "schemes": ["https"], "methods": ["GET"]}, to(address=None, port=0, protocol="dns"), "allow",
     "*"),
    ({"ask": ["*"]}, to(address=None, port=0, protocol="dns"), "ask", "*"),
)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_every_branch_of_the_decision_by_a_row(row: int) -> None:
    """The verdict, its cause and the rule; each refusal says why."""
    table, request, said, rule = ROWS[row]
    decision = decide(parse_policy(table), request)

    assert (said, rule) == (f"{decision.verdict} {decision.cause}".strip(), decision.rule)
    assert bool(decision.reason) == (decision.verdict in ("deny", "ask"))
    if decision.cause:
        assert decision.reason.startswith(CAUSES[decision.cause] + ": ")


def test_every_cause_has_a_row() -> None:
    """No cause that nothing can have."""
    assert {said.partition(" ")[2] for _, _, said, _ in ROWS} - {""} == set(CAUSES)


def test_a_grant_counts_as_a_rule_of_allow() -> None:
    """`deny` and `addresses` hold as before."""
    policy = parse_policy({"ask": ["*"], "deny": ["evil.net"]})

    assert decide(policy, to(address=None), granted=True).verdict == "need-address"
    assert decide(policy, to(), granted=True).verdict == "allow"
    assert decide(policy, to(address=PRIVATE), granted=True).cause == "private"
    assert decide(policy, to("evil.net"), granted=True).cause == "blocked"
    assert decide(policy, to(port=22), granted=True).cause == "port"


def test_network_is_all_that_is_public() -> None:
    """The policy of `allow_network`: every name and public address, on the usual ports."""
    assert decide(NETWORK, to("any.example")) == Decision("allow", "*")
    assert decide(NETWORK, to("", OTHER, 80, "http")) == Decision("allow", "*")
    assert decide(NETWORK, to("any.example", LOOPBACK)).cause == "private"
    assert decide(NETWORK, to("", ip_address("169.254.169.254"), 80, "http")).cause == "private"
    assert decide(NETWORK, to("any.example", port=25)).cause == "port"


@pytest.mark.parametrize(("request_", "line"), [
    (to(), "example.org:443"), (to(protocol="tcp"), "example.org:443"), (to(port=22), "example.org:22"), (to("",
        OTHER, 22), "[2606:4700::1111]:22"),
    (to("", OTHER, 0), "2606:4700::1111"), (to("", ip_address("::ffff:10.1.2.3"), 5432), "10.1.2.3:5432"),
])
def test_the_rule_that_would_allow(request_: Request, line: str) -> None:
    """As a person would write it; and it does allow."""
    assert line == rule_for(request_)
    if request_.port:
        assert decide(parse_policy({"allow": [line]}), request_).verdict == "allow"


RULES = st.sampled_from([
    "*", "example.org", "*.example.org", "a.example.org:8443", "*:22", "https://example.org", "http://*", "GET *",
    "GET,POST https://example.org/v1/*", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.1:22", "2606:4700::/32", "1.1.1.1"])
LISTS = st.lists(RULES, max_size=3)
TABLES = st.fixed_dictionaries({"allow": LISTS, "deny": LISTS, "ask": LISTS}, optional={
    "ports": st.sampled_from([[80, 443], [22], []]), "addresses": st.sampled_from([["10.0.0.0/8"], ["127.0.0.1"], []]),
    "methods": st.sampled_from([["GET"], []]), "schemes": st.sampled_from([["https"], []])})
POLICIES = TABLES.map(parse_policy)
REQUESTS = st.builds(
    Request, st.sampled_from(["example.org", "a.example.org", "evilexample.org", "x", ""]),
    st.sampled_from([None, PUBLIC, OTHER, PRIVATE, LOOPBACK, ip_address("::ffff:10.1.2.3")]),
    st.sampled_from([0, 22, 80, 443, 8443]), st.sampled_from(sorted(PROTOCOLS)), st.sampled_from(["", "GET", "POST"]),
    st.sampled_from(["", "/", "/v1/x", "/v1/../x"]))


@settings(max_examples=200)
@given(POLICIES, POLICIES, REQUESTS, st.booleans())
def test_narrowed_is_the_stricter_of_both(operator: Policy, client: Policy, request: Request, granted: bool) -> None:
    """Whatever a client sends, it gets nothing that its operator's policy doesn't have."""
    both = [decide(policy, request, granted=granted) for policy in (operator, client)]
    narrowed = decide(narrow(operator, client), request, granted=granted)

    assert max(VERDICTS.index(each.verdict) for each in both) == VERDICTS.index(narrowed.verdict)
    assert narrowed in both


@pytest.mark.thorough
@settings(max_examples=200)
@given(POLICIES, REQUESTS, RULES)
def test_a_rule_of_deny_never_allows_more(policy: Policy, request: Request, rule: str) -> None:
    """One rule more of `deny`: the verdict is as before or deny. One rule less of `allow` and `ask`, the same for allow."""
    from dataclasses import replace

    from leeward.spec.egress_policy import parse_rule

    before = decide(policy, request)
    denied = decide(replace(policy, deny=(*policy.deny, parse_rule(rule))), request)
    bare = decide(replace(policy, allow=(), ask=()), request)

    assert denied.verdict in (before.verdict, "deny")
    assert bare.verdict == "deny"


@settings(max_examples=200)
@given(POLICIES, REQUESTS)
def test_no_private_address_without_its_name(policy: Policy, request: Request) -> None:
    """Loopback is dialled only where a rule or `addresses` names 127.0.0.1."""
    decision = decide(policy, Request(request.name, LOOPBACK, request.port, request.protocol, request.method,
                                      request.path))

    if decision.verdict in ("allow", "ask") and request.protocol != "dns":
        named = [str(network) for network in policy.addresses] + [rule.text for rule in (*policy.allow, *policy.ask)]
        assert {"127.0.0.1/32", "127.0.0.1:22"} & set(named)
