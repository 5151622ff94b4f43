"""
Policies of egress that clients send: checked, and put within the operator's (decision 0061).

Runs in:   the daemon; pure. What it needs is imported where a client sends a policy: most daemons see none.
Trust:     none in the policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leeward.errors import BadRequest
from leeward.wire.sandbox_requests import SandboxOpen

if TYPE_CHECKING:
    from leeward.spec.egress import Policy

#: Bytes of both policies together, as the broker gets them: less than a message of its.
_MOST = 160 << 10


def of(request: SandboxOpen, operators: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """
    The policies under which a sandbox runs and fetches, as `policy_map` makes them; None where its client sends none,
    and so takes the operator's as it is.

    Raises:
        BadRequest: one of them is no policy, or reaches for a secret that the operator's hasn't, or narrows none.
    """
    if not (request.policy or request.fetch_policy):
        return None
    if not request.egress:
        raise BadRequest("policy and fetch_policy narrow a policy of the operator's: name it by egress, or ask for"
                         " allow_network")
    operator = _operators(request.egress, operators)
    from leeward.egress.short_form import is_short_form
    from leeward.pool.ways_out import unsourced
    from leeward.spec.egress import narrow, parse_policy, policy_map
    from leeward.wire.frames import pack

    if "within" in request.policy or "authorities" in request.policy:
        raise BadRequest("policy: within and authorities are the operator's")
    policy = operator
    if request.policy:
        policy = narrow(operator, _short(request.policy, "policy", operator) if is_short_form(request.policy)
                        else parse_policy(request.policy, "policy"))
    fetch: dict[str, Any] = {}
    if request.fetch_policy:
        fetch = policy_map(unsourced(narrow(policy, _short(request.fetch_policy, "fetch_policy", operator))))
    made = policy_map(unsourced(policy))
    if len(pack({"policy": made, "fetch": fetch})) > _MOST:
        raise BadRequest(f"policy and fetch_policy have more than {_MOST} bytes together with the operator's")
    return made, fetch


def _short(given: Mapping[str, Any], place: str, operator: Policy) -> Policy:
    """
    A policy from its short form, for the ports of the *operator*'s.
    """
    from dataclasses import replace

    from leeward.egress.short_form import parse_short_form
    from leeward.spec.egress import ports_of

    return replace(parse_short_form(given, place), ports=ports_of(operator))


def _operators(name: str, operators: Mapping[str, Any]) -> Policy:
    """
    The policy with this *name*.
    """
    from leeward.spec.egress import Policy

    found = operators.get(name)
    if found is None:
        raise BadRequest(f"egress {name!r} is unknown; this daemon has: {', '.join(operators) or 'none'}")
    assert isinstance(found, Policy)
    return found
