"""
The daemon's configuration: its values with their defaults, and the changes that a running daemon can apply.

Runs in:   the daemon, and `leeward run`. Pure, but for `group_id`, which looks the group up on this host.
See also:  `config_keys` describes and checks each value, `config_sources` reads the files, `config_print` writes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.daemon.config_checks import group_number
from leeward.daemon.config_egress import EGRESS
from leeward.daemon.config_keys import ENVIRONMENTS, KEYS, PROFILES, TABLES
from leeward.dataclass import dataclass, field, replace
from leeward.pool.quotas import Quota, Quotas
from leeward.spec.limits import CEILINGS, Limits
from leeward.spec.profiles import Profile

#: The default quota of guests: members of the group can't take all the connections.
GUEST = Quota(connections=256)


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and packages that requests can name. `config_keys.ENVIRONMENT_KEYS` describes each field."""

    path: str = ""
    preload: tuple[str, ...] = ()
    min: int = 1
    max: int = 4


@dataclass(frozen=True, slots=True)
class Config:
    """The daemon's configuration. `config_keys.KEYS` describes each field."""

    socket: str = ""
    pool_size: int = 4
    shards: int = 1
    spares: int = 1
    recycle_after: int = 100
    layout_jobs: int = 10_000
    layout_time: float = 600.0
    fresh_layout: bool = False
    queue_size: int = 64
    queue_delay: float = 0.1
    queue_timeout: float = 30.0
    max_connections: int = 1024
    idle_timeout: float = 600.0
    idle_exit: int = 0
    connection_requests: int = 256
    max_collected: int = 1000
    max_sessions: int = -1
    connection_sessions: int = 16
    session_idle: float = 600.0
    session_grace: float = 2.0
    session_lifetime: float = 3600.0
    sandbox_idle: float = 600.0
    sandbox_lifetime: float = 3600.0
    folder_reserve: int = 0
    allow_degraded: tuple[str, ...] = ()
    python_env: str = ""
    preload: tuple[str, ...] = ()
    loopback: bool = False
    terminal: bool = False
    pinned: bool = False
    show_secrets: bool = True
    allow_network: bool = False
    pool_idle: float = 300.0
    pool_workers: int = 64
    environments_folder: str = ""
    environments_size: int = 20 << 30
    environments_egress: str = ""
    environments_index: str = ""
    log_level: str = "info"
    log_json: bool = False
    log_jobs: bool = False
    security_log: str = ""
    metrics: str = ""
    group: str = ""
    io: str = "auto"
    fast_path: bool = True
    rehearse: bool = True
    results: str = "auto"
    limits: Limits = field(default_factory=Limits)
    ceilings: Limits = CEILINGS
    quota: Quota = GUEST
    users: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    egress: Mapping[str, Any] = field(default_factory=dict)


def group_id(config: Config) -> int | None:
    """Return the gid of the group whose members may use the daemon; None if there is none."""
    return group_number(config.group) if config.group else None


def caps(config: Config) -> dict[str, int]:
    """Return the bounds that are sent to clients, which keep to them; docs/wire.md describes them."""
    return {"requests": config.connection_requests, "sessions": config.connection_sessions,
            "files": config.max_collected, "workers": config.pool_size}


def quotas(config: Config, uid: int) -> Quotas:
    """Return the quotas that a daemon of user *uid* applies to its users."""
    return Quotas(config.quota, {user: replace(config.quota, **own) for user, own in config.users.items()},
                  exempt=(0, uid), reserve=1 if config.group and config.pool_size > 1 else 0)


#: The most workers that are made for sessions: by default, and where `max_sessions` is set.
MOST_ROOM, MOST_ASKED = 256, 1024


def room(config: Config, memory: int) -> int:
    """
    Return how many workers may be made for sessions in addition to the pool's: as many as fit into *memory* bytes if
    each uses its limit; or as many as `max_sessions` asks for.
    """
    if config.max_sessions < 0:
        return max(0, min(MOST_ROOM, memory // config.limits.memory - config.pool_size))
    return max(0, min(MOST_ASKED, config.max_sessions - config.pool_size // 2))


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
