"""
The rule that "always allow" and "always deny" store for a request.

Runs in:   the operator's program; pure but for the list of public suffixes, which is read once.
Trust:     none in the request. A rule that a person couldn't read isn't made.
Source:    publicsuffix.org, by `spec.domains`.
"""

from __future__ import annotations

import posixpath

from leeward.approvals.patterns import command_pattern, quoted_piece
from leeward.approvals.rules import ApprovalRule, Effect, parse_rule
from leeward.approvals.subjects import (
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
)
from leeward.errors import BadRequest
from leeward.spec.domains import registrable


def generate_rule(subject: RuleSubject, effect: Effect, project: str = "") -> ApprovalRule:
    """
    The rule for *subject* and what is like it: a name's registrable domain with all below, an address itself, a command
    with these arguments in this folder, the files beside a file, a branch, a package.

    Args:
        subject: of a request.
        effect: "allow" or "deny".
        project: where it is to hold; "" for everywhere.

    Raises:
        BadRequest: no rule can say it so that a person can read it.
        Unsupported: a name's domain was to be found, and the list of public suffixes isn't installed.
    """
    category, pattern = _written(subject)
    if not pattern.isprintable():
        raise BadRequest("it has characters that can't be seen; decide each of these by itself")
    rule = parse_rule(f"{category}({pattern})", effect, project)
    if not rule.matches(subject):
        raise BadRequest("no rule can say exactly this; decide each of these by itself")
    return rule


def _written(subject: RuleSubject) -> tuple[str, str]:
    match subject:
        case Endpoint(host=host):
            if host.address is not None:
                return "network", f"[{host.text}]" if ":" in host.text else host.text
            domain = registrable(host.name)
            return "network", host.name if domain is None else f"*.{domain}"
        case ProjectPath(path=path):
            if "*" in path:
                raise BadRequest("its name has a star; decide each of these by itself")
            folder = posixpath.dirname(path)
            return "filesystem", f"{folder}/*" if folder else f"/{path}"
        case Invocation(argv=argv, cwd=cwd):
            if not argv:
                raise BadRequest("a shell's line can't be allowed or denied for good, since nobody knows what it runs")
            return "exec", command_pattern([quoted_piece(argument) or "''" for argument in argv], quoted_piece(cwd))
        case NamedPackage(manager=manager, name=name, version=version):
            return "packages", f"{manager}:{name}" + (f"@{version}" if version else "")
        case BranchName(name=name):
            return "git", name
        case SandboxAction(text=text):
            if "*" in text:
                raise BadRequest("it has a star; decide each of these by itself")
            return "sandbox", text
