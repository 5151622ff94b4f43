"""
What the daemon remembers of a sandbox that has ended by itself, up to its last moment.

Runs in:   the operator's program that decides; a client of the daemon.
Leaves:    the daemon remembers a few hundred ends. Where it has forgotten one, the last look at the sandbox stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from leeward.client.link import Link
from leeward.errors import LeewardError
from leeward.spec.paths import client_socket

_ANSWER_S = 5.0

#: By the id of a sandbox, what `sandbox_info` would say of what it has used and was refused.
LastCounts = Callable[[str], Mapping[str, Any]]

_COUNTS = ("denied", "oom_kills", "forks_refused", "memory_peak", "cpu_time")


def last_counts(socket: str | None, sandbox: str) -> Mapping[str, Any]:
    """
    Args:
        socket: of the daemon; None for the default.
        sandbox: the id of one that is over.

    Returns:
        Nothing where the daemon is away or has forgotten it.
    """
    link = Link(client_socket(socket))
    try:
        reply, _ = link.call("recall", {"after": 0, "wait": 0.0}, time.monotonic() + _ANSWER_S)
        rows = (reply.ok or {}).get("events")
    except LeewardError:
        return {}
    finally:
        link.close()
    return counts_in(rows, sandbox)


def counts_in(rows: Any, sandbox: str) -> dict[str, Any]:
    """
    What *rows*, the daemon's memory of ends, say of *sandbox*.
    """
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and ("sandbox", sandbox) == (row.get("kind"), row.get("sandbox")):
            return {name: row[name] for name in _COUNTS if name in row}
    return {}
