"""
The rules of the store, and their decisions about pending requests.

Runs in:   the operator's program that decides. ApprovalQueue calls it with its lock held, and the methods that change
           the store in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from leeward.approvals.queue.generating import generate_rule
from leeward.approvals.queue.requests import storable
from leeward.approvals.queue.rules import MOST_RULES, ApprovalRule, Effect, RuleSet, decide_subject, parse_rule
from leeward.approvals.queue.store import RequestStore
from leeward.errors import BadRequest
from leeward.spec.hosts import Host

#: Requests of one query.
MOST_ROWS = 500

_EFFECTS: tuple[Effect, Effect] = ("deny", "allow")


class RuleBook:
    """
    Args:
        store: has the rules and modes.
        forbidden: rules of the configuration, which no other rule overrules.
        endpoints: hosts of the configuration that are allowed.

    Attributes:
        rules: those in force.
    """

    def __init__(self, store: RequestStore, forbidden: Sequence[ApprovalRule], endpoints: Sequence[Host]) -> None:
        self._store, self._forbidden, self._endpoints = store, tuple(forbidden), tuple(endpoints)
        self.rules = self._load()

    def _load(self) -> RuleSet:
        deny, allow = (tuple(parse_rule(text, effect, project) for text, project in self._store.rules(effect))
                       for effect in _EFFECTS)
        return RuleSet(self._forbidden, self._endpoints, deny, allow, self._store.modes())

    def reload(self) -> None:
        """Put the rules of the store in force. Called after the transaction."""
        self.rules = self._load()
        self._store.copy_rules()

    def keep(self, rule: ApprovalRule, now: float) -> None:
        """
        Store a rule.

        Raises:
            BadRequest: its list has MOST_RULES rules already.
        """
        if len(self._store.rules(rule.effect)) >= MOST_RULES:
            raise BadRequest(f"there are {MOST_RULES} rules already; remove some")
        self._store.add_rule(rule.effect, rule.text, rule.project, now)

    def remove(self, text: str, project: str | None) -> bool:
        """
        Remove a rule from both lists, as `ApprovalQueue.remove_rule`.

        Returns:
            False if it is in no list.

        Raises:
            BadRequest: *text* is no rule.
        """
        where = None if project is None else storable(project)
        removed = [self._store.remove_rule(effect, parse_rule(text, effect).text, where) for effect in _EFFECTS]
        return any(removed)

    def rule_for(self, numbers: Sequence[int], effect: Effect, everywhere: bool) -> ApprovalRule:
        """
        The rule for the first of *numbers* that is pending.

        Raises:
            BadRequest: none is pending, no rule can be made, or the request has no project and *everywhere* is False.
            Unsupported: as for `generate_rule`.
        """
        for number in numbers:
            request = self._store.get(number)
            if request is not None and request.status == "pending":
                if not everywhere and not request.project:
                    raise BadRequest("this request is of no project, so a rule for it holds everywhere or not at all")
                return generate_rule(request.subject, effect, "" if everywhere else request.project)
        raise BadRequest("none of these is pending, so there is nothing to make a rule of")

    def decide_pending(self, now: float) -> list[int]:
        """
        Decide the pending requests about which the rules or modes of the store decide.

        Returns:
            Their ids.
        """
        rules, decided, after = self._load(), list[int](), 0
        while rows := self._store.pending(MOST_ROWS, after):
            after = rows[-1].id
            for request in rows:
                ruling = decide_subject(rules, request.subject, request.project)
                if ruling.answer != "ask" and self._store.decide(request.id, ruling.status, ruling.decider, now,
                                                                 ruling.rule):
                    decided.append(request.id)
        return decided
