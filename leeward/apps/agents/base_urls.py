"""
Variables that lead an agent to another host than its own, such as ANTHROPIC_BASE_URL: a person is asked about that host
before the start, since without it the agent can't work, and with it the host gets the agent's key.

Trust:     none in the values, which an environment file of a project may have set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from leeward.apps.agents.definition import AgentDefinition, parse_hosts
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.settings import AgentSettings

if TYPE_CHECKING:
    from leeward.spec.egress_rules import EgressRule


def unlisted(definition: AgentDefinition, settings: AgentSettings,
             environ: Mapping[str, str]) -> Iterator[tuple[str, EgressRule]]:
    """The variables of *definition* that lead to a host which neither it nor *settings* allow, each with a rule for it."""
    for variable in definition.base_urls:
        value = settings.environment.get(variable, environ.get(variable, ""))
        if not value:
            continue
        from leeward.apps.agents.entries import parse_entry  # few starts have such a variable

        scheme, _, rest = value.partition("://")
        host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
        if scheme.lower() not in ("http", "https") or not host:
            raise SettingsError("", variable, f"{value!a:.120} is no URL of http or https")
        plain = host if host.endswith("]") or ":" not in host.rpartition("]")[2] else host.rpartition(":")[0]
        default = {"http": 80, "https": 443}[scheme.lower()]
        entry = plain if host == plain or host == f"{plain}:{default}" else host
        [rule] = parse_entry(entry, "", variable)
        if not any(_covers(each, rule, default) for each in (*parse_hosts(definition.hosts, definition.file),
                                                             *settings.allow)):
            yield variable, rule


def _covers(rule: EgressRule, wanted: EgressRule, default: int) -> bool:
    address = None if wanted.network is None else wanted.network.network_address
    return rule.names_host(wanted.name, address) and ((wanted.port or default) == rule.port or (
        not rule.port and (wanted.port or default) in (80, 443)))
