"""
A fleet's figures for Prometheus.

Runs in:   anywhere; no clock, no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Names, and what they say of a node; the keys of a row of `status`.
_FIGURES = (("workers", "Jobs that the node runs at once."), ("busy", "Workers that run a job."),
            ("waiting", "Jobs that run there, or wait, of this program and others."),
            ("open", "Sandboxes and sessions."), ("room", "Sandboxes and sessions that it may have."))


def exposition(status: Mapping[str, Any], more: int = 0) -> list[str]:
    """The lines for a fleet's *status*; *more* jobs wait for all nodes together."""
    rows = status["nodes"]
    lines = ["# HELP leeward_fleet_up Whether the node takes new work.", "# TYPE leeward_fleet_up gauge"]
    lines += [f'leeward_fleet_up{{node="{_escaped(row["name"])}"}} {int(row["standing"] == "up")}' for row in rows]
    for name, about in _FIGURES:
        lines += [f"# HELP leeward_fleet_{name} {about}", f"# TYPE leeward_fleet_{name} gauge"]
        lines += [f'leeward_fleet_{name}{{node="{_escaped(row["name"])}"}} {row[name]}' for row in rows
                  if row["standing"] != "lost"]
    waiting, workers = status["waiting"] + more, status["workers"]
    each = waiting / workers if workers else float("inf") if waiting else 0.0
    return [*lines, "# HELP leeward_fleet_waiting_per_worker Jobs that run or wait, by workers of nodes that take new work.",
            "# TYPE leeward_fleet_waiting_per_worker gauge",
            f"leeward_fleet_waiting_per_worker {f'{each:.6g}'.replace('inf', '+Inf')}"]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
