"""
The daemon's configuration: what follows from its values, its egress policies, and what a running daemon can change.

Runs in: the daemon, and `leeward run`. `config_keys` has each value with its default and its check; `config_sources` reads
and writes files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.base.dataclass import replace
from leeward.daemon.config_keys import ENVIRONMENTS, KEYS, MOST_SEATS, PROFILES, TABLES, group_number
from leeward.daemon.config_keys import Config as Config
from leeward.daemon.config_keys import Environment as Environment
from leeward.daemon.pool.quotas import Quotas
from leeward.errors import BadRequest
from leeward.isolation.egress_route import MOST_PORTS, ports_beside
from leeward.spec.limits import MIB
from leeward.wire.egress_control import MAX_MESSAGE, Leased, encode


def group_id(config: Config) -> int | None:
    """Return the gid of the group whose members may use the daemon; None if there is none."""
    return group_number(config.group) if config.group else None


def caps(config: Config, jobs: int) -> dict[str, int]:
    """Return the bounds that are sent to clients, which keep to them; docs/wire.md describes them."""
    return {"requests": config.connection_requests, "sessions": config.connection_sessions,
            "files": config.max_collected, "workers": config.pool_size, "jobs": max(config.pool_size, jobs)}


def quotas(config: Config, uid: int) -> Quotas:
    """Return the quotas that a daemon of user *uid* applies to its users."""
    return Quotas(config.quota, {user: replace(config.quota, **own) for user, own in config.users.items()},
                  exempt=(0, uid), reserve=1 if config.group and config.pool_size > 1 else 0)


#: The most workers that are made for sessions where `max_sessions` isn't set.
MOST_ROOM = 256


def room(config: Config, memory: int) -> int:
    """Return how many workers for sessions may be made beside the pool's: what fits into *memory*, or `max_sessions`."""
    if config.max_sessions < 0:
        return max(0, min(MOST_ROOM, memory // config.limits.memory - config.pool_size))
    return max(0, min(MOST_SEATS, config.max_sessions - config.pool_size // 2))


#: The most workers that are made for jobs: by themselves, with the memory that each of them has to have at least; and by
#: `max_jobs`.
MOST_JOBS, MOST_ASKED, LEAST_MEMORY = 256, 1024, 32 * MIB


def jobs_beyond(config: Config, memory: int) -> int:
    """Return how many workers for jobs may be made beside the pool's: as many as *memory* carries, or `max_jobs`."""
    if config.max_jobs < 0:
        return max(0, min(MOST_JOBS, memory // LEAST_MEMORY - config.pool_size))
    return max(0, min(MOST_ASKED, config.max_jobs - config.pool_size))


def live(old: Config, new: Config) -> tuple[Config, list[str]]:
    """Return *old* with those changes of *new* that a running daemon can apply, and the names of the keys that it can't."""
    taken, left = old, []
    for name, key in KEYS.items():
        if getattr(old, name) != getattr(new, name):
            if key.live:
                taken = replace(taken, **{name: getattr(new, name)})
            else:
                left.append(name)
    for table, keys in TABLES.items():
        before, after = getattr(old, table), getattr(new, table)
        changed = [name for name in keys if getattr(before, name) != getattr(after, name)]
        left += [f"{table}.{name}" for name in changed if not keys[name].live]
        taken = replace(taken, **{table: replace(before, **{
            name: getattr(after, name) for name in changed if keys[name].live})})
    left += [name for name in (ENVIRONMENTS, PROFILES, EGRESS) if getattr(old, name) != getattr(new, name)]
    return replace(taken, users=new.users), left


# Imported in functions: what not every start needs; 6 ms of processor time for all of it.

#: The table of tables that are named after policies.
EGRESS = "egress"

EGRESS_COMMENT = """\
# What the jobs that name a policy may reach, in tables such as [egress.build]; docs/egress.md has the grammar. A policy
# with no rule allows nothing. [restart]"""

#: What --print-config says about each key.
EGRESS_KEYS = {
    "allow": 'what may be reached: "example.org", "*.example.org:8443", "10.1.0.0/16:5432", "GET https://x.org/v1/*"',
    "deny": "what may not, whatever else is allowed",
    "ask": "what a person decides; without one it is denied",
    "ports": "those of rules that name none",
    "addresses": "ranges such as private ones, which are refused by themselves, that an allowed name may lead to",
    "methods": "of requests, [] is any; what passes unseen is refused where methods are named",
    "schemes": '[] is any, else "http", "https" or both',
    "limits": "of each sandbox: bytes of a request and a response, seconds to connect and in total",
    "secrets": 'put into requests to their hosts: { KEY = { from = "env:KEY", hosts = ["x.org:443"], in = ["header"] } }',
    "authorities": "a file with certificates of authorities that sandboxes and the broker trust beside the host's",
    "proxy": "whether HTTP_PROXY and the like are set, for programs that want a proxy; none needs one",
}


def policies(before: Mapping[str, Any], value: Any, place: str) -> dict[str, Any]:
    """Return the policies *before* with a file's tables added, each in place of one of its name; BadRequest names *place*."""
    from leeward.spec.egress_policy import parse_policy

    if not isinstance(value, Mapping):
        raise BadRequest(f"{place}: must hold tables, [egress.NAME]")
    found = dict(before)
    for name, table in value.items():
        here = f"{place}.{name!s:.60}"
        if isinstance(table, Mapping) and "within" in table:
            raise BadRequest(f"{here}.within: unknown; these are known: {', '.join(EGRESS_KEYS)}")
        policy = found[name] = _fitting(parse_policy(table, here, name), here)
        for secret in policy.secrets:
            if not secret.source:
                raise BadRequest(f"{here}.secrets.{secret.name}: must have `from`; write \"env:NAME\", \"file:PATH\" or"
                                 " \"command:...\"")
    return found


def with_network(policies: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *policies* with the policy `network` added, which `allow_network` stands for, unless they have it."""
    from leeward.spec.egress_policy import NETWORK

    return {NETWORK.name: NETWORK, **policies}


def _fitting(policy: Any, place: str) -> Any:
    """Return *policy*; BadRequest if it has more ports than a sandbox's listeners, or is too long for a message."""
    from leeward.spec.egress_policy import policy_map, ports_of

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
    from leeward.spec.egress_policy import ports_of

    # For IPv4 and IPv6 each: one for each port, with those of DNS and the proxy, and one for DNS over UDP.
    return max(2 * (len(ports_beside(ports_of(policy))) + 3) for policy in policies.values())


