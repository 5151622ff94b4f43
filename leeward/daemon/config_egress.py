"""
Reads the configuration's tables of egress policies, [egress.NAME], and writes them for --print-config.

Runs in:   the daemon, and `leeward run`; pure. `spec.egress` has the grammar, and is imported only if there is a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.isolation.egress import MOST_PORTS, ports_beside
from leeward.wire.egress_control import MAX_MESSAGE, Leased, encode

# Imported in functions: what not every start needs; 6 ms of processor time for all of it.

#: The table of tables that are named after policies.
EGRESS = "egress"

COMMENT = """\
# What the jobs that name a policy may reach, in tables such as [egress.build]; docs/egress.md has the grammar. A policy
# with no rule allows nothing. [restart]"""

#: What --print-config says about each key.
COMMENTS = {
    "allow": 'what may be reached: "example.org", "*.example.org:8443", "10.1.0.0/16:5432", "GET https://x.org/v1/*"',
    "deny": "what may not, whatever else is allowed",
    "ask": "what a person decides; without one it is denied",
    "ports": "those of rules that name none",
    "addresses": "ranges such as private ones, which are refused by themselves, that an allowed name may lead to",
    "methods": "of requests, [] is any; what passes unseen is refused where methods are named",
    "schemes": '[] is any, else "http", "https" or both',
    "limits": "of each sandbox: bytes of a request and a response, seconds to connect and in total",
    "secrets": 'put into requests to their hosts: { KEY = { from = "env:KEY", hosts = ["x.org:443"], in = ["header"] } }',
    "authorities": "a file with certificates of authorities, beside the host's, for hosts whose TLS the broker ends",
    "proxy": "whether HTTP_PROXY and the like are set, for programs that want a proxy; none needs one",
}


def policies(before: Mapping[str, Any], value: Any, place: str) -> dict[str, Any]:
    """
    Return the policies *before* with those of a file's tables added. A table replaces one of the same name as a whole.

    Args:
        before: the policies of earlier sources, by name.
        value: the file's table of tables.
        place: names the file and the table in errors.

    Raises:
        BadRequest: a table is invalid; names the key, and says what is wrong.
    """
    from leeward.spec.egress import parse_policy

    if not isinstance(value, Mapping):
        raise BadRequest(f"{place}: must hold tables, [egress.NAME]")
    found = dict(before)
    for name, table in value.items():
        here = f"{place}.{name!s:.60}"
        if isinstance(table, Mapping) and "within" in table:
            raise BadRequest(f"{here}.within: unknown; these are known: {', '.join(COMMENTS)}")
        policy = found[name] = _fitting(parse_policy(table, here, name), here)
        for secret in policy.secrets:
            if not secret.source:
                raise BadRequest(f"{here}.secrets.{secret.name}: must have `from`; write \"env:NAME\", \"file:PATH\" or"
                                 " \"command:...\"")
    return found


def with_network(policies: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *policies* with the policy `network` added, which `allow_network` stands for, unless they have it."""
    from leeward.spec.egress import NETWORK

    return {NETWORK.name: NETWORK, **policies}


def _fitting(policy: Any, place: str) -> Any:
    """
    Return *policy*. Raises BadRequest if it has more ports than a sandbox may have listeners for, or if its rules don't
    fit into a message to the broker.
    """
    from leeward.spec.egress import policy_map, ports_of

    if (count := len(ports_beside(ports_of(policy)))) > MOST_PORTS:
        raise BadRequest(f"{place}: its rules are for {count} ports, {MOST_PORTS} are the most")
    most = 1 << 62  # no number in the message is longer
    if (size := len(encode(Leased(most, most, bytes(32), policy_map(policy))))) > MAX_MESSAGE:
        raise BadRequest(f"{place}: has {size} bytes, {MAX_MESSAGE} are the most; shorten its lists")
    return policy


def most_listeners(policies: Mapping[str, Any]) -> int:
    """Return the largest number of listening sockets that a worker with one of *policies* has, on a host with IPv6."""
    if not policies:
        return 0
    from leeward.spec.egress import ports_of

    # For IPv4 and IPv6 each: one for each port, with those of DNS and the proxy, and one for DNS over UDP.
    return max(2 * (len(ports_beside(ports_of(policy))) + 3) for policy in policies.values())


def lines(policies: Mapping[str, Any]) -> list[str]:
    """Return the lines of the tables of *policies*, each key with a comment."""
    from leeward.spec.egress import policy_map

    printed = [COMMENT, f"[{EGRESS}]", ""]
    for name, policy in policies.items():
        values = policy_map(policy)
        # A point in a bare key would make a table in a table.
        printed += [f'[{EGRESS}."{name}"]', ""]
        for key, comment in COMMENTS.items():
            printed += [f"# {comment}", f"{key} = {_toml(values[key])}", ""]
    return printed


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    import json  # only needed to print policies

    return json.dumps(value) if isinstance(value, str | bool) else repr(value)
