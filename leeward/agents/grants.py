"""
Grants: the settings of a project that widen what its agent may do.

Runs in:   anywhere; pure.
Rule:      a grant is a setting of the project that isn't in the user's own file, and by which the agent can reach, read
           or use more, or by which a command runs on the host. Hooks in the sandbox and hidden names are no grants. A
           variable is one: it can send the agent's credentials elsewhere (a base URL without TLS, a proxy), or make the
           agent run a file of the project at its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leeward.dataclass import dataclass

if TYPE_CHECKING:
    from leeward.agents.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class Grant:
    """
    One right that a project asks for.

    Attributes:
        kind: a key of KINDS.
        what: the command, path, host or name.
    """

    kind: str
    what: str


#: The meaning of each kind, in the order in which a person is shown them.
KINDS: dict[str, str] = {
    "setup_host": "runs on this host, as you, before the start",
    "cleanup_host": "runs on this host, as you, at the end",
    "library_rw": "may be read and written",
    "library": "may be read",
    "include": "is shown, though it would be hidden",
    "dependency": "is fetched and unpacked for the agent, with what it needs",
    "host": "may be reached",
    "variable": "is read from your environment",
    "environment": "is set in the agent's environment",
    "limit": "is what it may take",
    "worktree": "of the repository that this is a worktree of may be read",
}


def grants_of(mine: AgentSettings, merged: AgentSettings, variables: Sequence[str],
              environment: Mapping[str, str]) -> tuple[Grant, ...]:
    """
    The grants of *merged* beyond *mine*.

    Args:
        mine: the settings of the user's file.
        merged: the settings of both files.
        variables: names of the variables that the project's file uses.
        environment: the variables that the project's file sets, as written there, so that a person is shown no values
            of the caller's variables.
    """
    found = [Grant(kind, line) for kind, theirs, ours in (
        ("setup_host", merged.hooks.setup_host, mine.hooks.setup_host),
        ("cleanup_host", merged.hooks.cleanup_host, mine.hooks.cleanup_host)) for line in theirs if line not in ours]
    found += [Grant("library_rw" if each.writable else "library", f"{each.source} as {each.target}")
              for each in merged.libraries if each not in mine.libraries]
    found += [Grant("include", each.text) for each in merged.include if each not in mine.include]
    found += [Grant("dependency", name) for name in merged.dependencies if name not in mine.dependencies]
    found += [Grant("host", rule.text) for rule in merged.allow if rule not in mine.allow]
    found += [Grant("variable", name) for name in dict.fromkeys(variables)]
    found += [Grant("environment", f"{name}={written}") for name, written in environment.items()
              if name not in mine.environment or mine.environment[name] != merged.environment[name]]
    found += [Grant("limit", f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
              for name, value in merged.limits.items()
              if name not in mine.limits or value > mine.limits[name]]
    if merged.worktree_links and not mine.worktree_links:
        found.append(Grant("worktree", "git's folder"))
    order = list(KINDS)
    return tuple(sorted(dict.fromkeys(found), key=lambda grant: order.index(grant.kind)))
