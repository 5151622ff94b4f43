"""
OpenSandbox's policies of the network: what a sandbox asks for when it is made, and changes later.

Keeps:     nothing. The rules are among a sandbox's metadata, for who asks for them; the daemon decides by the policy that is
           made from them, within the tenant's.
Source:    github.com/opensandbox-group/OpenSandbox, specs/egress-api.yaml
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

from starlette.responses import JSONResponse, Response

from leeward.apps.serve.calls import ServeCall, taken
from leeward.apps.serve.e2b.boxes import NETWORK, Boxes, OpenBox
from leeward.apps.serve.e2b.control import narrowing
from leeward.apps.serve.problems import ServeProblem, bad
from leeward.apps.serve.tokens import ServeTenant

#: Characters that the mark of the rules may have.
MOST_TEXT = 8192
#: What a request has that asks for nothing, in a sandbox with a policy, and in one without.
_OPEN, _CLOSED = ({"defaultAction": action, "egress": list[Any]()} for action in ("allow", "deny"))

Rules = dict[str, str]  # actions by their targets, the first rule first


def asked(tenant: ServeTenant, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """How a request's sandbox is opened, and its marks."""
    found = taken(fields, "networkPolicy", dict, {})
    rules = rules_of(taken(found, "egress", list, []))
    network = _written(taken(found, "defaultAction", str, "deny"), rules)
    if not tenant.egress:
        return {}, {}
    if fields.get("networkPolicy") is None:
        return {"egress": tenant.egress[0]}, {NETWORK: json.dumps(_OPEN)}
    return {"egress": tenant.egress[0], "policy": policy_of(network)}, {NETWORK: json.dumps(network)}


def rules_of(rows: Iterable[Any]) -> Rules:
    """Of rules about one target the first one holds."""
    rules = Rules()
    for row in rows:
        action, target = (taken(row, name, str, "") if isinstance(row, dict) else "" for name in ("action", "target"))
        if action not in ("allow", "deny") or not target:
            raise bad("egress has to be a list of rules, whose action is allow or deny, and which have a target")
        rules.setdefault(target.lower(), action)
    return rules


def _written(default: str, rules: Rules) -> dict[str, Any]:
    """The rules as the mark has them; ServeProblem for those that can't be held, or are too many."""
    if default not in ("allow", "deny"):
        raise bad("defaultAction is allow or deny")
    network = {"defaultAction": default, "egress": [{"action": action, "target": target} for target, action in rules.items()]}
    if len(json.dumps(network)) > MOST_TEXT:  # before each is compared with each
        raise bad("there are too many rules")
    for (target, action), (other, further) in combinations(rules.items(), 2):
        if (action, further) == ("allow", "deny") and other.startswith("*.") and target.endswith(other[1:]):
            raise ServeProblem(501, f"{target} is allowed here only without a rule that denies {other}")
    return network


def policy_of(network: Mapping[str, Any]) -> dict[str, Any]:
    """The daemon's words for it, of which the rules that deny come first."""
    rows, rest = network["egress"], ["*"] if network["defaultAction"] == "allow" else []
    return narrowing([row["target"] for row in rows if row["action"] == "allow"] + rest,
                     [row["target"] for row in rows if row["action"] == "deny"])


class NetworkFace:
    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def get(self, call: ServeCall, box: OpenBox) -> Response:
        row = await self._boxes.info(box)
        return _answer(_told(row["metadata"]) if row["egress"] else _CLOSED)

    async def patch(self, call: ServeCall, box: OpenBox) -> Response:
        """Add rules, before those that there are."""
        fresh = rules_of(await call.listed())
        return await self._change(box, lambda rules: fresh | {name: rules[name] for name in rules if name not in fresh})

    async def delete(self, call: ServeCall, box: OpenBox) -> Response:
        gone = {name.lower() for name in await call.listed() if isinstance(name, str)}
        return await self._change(box, lambda rules: {name: rules[name] for name in rules if name not in gone})

    async def _change(self, box: OpenBox, change: Callable[[Rules], Rules]) -> Response:
        if not (await self._boxes.info(box))["egress"]:
            raise bad("the sandbox has no network: its token names no policy of egress")

        def changed(metadata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
            was = _told(metadata)
            network = _written(was["defaultAction"], change(rules_of(was["egress"])))
            return {**metadata, NETWORK: json.dumps(network)}, policy_of(network)

        return _answer(_told((await self._boxes.change(box, changed))["metadata"]))


def _told(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The rules; ServeProblem where others than these hold, which a change of these would undo."""
    if NETWORK not in metadata:
        raise ServeProblem(409, "the rules of this sandbox come from another interface, or from the one that it is a copy of")
    found: dict[str, Any] = json.loads(metadata[NETWORK])  # this server's own words
    return found


def _answer(network: Mapping[str, Any]) -> Response:
    return JSONResponse({"status": "ok", "mode": f"{network['defaultAction']}_all", "enforcementMode": "dns+proxy",
                         "policy": network})
