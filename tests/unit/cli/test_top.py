"""The table of `leeward top`."""

from __future__ import annotations

from typing import Any

from leeward_cli.top import table


def now(time: float, **spent: float) -> dict[str, Any]:
    rows = [{"sandbox": name, "age": 12.0, "unused": 0.4, "processes": 2, "memory_peak": 5 << 20,
             "memory_limit": 256 << 20, "cpu_time": cpu, "metadata": {"run": "7"}} for name, cpu in spent.items()]
    return {"time": time, "sandboxes": rows,
            "status": {"workers": {"total": 2, "idle": 1}, "jobs": {"done": 5}, "degraded": ["cgroup"]}}


def test_top_shows_totals_and_sandboxes() -> None:
    lines = table(now(1.0, a=0.5))

    assert ["workers  2 total, 1 idle", "jobs     5 done", "degraded cgroup", ""] == lines[:4]
    assert 80 > lines[4].index("METADATA") == lines[5].index("run=7")
    assert ["a", "12s", "0s", "2", "5120KiB", "256MiB", "-", "0.50s", "run=7"] == lines[5].split()


def test_the_busiest_sandbox_is_first() -> None:
    """With the share of a processor since the last look; a sandbox that is new has none yet."""
    lines = table(now(3.0, a=0.5, b=2.0, c=9.0), now(1.0, a=0.5, b=1.0))

    assert [("b", "50%"), ("a", "0%"), ("c", "-")] == [(line.split()[0], line.split()[6]) for line in lines[5:]]
