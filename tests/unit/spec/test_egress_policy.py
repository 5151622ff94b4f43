"""Policies: from a table and back, narrowed, and what is refused of one."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from leeward.spec.egress_policy import (
    NETWORK,
    EgressLimits,
    Policy,
    PolicyError,
    Secret,
    narrow,
    parse_policy,
    parse_rule,
    policy_map,
    ports_of,
)

TABLE: dict[str, Any] = {
    "allow": ["packages.example.org", "*.example.org:8443", "10.1.0.0/16:5432", "GET https://api.example.org/v1/*"],
    "deny": ["*.datadoghq.com"],
    "ask": ["*"],
    "ports": [443, 80],
    "addresses": ["10.213.0.0/16"],
    "methods": ["get", "POST"],
    "schemes": ["https"],
    "limits": {"connections": 5, "per_minute": 50, "request": "10M", "response": 1 << 20, "redirects": 0,
               "connect": "500ms", "total": 30},
    "secrets": {"KEY": {"from": "env:KEY", "hosts": ["api.example.org", "*.api.example.org"]}},
}


def test_a_table_becomes_a_policy() -> None:
    """Every key, in its one form."""
    policy = parse_policy(TABLE, "egress.build", "build")

    assert policy == Policy(
        "build", tuple(map(parse_rule, TABLE["allow"])), (parse_rule("*.datadoghq.com"),), (parse_rule("*"),),
        (80, 443), (ip_network("10.213.0.0/16"),), ("GET", "POST"), ("https",),
        EgressLimits(5, 50, 10 << 20, 1 << 20, 0, 0.5, 30.0),
        (Secret("KEY", ("api.example.org", "*.api.example.org"), "env:KEY"),))


def test_a_policys_map_reads_back() -> None:
    """As it goes between processes."""
    policy = parse_policy(TABLE)
    narrowed = narrow(policy, parse_policy({"allow": ["a.example.org"]}))

    assert policy == parse_policy(policy_map(policy))
    assert narrowed == parse_policy(policy_map(narrowed))
    assert NETWORK == parse_policy(policy_map(NETWORK), name="network")


def test_an_empty_policy_allows_no_host() -> None:
    """An empty table has no rules and needs no listener."""
    assert Policy() == parse_policy({})
    assert ports_of(Policy()) == ()


@pytest.mark.parametrize(("table", "place", "reason"), [
    ([], "", "is a table"),
    ({"alow": []}, "alow", "unknown; these are known: allow"),
    ({7: []}, "7", "unknown"),
    ({"allow": "example.org"}, "allow", "must be an array"),
    ({"allow": ["a", 7]}, "allow[1]", "a rule is a text"),
    ({"deny": ["a/b"]}, "deny[0]", "a slash goes with"),
    ({"allow": ["a"] * 1001}, "allow", "1000 are the most"),
    ({"ports": [True]}, "ports[0]", "a number from 1"),
    ({"ports": [0]}, "ports[0]", "a number from 1"),
    ({"ports": list(range(1, 67))}, "ports", "64 are the most"),
    ({"addresses": ["example.org"]}, "addresses[0]", "not a range of addresses"),
    ({"addresses": ["10.0.0.0/8:80"]}, "addresses[0]", "not a range of addresses"),
    ({"addresses": [7]}, "addresses[0]", "not a range of addresses"),
    ({"methods": ["FETCH"]}, "methods[0]", "not a known method"),
    ({"schemes": ["HTTPS"]}, "schemes[0]", "not a known scheme"),
    ({"limits": 7}, "limits", "must be a table"),
    ({"limits": {"speed": 7}}, "limits.speed", "unknown"),
    ({"limits": {"connections": 0}}, "limits.connections", "from 1 to"),
    ({"limits": {"connections": True}}, "limits.connections", "whole number"),
    ({"limits": {"request": "much"}}, "limits.request", "is not a size"),
    ({"limits": {"connect": "10"}}, "limits.connect", "is not a time"),
    ({"limits": {"connect": float("nan")}}, "limits.connect", "is not a time"),
    ({"limits": {"total": True}}, "limits.total", "is not a time"),
    ({"secrets": []}, "secrets", "must be a table"),
    ({"secrets": {f"K{n}": {"hosts": ["a"]} for n in range(65)}}, "secrets", "16 are the most"),
    ({"secrets": {"A B": {"hosts": ["a"]}}}, "secrets.A B", "not the name of a variable"),
    ({"secrets": {"A": {}}}, "secrets.A", "with `hosts`"),
    ({"secrets": {"A": {"hosts": []}}}, "secrets.A", "has no hosts"),
    ({"secrets": {"A": {"hosts": ["*"]}}}, "secrets.A.hosts[0]", "not the name of a host"),
    ({"secrets": {"A": {"hosts": ["10.0.0.1"]}}}, "secrets.A.hosts[0]", "not the name of a host"),
    ({"secrets": {"A": {"hosts": ["a"], "from": "KEY"}}}, "secrets.A.from", "doesn't say where"),
    ({"secrets": {"A": {"hosts": ["a"], "from": 7}}}, "secrets.A.from", "doesn't say where"),
    ({"within": {"within": {"within": {"within": {}}}}}, "within.within.within.within", "within each other"),
])
def test_a_malformed_policy_is_refused(table: object, place: str, reason: str) -> None:
    """Each with its place, the reason, and a valid form."""
    with pytest.raises(PolicyError, match=reason) as caught:
        parse_policy(table)
    assert caught.value.place == place


def test_a_policys_name_is_a_word() -> None:
    """It stands in records and tables."""
    with pytest.raises(PolicyError, match="can't be a policy's name"):
        parse_policy({}, name="a b")


def test_narrowing_takes_the_smaller_limits() -> None:
    """A client's larger limits stay the operator's."""
    operator = parse_policy({"limits": {"connections": 5, "total": 60}}, name="build")
    client = parse_policy({"limits": {"connections": 500, "total": 1, "request": 7}})

    narrowed = narrow(operator, client)

    assert narrowed.limits == EgressLimits(connections=5, total=1.0, request=7)
    assert (narrowed.name, narrowed.within) == ("build", operator)


def test_narrowing_keeps_the_operators_secrets() -> None:
    """A client names some of them, for some of their hosts, and can't say where the value comes from."""
    operator = parse_policy(TABLE)
    client = parse_policy({"secrets": {"KEY": {"hosts": ["api.example.org"], "from": "file:/etc/shadow"}}})

    assert narrow(operator, client).secrets == (Secret("KEY", ("api.example.org",), "env:KEY"),)
    assert narrow(operator, Policy()).secrets == ()
    for secrets, reason in (({"OTHER": {"hosts": ["a"]}}, "no such secret"),
                            ({"KEY": {"hosts": ["evil.net"]}}, "isn't one of the operator's hosts")):
        with pytest.raises(PolicyError, match=reason):
            narrow(operator, parse_policy({"secrets": secrets}))


def test_narrowing_has_an_end() -> None:
    """Policies within each other are bounded, and each of them is kept."""
    policy = Policy("a")
    for name in "bcd":
        policy = narrow(policy, Policy(name))
    names = []
    each: Policy | None = policy
    while each is not None:
        names.append(each.name)
        each = each.within
    assert names == ["d", "c", "b", "a"]
    with pytest.raises(PolicyError, match="more than 4 policies"):
        narrow(policy, Policy("e"))
    # A client's own policy that is within one goes above the operator's.
    chained = narrow(Policy("a"), narrow(Policy("b"), Policy("c")))
    assert chained.within == Policy("b", within=Policy("a"))


@pytest.mark.parametrize(("table", "ports"), [
    ({"allow": ["a"]}, (80, 443)), ({"ask": ["a"], "ports": [22]}, (22,)), ({"deny": ["a:7"]}, ()),
    ({"allow": ["a:7", "https://b", "GET http://b:81/"]}, (7, 81, 443)),
    ({"allow": ["a:7", "a"], "within": {"allow": ["*:7", "*:443"]}}, (7, 443)),
])
def test_the_ports_that_need_a_listener(table: dict[str, Any], ports: tuple[int, ...]) -> None:
    """Those of `allow` and `ask`, as far as the policies that it is within have them."""
    assert ports == ports_of(parse_policy(table))
