"""
The fields of `leeward status`.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def status(engine: Mapping[str, object], *, transport: str, connections: int, max_connections: int,
           uptime: float, pid: int, environments: Mapping[str, object], reloads: Sequence[int]) -> dict[str, object]:
    """
    Return the engine's counts together with those of the daemon.

    Args:
        engine: workers, jobs, runners_made, layers, degraded and its other counts.
        transport: "socket" or "uring".
        max_connections: the bound in force: of the configuration, or fewer if descriptors are short.
        uptime: seconds.
        pid: the daemon's, as it sees itself.
        environments: for clients that make some.
        reloads: how often the configuration was read again, and how often it was refused.
    """
    return {**engine, "transport": transport, "connections": connections,
            "max_connections": max_connections, "uptime": round(uptime, 3), "pid": pid,
            "environments": environments, "reloads": list(reloads)}
