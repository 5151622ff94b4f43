"""Policies of egress that clients send: checked, and put within the operator's (decision 0061)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leeward.errors import BadRequest
from leeward.pool.ways_out import unsourced
from leeward.wire.frames import pack
from leeward.wire.sandbox_requests import SandboxOpen

# Imported in functions: what not every start needs; 6 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.spec.egress import Policy

#: Bytes of both policies together in the form for the broker, at most: less than one of its messages may have.
_MOST = 160 << 10


def of(request: SandboxOpen, operators: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """
    Return the policies under which a sandbox runs and fetches, as `policy_map` makes them; None if the client sends
    none, and the operator's holds. BadRequest if one is invalid, has a secret beyond the operator's, or nothing to
    narrow.
    """
    return _narrowed(request.egress, request.policy, request.fetch_policy, operators)


def of_code(egress: str, policy: Mapping[str, Any], operators: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the policy under which a job or a session runs, as `of` does; they have no fetches."""
    found = _narrowed(egress, policy, {}, operators)
    return None if found is None else found[0]


def _narrowed(egress: str, policy: Mapping[str, Any], fetch_policy: Mapping[str, Any],
              operators: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if not (policy or fetch_policy):
        return None
    if not egress:
        raise BadRequest("policy and fetch_policy narrow a policy of the operator's: name it by egress, or ask for"
                         " allow_network")
    operator = _operators(egress, operators)
    from leeward.egress.short_form import is_short_form
    from leeward.spec.egress import narrow, parse_policy, policy_map

    if not {"within", "authorities", "proxy"}.isdisjoint(policy):
        raise BadRequest("policy: within, authorities and proxy are the operator's")
    narrower = operator
    if policy:
        narrower = narrow(operator, _short(policy, "policy", operator) if is_short_form(policy)
                          else parse_policy(policy, "policy"))
    fetch: dict[str, Any] = {}
    if fetch_policy:
        fetch = policy_map(unsourced(narrow(narrower, _short(fetch_policy, "fetch_policy", narrower))))
    made = policy_map(unsourced(narrower))
    if len(pack({"policy": made, "fetch": fetch})) > _MOST:
        raise BadRequest(f"policy and fetch_policy have more than {_MOST} bytes together with the operator's")
    return made, fetch


def _short(given: Mapping[str, Any], place: str, operator: Policy) -> Policy:
    """Make a policy from its short form, with the ports and secrets of the *operator*'s policy."""
    from leeward.egress.short_form import parse_short_form
    from leeward.spec.egress import ports_of

    return replace(parse_short_form(given, place), ports=ports_of(operator), secrets=operator.secrets)


def _operators(name: str, operators: Mapping[str, Any]) -> Policy:
    from leeward.spec.egress import Policy

    found = operators.get(name)
    if found is None:
        raise BadRequest(f"egress {name!r} is unknown; this daemon has: {', '.join(operators) or 'none'}")
    assert isinstance(found, Policy)
    return found
