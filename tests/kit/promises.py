"""
What docs/kernel.md promises of each cgroup driver, for the tests that find out.

Runs in:   the tests. The table is what they have found: a row that no test asks for, or a cell that isn't
           what happens, fails one of them.
"""

from __future__ import annotations

from kit.features import ROOT

_HEADING = "## What holds under which driver\n"


def table() -> dict[str, dict[str, str]]:
    """
    For each thing that a job may do, what becomes of it by driver.
    """
    _, _, text = (ROOT / "docs/kernel.md").read_text().partition(_HEADING)
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.replace("`", "").strip("|").split("|")] for line in lines]
    (_, *drivers), _, *cells = rows
    return {name: dict(zip(drivers, found, strict=True)) for name, *found in cells}


def promised(what: str, driver: str) -> str:
    """
    The cell: "ended", or how the job was refused, or in words what it gets.
    """
    return table()[what][driver]
