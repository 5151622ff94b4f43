"""What a tenant may ask for when a sandbox is made: its policies of egress, and its profiles."""

from __future__ import annotations

import pytest

from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.tokens import ServeTenant

pytestmark = pytest.mark.needs("extra-serve")

NONE = ServeTenant("none", "1")
ONE = ServeTenant("one", "2", egress=("pypi", "all"), profiles=("big",))
ALL = {"denyOut": ["0.0.0.0/0"]}


def within(*allowed, denied=()):
    return {"egress": "pypi", "policy": {"allowed_domains": [*allowed], "blocked_domains": [*denied],
                                         "deny_private_ips": False}}


@pytest.mark.parametrize(("tenant", "fields", "expected"), [
    (NONE, {}, {}), (NONE, {"allow_internet_access": True}, {}), (NONE, {"network": {"allowOut": ["a.example"]}}, {}),
    (ONE, {}, {"egress": "pypi"}), (ONE, {"allow_internet_access": False}, {}), (ONE, {"network": ALL}, {}),
    (ONE, {"network": {"allowOut": ["a.example"], **ALL}}, within("a.example")),
    (ONE, {"egress": "all", "policy": {"allow": ["*"]}}, {"egress": "pypi"}),
])
def test_a_sandbox_has_its_tenants_policy_or_less(tenant, fields, expected):
    from leeward.apps.serve.e2b.control import egress_of

    assert expected == egress_of(tenant, fields)


@pytest.mark.parametrize(("kept", "fields", "expected"), [
    ({}, {}, {}), ({"egress": "pypi"}, {}, {"egress": "pypi"}), ({"egress": "pypi"}, {"allow_internet_access": False}, {}),
    ({"egress": "before"}, {}, {"egress": "pypi"}), ({}, {"network": {"allowOut": ["a.example"]}}, {}),
    (within("a.example", "b.example"), {"network": {"allowOut": ["b.example", "c.example"]}}, within("b.example")),
    (within("a.example"), {"network": {"allowOut": ["b.example"]}}, {}), (within("a.example"), {}, within("a.example")),
    (within("*", denied=["x.example"]), {"network": {"allowOut": ["b.example"]}}, within("b.example", denied=["x.example"])),
    (within("*", denied=["x.example"]), {}, within("*", denied=["x.example"])), (within(), {}, {})])
def test_a_copy_of_a_snapshot_reaches_what_both_may_reach(kept, fields, expected):
    from leeward.apps.serve.e2b.control import options_of_copy

    made = options_of_copy({"profile": "workdir", **kept}, ONE, fields)
    assert expected == {name: value for name, value in made.items() if name in ("egress", "policy")}
    assert "egress" not in options_of_copy({"profile": "workdir", **kept}, NONE, fields)


def test_a_copy_of_a_snapshot_is_as_its_request_says():
    from leeward.apps.serve.e2b.control import options_of_copy

    kept = {"profile": "workdir", "env": {"A": "1", "B": "1"}, "is_private": False, "sleeps": True, "memory": 5}
    fields = {"envVars": {"B": "2"}, "network": {"allowPublicTraffic": False}}
    assert {"profile": "workdir", "env": {"A": "1", "B": "2"}, "is_private": True, "sleeps": False,
            "memory": None} == options_of_copy(kept, NONE, fields)
    assert options_of_copy({**kept, "is_private": True}, NONE, {"autoPause": True}) | {"env": {}} == {
        "profile": "workdir", "env": {}, "is_private": True, "sleeps": True, "memory": None}


@pytest.mark.parametrize("network", [{"denyOut": ["a.example"]}, {"allowOut": [1]}, {"allowOut": "x"}, []])
def test_what_a_policy_cannot_hold_is_refused(network):
    from leeward.apps.serve.e2b.control import egress_of

    with pytest.raises(ServeProblem):
        egress_of(ONE, {"network": network})


@pytest.mark.parametrize(("tenant", "template", "expected"), [
    (NONE, "base", "boxes"), (NONE, "code-interpreter-v1", "boxes"), (ONE, "big", "big"), (NONE, "big", None),
    (ONE, "shell", None), (ONE, "", None), (ONE, "../big", None)])
def test_a_template_is_a_profile_that_the_tenant_may_choose(tenant, template, expected):
    from leeward.apps.serve.e2b.boxes import profile_of

    if expected is None:
        with pytest.raises(ServeProblem):
            profile_of(template, tenant, "boxes")
    else:
        assert expected == profile_of(template, tenant, "boxes")


@pytest.mark.parametrize(("text", "expected"), [
    ("1970-01-01T00:00:05Z", 5.0), ("1970-01-01T01:00:05+01:00", 5.0), ("1970-01-01T01:00:05 01:00", 5.0),
    ("", None), ("x", None), ("9999-99-99", None)])
def test_a_time_is_read_as_clients_write_it(text, expected):
    """The plus of its zone may have become a space on the way."""
    from leeward.apps.serve.e2b.control import seconds_of

    if expected is None:
        with pytest.raises(ServeProblem, match="expiresAt has to be a time"):
            seconds_of(text, "expiresAt")
    else:
        assert expected == seconds_of(text, "expiresAt")
