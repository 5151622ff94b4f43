"""The fields of `leeward status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def status(engine: Mapping[str, object], *, transport: str, connections: int, max_connections: int,
           uptime: float, pid: int, environments: Mapping[str, object], reloads: Sequence[int]) -> dict[str, object]:
    """
    Return the engine's counts together with those of the daemon. *reloads*: how often the configuration was read again,
    and refused.
    """
    return {**engine, "transport": transport, "connections": connections,
            "max_connections": max_connections, "uptime": round(uptime, 3), "pid": pid,
            "environments": environments, "reloads": list(reloads)}
