"""
The table of goals in docs/measurements, from what `./dev figures --json` has printed.

    ./dev figures --json >figures.json
    .venv/bin/python -m bench.figures.markdown figures.json ...

Of several files the later one's groups take the place of the earlier one's: a group may be measured again by itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.figures import shown


def merged(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, in the order of the groups' first appearance."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for found in files:
        new: dict[str, list[dict[str, Any]]] = {}
        for row in found["figures"]:
            new.setdefault(row["group"], []).append({**row, "others": found["noise"]["others"]})
        groups.update(new)
    return [row for rows in groups.values() for row in rows]


def line(row: dict[str, Any]) -> str:
    value = "not measured" if row["value"] is None else f"{row['value']:g} {row['unit']}"
    target = "" if row["target"] is None else f"{'≤' if row['at_most'] else '≥'} {row['target']:g} {row['unit']}"
    met = f"bound by {row['floor']:g}" if row["bound"] else {True: "yes", False: "**no**", None: ""}[row["met"]]
    made = "; ".join(f"{each['subject']} {shown(each).split('  ')[0].removeprefix('p50 ')}" for each in row["measured"])
    return f"| {row['figure']} | {value} | {target} | {met} | {made} | {row['group']}, {100 * row['others']:.0f} % |"


def main(paths: list[str]) -> int:
    files = [json.loads(Path(path).read_text()) for path in paths]
    host = files[-1]["machine"]
    print(f"{files[-1]['date'][:10]}, Linux {host['kernel']}, {host['processors']} processors, CPython"
          f" {host['python']}, {'root' if host['root'] else 'an ordinary user'}\n")
    print("| figure | measured | goal | met | medians | group, and load by others |\n|---|---|---|---|---|---|")
    print("\n".join(line(row) for row in merged(files)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
