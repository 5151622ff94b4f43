"""
Requests, rules and decisions as objects for JSON.

Trust:     none in the texts. They are bounded, and the code that shows them escapes them.
"""

from __future__ import annotations

import json
from typing import Any

from leeward.apps.approvals.queue.approval_request import ApprovalRequest, Resolution
from leeward.apps.approvals.queue.rules import CATEGORIES, LOCKED, MODES, ApprovalRule, RuleSet
from leeward.apps.approvals.queue.subjects import storable, subject_row, subject_text, subject_title

#: Characters of a text in a list, at most; a single request has the whole text.
MOST_SHORT = 2000

#: Requests in the answer to a decision, at most; the others are counted.
MOST_DECIDED = 200


def request_row(request: ApprovalRequest, *, whole: bool = True) -> dict[str, Any]:
    """
    A request; times are seconds since the epoch. Unless it is *whole*, long texts are cut or left out, and `cut` names
    them.
    """
    row: dict[str, Any] = {
        "id": request.id, "category": request.category, "action": request.action,
        "subject": subject_row(request.subject), "title": subject_title(request.subject),
        "description": request.description, "reason": request.reason, "metadata": dict(request.metadata),
        "sandbox": request.sandbox, "asker": request.asker, "digest": request.digest, "created": request.created,
        "expires": request.expires, "status": request.status, "decided_by": request.decided_by,
        "decided": request.decided, "rule": request.rule, "repeats": request.repeats, "stage": request.stage,
        "note": request.note, "replaced_by": request.replaced_by, "project": storable(request.project)}
    if whole:
        return row
    cut = [name for name in ("title", "description", "reason") if len(row[name]) > MOST_SHORT]
    for name in cut:
        row[name] = row[name][:MOST_SHORT]
    if len(subject_text(request.subject)) > 2 * MOST_SHORT:
        row["subject"] = {}
        cut.append("subject")
    if len(json.dumps(row["metadata"])) > MOST_SHORT:
        row["metadata"] = {}
        cut.append("metadata")
    return row | {"cut": cut}


def rule_row(rule: ApprovalRule) -> dict[str, Any]:
    return {"rule": rule.text, "effect": rule.effect, "category": rule.category, "pattern": rule.pattern,
            "never_matches": rule.never_matches, "project": rule.project}


def rules_row(rules: RuleSet) -> dict[str, Any]:
    """Rules in the order in which they are compared, and modes."""
    return {"forbidden": [rule_row(rule) for rule in rules.forbidden],
            "endpoints": [host.text for host in rules.endpoints],
            "deny": [rule_row(rule) for rule in rules.deny], "allow": [rule_row(rule) for rule in rules.allow],
            "modes": {category: rules.mode(category) for category in CATEGORIES},
            "locked": list(LOCKED), "known_modes": list(MODES)}


def resolution_row(resolution: Resolution) -> dict[str, Any]:
    """The result of a decision."""
    return {"decided": [request_row(each, whole=False) for each in resolution.decided[:MOST_DECIDED]],
            "decided_count": len(resolution.decided),
            "before": [request_row(each, whole=False) for each in resolution.before[:MOST_DECIDED]],
            "unknown": list(resolution.unknown[:MOST_DECIDED]), "rule": resolution.rule, "project": resolution.project}
