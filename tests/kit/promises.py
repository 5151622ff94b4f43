"""
The promises of docs/kernel.md about each cgroup driver, for the tests that check them.

Runs in:   the tests. The table is the tests' result: a row that no test uses, or a cell that differs from what
           happens, fails one of them.
"""

from __future__ import annotations

from kit.features import ROOT

_HEADING = "## What holds under which driver\n"


def table() -> dict[str, dict[str, str]]:
    """Return the table: for each thing that a job may do, the result with each driver."""
    _, _, text = (ROOT / "docs/kernel.md").read_text().partition(_HEADING)
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.replace("`", "").strip("|").split("|")] for line in lines]
    (_, *drivers), _, *cells = rows
    return {name: dict(zip(drivers, found, strict=True)) for name, *found in cells}


def promised(what: str, driver: str) -> str:
    """Return a cell: "ended", the way in which the job is refused, or a description of what the job gets."""
    return table()[what][driver]
