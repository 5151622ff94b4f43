"""
Rules: which requests are decided without a person, and the rule that "always" stores for one.

Order:     the configuration's forbidden rules, its allowed endpoints, rules that deny, rules that allow, the category's
           mode, a person. The first one that applies decides.
In doubt:  a person decides. What has a character that can't be seen matches no rule that allows, nor does a line of a
           shell. A file of a repository, or with which a folder becomes one, is allowed only by a rule that names one
           (such as `.git`), and by no mode.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from leeward.apps.approvals.queue.patterns import CompiledPattern, command_pattern, compile_pattern, quoted_piece
from leeward.apps.approvals.queue.subjects import (
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
    is_shown,
)
from leeward.errors import BadRequest, brief
from leeward.spec.domains import registrable, shared_below
from leeward.spec.hosts import Host, is_below
from leeward.spec.obeyed.repositories import names_repository
from leeward.spec.unseen import is_seen

Effect = Literal["allow", "deny"]
Answer = Literal["allow", "deny", "ask"]

CATEGORIES = ("network", "filesystem", "git", "packages", "sandbox", "exec")

#: approve-bulk: collected, and decided together.
MODES = ("approve-each", "approve-bulk", "allow-all", "deny-all")
DEFAULT_MODE = "approve-each"

#: Categories whose mode stays DEFAULT_MODE: a rule or a person decides each request.
LOCKED = ("exec", "packages")

#: Rules of each list, at most.
MOST_RULES = 1000


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """A rule."""

    effect: Effect  # "allow" or "deny"
    category: str  # one of CATEGORIES
    pattern: str  # in normal form, so that rules with the same meaning are equal
    _compiled: CompiledPattern = field(repr=False, compare=False)
    project: str = ""  # the folder of the project in which it holds; "" for all projects

    @property
    def text(self) -> str:
        return f"{self.category}({self.pattern})"

    @property
    def never_matches(self) -> bool:
        """Whether the rule would allow every command or every package. Such a rule is kept, and matches nothing."""
        return self.effect == "allow" and self.category in LOCKED and self._compiled.everything

    def matches(self, subject: RuleSubject) -> bool:
        """Whether the rule's pattern matches *subject*."""
        return (subject.category == self.category and not self.never_matches
                and (self.effect == "deny" or is_shown(subject)) and self._compiled.matches(subject, self.effect == "deny"))


def parse_rule(text: str, effect: Effect, project: str = "") -> ApprovalRule:
    """
    A rule of *project* ("": of all) from `category(pattern)`; `category` alone is `category(*)`. BadRequest says why it
    is none.
    """
    category, bracket, rest = text.strip().partition("(")
    category = category.strip()
    if category not in CATEGORIES:
        raise BadRequest(f"{brief(category)} is no category of rules; these are: {', '.join(CATEGORIES)}")
    if bracket and not rest.endswith(")"):
        raise BadRequest("a rule is written as category(pattern)")
    try:
        compiled = compile_pattern(category, rest[:-1] if bracket else "*")
    except BadRequest as error:
        raise BadRequest(f"{category}: {error}") from None
    return ApprovalRule(effect, category, compiled.text, compiled, project)


#: The rules that deny in a new store.
DEFAULT_DENY = ("network(*.datadoghq.com)",)


def check_mode(category: str, mode: str) -> None:
    """BadRequest if there is no such category or mode, or the category can't have it."""
    if category not in CATEGORIES:
        raise BadRequest(f"{brief(category)} is no category of rules; these are: {', '.join(CATEGORIES)}")
    if mode not in MODES:
        raise BadRequest(f"{brief(mode)} is no mode; these are: {', '.join(MODES)}")
    if category in LOCKED and mode != DEFAULT_MODE:
        raise BadRequest(f"the mode of {category} is {DEFAULT_MODE} and stays so")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """
    All rules and modes; BadRequest if a list has more than MOST_RULES or a rule of the other effect, or a mode isn't
    valid.
    """

    forbidden: tuple[ApprovalRule, ...] = ()  # rules of the operator's configuration that no other rule overrules
    endpoints: tuple[Host, ...] = ()  # hosts that are allowed, each with all its sub-domains
    deny: tuple[ApprovalRule, ...] = ()
    allow: tuple[ApprovalRule, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)  # by category; the others have DEFAULT_MODE

    def __post_init__(self) -> None:
        for category, mode in self.modes.items():
            check_mode(category, mode)
        for rules, effect in ((self.forbidden, "deny"), (self.deny, "deny"), (self.allow, "allow")):
            if len(rules) > MOST_RULES:
                raise BadRequest(f"more than {MOST_RULES} rules")
            if any(rule.effect != effect for rule in rules):
                raise BadRequest("a rule in the wrong list")

    def mode(self, category: str) -> str:
        return self.modes.get(category, DEFAULT_MODE)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result of `decide_subject`."""

    answer: Answer  # "allow", "deny", or "ask" for a person
    by: str  # "operator", "endpoint", "rule", "mode" or "person"
    rule: str = ""  # the text of the rule; "" if none decided
    mode: str = DEFAULT_MODE  # of the category

    @property
    def status(self) -> str:
        """The status of a request after it."""
        return {"allow": "approved", "deny": "denied"}.get(self.answer, "pending")

    @property
    def decider(self) -> str:
        """The request's `decided_by`: "rule" or "mode"."""
        return "mode" if self.by == "mode" else "rule"

    @property
    def reason(self) -> str:
        """The text of a denial for the requester; "" for other answers."""
        return {"operator": "Blocked by policy", "rule": "Blocked by rule",
                "mode": "Blocked by policy"}.get(self.by, "") if self.answer == "deny" else ""


def decide_subject(rules: RuleSet, subject: RuleSubject, project: str = "") -> Ruling:
    """Decide about a subject by the rules for all projects, and those for *project*."""
    mode = rules.mode(subject.category)
    forbidden = matching(rules.forbidden, subject, project)
    if forbidden is not None:
        return Ruling("deny", "operator", forbidden.text, mode)
    if isinstance(subject, Endpoint) and any(subject.host == host or (host.name and is_below(subject.host.name, host.name))
                                             for host in rules.endpoints):
        return Ruling("allow", "endpoint", "", mode)
    is_gits = isinstance(subject, ProjectPath) and (subject.in_repository or names_repository(subject.path))
    allow = [rule for rule in rules.allow if names_repository(rule.pattern)] if is_gits else rules.allow
    for among in (rules.deny, allow):
        found = matching(among, subject, project)
        if found is not None:
            return Ruling(found.effect, "rule", found.text, mode)
    if mode in ("allow-all", "deny-all") and not (is_gits and mode == "allow-all"):
        return Ruling("allow" if mode == "allow-all" else "deny", "mode", "", mode)
    return Ruling("ask", "person", "", mode)


def matching(rules: Iterable[ApprovalRule], subject: RuleSubject, project: str = "") -> ApprovalRule | None:
    """The first of *rules* that holds in *project* and matches."""
    return next((rule for rule in rules if rule.project in ("", project) and rule.matches(subject)), None)


def generate_rule(subject: RuleSubject, effect: Effect, project: str = "") -> ApprovalRule:
    """
    The rule for *subject* and similar ones: for a name its registrable domain and all sub-domains, or that name alone
    if others have names below that domain and the rule allows, for an address that address, for a command these
    arguments in this folder, for a file all files of its folder, for a branch or package that one.

    BadRequest if no pattern that a person can read matches the subject, or the rule would allow files of git's own;
    Unsupported for a name without the list of public suffixes.
    """
    pattern = _written(subject, effect)
    if not is_seen(pattern):
        raise BadRequest("it has characters that can't be seen, so no rule is made; decide each request by itself")
    rule = parse_rule(f"{subject.category}({pattern})", effect, project)
    if not rule.matches(subject):
        raise BadRequest("no rule matches exactly this; decide each request by itself")
    return rule


def _written(subject: RuleSubject, effect: Effect) -> str:
    match subject:
        case Endpoint(host=host):
            if host.address is not None:
                return f"[{host.text}]" if ":" in host.text else host.text
            domain = registrable(host.name)
            is_alone = domain is None or (effect == "allow" and shared_below(domain))
            return host.name if is_alone else f"*.{domain}"
        case ProjectPath(path=path):
            if "*" in path:
                raise BadRequest("its name has a star, so no rule is made; decide each request by itself")
            if effect == "allow" and (subject.in_repository or names_repository(path)):
                raise BadRequest("git runs or obeys files of a repository, so no rule is made; decide each"
                                 " request by itself")
            folder = posixpath.dirname(path)
            return f"{folder}/*" if folder else f"/{path}"
        case Invocation(argv=argv, cwd=cwd):
            if not argv:
                raise BadRequest("no rule is made for a line of a shell, since the commands that it runs aren't known")
            return command_pattern([quoted_piece(argument) or "''" for argument in argv], quoted_piece(cwd))
        case NamedPackage(manager=manager, name=name, version=version):
            return f"{manager}:{name}" + (f"@{version}" if version else "")
        case BranchName(name=name):
            return name
        case SandboxAction(text=text):
            if "*" in text:
                raise BadRequest("it has a star, so no rule is made; decide each request by itself")
            return text
