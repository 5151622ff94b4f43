"""
The last counts of a sandbox that has ended by itself, from the daemon's memory of ends.

Runs in:   the operator's program that decides; a client of the daemon.
Leaves:    the daemon remembers a few hundred ends. If it has forgotten one, the record has the counts of the last
           `sandbox_info`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from leeward.client.link import Link
from leeward.errors import LeewardError
from leeward.spec.paths import client_socket

_ANSWER_S = 5.0

#: Returns the last counts of a sandbox by its id, in the form of `sandbox_info`.
LastCounts = Callable[[str], Mapping[str, Any]]

_COUNTS = ("denied", "oom_kills", "forks_refused", "memory_peak", "cpu_time")


def last_counts(socket: str | None, sandbox: str) -> Mapping[str, Any]:
    """
    What a sandbox had used and was refused when it ended.

    Args:
        socket: of the daemon; None for the default.
        sandbox: its id.

    Returns:
        `denied`, `oom_kills`, `forks_refused`, `memory_peak` in bytes and `cpu_time` in seconds; {} if the daemon is
        away or has forgotten the sandbox.
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
    """The counts of *sandbox* in *rows*, the daemon's events; {} if none is of it."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and ("sandbox", sandbox) == (row.get("kind"), row.get("sandbox")):
            return {name: row[name] for name in _COUNTS if name in row}
    return {}
