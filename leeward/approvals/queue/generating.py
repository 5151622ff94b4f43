"""
The rule that "always allow" and "always deny" store for a request.

Runs in:   the operator's program; pure but for the list of public suffixes, which is read once.
Trust:     none in the request. No rule is made with characters that a person can't see.
Source:    publicsuffix.org, by `spec.domains`; `spec.shared_domains`, as agents' settings.
"""

from __future__ import annotations

import posixpath

from leeward.approvals.queue.patterns import command_pattern, quoted_piece
from leeward.approvals.queue.rules import ApprovalRule, Effect, parse_rule
from leeward.approvals.queue.subjects import (
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
)
from leeward.errors import BadRequest
from leeward.obeyed.repositories import names_repository
from leeward.spec.domains import registrable, shared_below
from leeward.spec.unseen import is_seen


def generate_rule(subject: RuleSubject, effect: Effect, project: str = "") -> ApprovalRule:
    """
    The rule for *subject* and similar ones: for a name its registrable domain and all sub-domains, or that name alone
    if others have names below that domain and the rule allows, for an address that address, for a command these
    arguments in this folder, for a file all files of its folder, for a branch or package that one.

    Args:
        subject: of a request.
        effect: "allow" or "deny".
        project: the folder of the project in which the rule holds; "" for all projects.

    Raises:
        BadRequest: no readable pattern matches the subject, or the rule would allow files of git's own.
        Unsupported: the subject has a name, and the list of public suffixes isn't installed.
    """
    category, pattern = _written(subject, effect)
    if not is_seen(pattern):
        raise BadRequest("it has characters that can't be seen, so no rule is made; decide each request by itself")
    rule = parse_rule(f"{category}({pattern})", effect, project)
    if not rule.matches(subject):
        raise BadRequest("no rule matches exactly this; decide each request by itself")
    return rule


def _written(subject: RuleSubject, effect: Effect) -> tuple[str, str]:
    match subject:
        case Endpoint(host=host):
            if host.address is not None:
                return "network", f"[{host.text}]" if ":" in host.text else host.text
            domain = registrable(host.name)
            is_alone = domain is None or (effect == "allow" and shared_below(domain))
            return "network", host.name if is_alone else f"*.{domain}"
        case ProjectPath(path=path):
            if "*" in path:
                raise BadRequest("its name has a star, so no rule is made; decide each request by itself")
            if effect == "allow" and (subject.in_repository or names_repository(path)):
                raise BadRequest("git runs or obeys files of a repository, so no rule is made; decide each"
                                 " request by itself")
            folder = posixpath.dirname(path)
            return "filesystem", f"{folder}/*" if folder else f"/{path}"
        case Invocation(argv=argv, cwd=cwd):
            if not argv:
                raise BadRequest("no rule is made for a line of a shell, since the commands that it runs aren't known")
            return "exec", command_pattern([quoted_piece(argument) or "''" for argument in argv], quoted_piece(cwd))
        case NamedPackage(manager=manager, name=name, version=version):
            return "packages", f"{manager}:{name}" + (f"@{version}" if version else "")
        case BranchName(name=name):
            return "git", name
        case SandboxAction(text=text):
            if "*" in text:
                raise BadRequest("it has a star, so no rule is made; decide each request by itself")
            return "sandbox", text
