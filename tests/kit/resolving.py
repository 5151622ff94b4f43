"""
A daemon whose broker asks the tests' resolver: egress_names.py.

Runs in:   daemons that are test builds, the tests' own process and those that daemon_build.py starts.
"""

from __future__ import annotations

from pathlib import Path

from kit import points

_TESTS = Path(__file__).resolve().parents[1]


def entry(control: int) -> str:
    """Return the program of such a broker; for the point `broker.entry`."""
    return (f"sys.path.append({str(_TESTS)!r})\n"
            "from kit.egress_names import lookup\n"
            "from leeward.egress.main import main\n"
            f"main({control}, lookup)\n")


def prepare(*, grace: float | None = None) -> None:
    """
    Args:
        grace: seconds in which a client that listens for asks may come back.
    """
    from leeward.daemon.pool import asks, broker  # noqa: F401  # which makes their points

    points.fill("broker.entry", entry)
    if grace is not None:
        points.fill("asks.grace", lambda: grace)
