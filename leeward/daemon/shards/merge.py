"""How the pool is divided among the processes of a daemon, and how their counts are added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.daemon.config import Config
from leeward.dataclass import replace
from leeward.errors import PeerError

#: Counters are in maps within maps: of status and of metrics three at the most.
_DEPTH = 8


def part(total: int, number: int, shards: int) -> int:
    """How many of *total* the process *number* of *shards* has; the daemon's own number is 0."""
    return total // shards + (number < total % shards)


def own_part(config: Config, number: int) -> Config:
    """The configuration by which one process of the daemon makes its pool."""
    return replace(config, pool_size=part(config.pool_size, number, config.shards),
                   queue_size=part(config.queue_size, number, config.shards))


def of_shard(config: Config) -> Config:
    """What a shard has of the daemon's configuration: nothing for guests, sessions, sandboxes and other pools."""
    return replace(config, socket="", group="", metrics="", security_log="", idle_exit=0, max_sessions=0, users={},
                   environments={}, profiles={}, egress={}, allow_network=False)


def added(one: Mapping[str, Any], other: Mapping[str, Any], depth: int = _DEPTH) -> dict[str, Any]:
    """
    The sums of two maps' numbers, key by key, also in maps within them; PeerError for other kinds, or above *depth*
    maps.
    """
    if not depth:
        raise PeerError("too many maps in one another")
    total = dict(one)
    for key, value in other.items():
        mine = total.get(key)
        if isinstance(value, Mapping) and (mine is None or isinstance(mine, Mapping)):
            total[key] = added(mine or {}, value, depth - 1)
        elif isinstance(value, (int, float)) and (mine is None or isinstance(mine, (int, float))):
            total[key] = (mine or 0) + value
        elif (isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
              and (mine is None or (isinstance(mine, list) and len(mine) == len(value)))):
            total[key] = [a + b for a, b in zip(mine or [0] * len(value), value, strict=True)]
        else:
            raise PeerError(f"{key!s:.60} is {type(value).__name__}")
    return total
