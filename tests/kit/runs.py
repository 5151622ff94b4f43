"""
What a test found about other people's programs, kept for the tables of the docs if LEEWARD_RECORD is set.

    PYTHONPATH=tests .venv/bin/python -m kit.runs    # notes which packages of docs/runs have newer versions

With LEEWARD_NEWEST a framework of that name was run at its newest version, which is kept beside the other.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/runs"

Rows = dict[str, dict[str, str | float | bool]]


def record(kind: str, name: str, version: str, **found: bool | int | float | str) -> None:
    """Add what was *found* of *name* to the file of its *kind*; what another version was found to do is forgotten."""
    if not os.environ.get("LEEWARD_RECORD"):
        return
    row = recorded(kind).get(name, {})
    kept = row if row.get("version") == version else {}
    added(kind, {name: {**kept, **found, "version": version, "date": dt.datetime.now(dt.UTC).date().isoformat()}})


def added(kind: str, found: Rows) -> None:
    """Replace rows of a kind's file."""
    FOLDER.mkdir(exist_ok=True)
    rows = {**recorded(kind), **found}
    Path(FOLDER, f"{kind}.json").write_text(text_of(rows))


def text_of(values: Mapping[str, object]) -> str:
    """JSON with a line for each value, and within a value for each that holds more."""
    def lines(inner: Mapping[str, object], indent: str, deeper: bool) -> str:
        rows = (f"{indent}{json.dumps(name)}: " + (
            f"{{\n{lines(value, indent + ' ', False)}\n{indent}}}"
            if deeper and isinstance(value, dict) and any(isinstance(each, (dict, list, tuple)) for each in value.values())
            else json.dumps(value, sort_keys=True)) for name, value in sorted(inner.items()))
        return ",\n".join(rows)

    return f"{{\n{lines(values, ' ', True)}\n}}\n"


def record_package(name: str, package: str, folder: Path, passed: int, **found: int) -> None:
    """Add what was found of a package in the environment in *folder*."""
    if not os.environ.get("LEEWARD_RECORD"):
        return
    asks = f"import importlib.metadata as found; print(found.version({package!r}), end='')"
    version = subprocess.run([folder / "bin/python", "-c", asks], capture_output=True, text=True, check=True).stdout
    if is_newest(name):
        row = recorded("frameworks")[name]
        added("frameworks", {name: {**row, "newest": version, "newest_passed": passed}})
    else:
        record("frameworks", name, version, package=package, passed=passed, **found)


def record_npm(package: str, wire: str, folder: Path, **found: int) -> None:
    """The same of npm's package that is installed in *folder*, over a *wire* of the server's."""
    about = json.loads((folder / "node_modules" / package / "package.json").read_text())
    record("frameworks", f"{package} {wire}", about["version"], package=f"{package}, {wire}", **found)


def is_newest(name: str) -> bool:
    """Whether the environment of a framework has its newest version."""
    return name in os.environ.get("LEEWARD_NEWEST", "").split()


def recorded(kind: str) -> Rows:
    """All that was recorded of a kind, by name."""
    file = FOLDER / f"{kind}.json"
    found: Rows = json.loads(file.read_text()) if file.exists() else {}
    return found


def main() -> None:
    rows = recorded("frameworks")
    index = [sys.executable, "-m", "pip", "index", "versions", "--ignore-requires-python"]
    for row in rows.values():
        package = str(row["package"]).partition(",")[0]
        asks = ["npm", "view", package, "version"] if package.startswith("@") else [*index, package]
        done = subprocess.run(asks, capture_output=True, text=True, check=False)
        if newest := re.match(r"(?:\S+ \()?(\d[^)\s]*)", done.stdout):
            if newest[1] != row.get("newest"):
                row.pop("newest_passed", None)
            row["newest"] = newest[1]
    added("frameworks", rows)


if __name__ == "__main__":
    main()
