"""What a test found about other people's programs, kept for the tables of the docs if LEEWARD_RECORD is set."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/runs"


def record(kind: str, name: str, version: str, **found: bool | int | float | str) -> None:
    """Add what was *found* of *name* to the file of its *kind*; what another version was found to do is forgotten."""
    if not os.environ.get("LEEWARD_RECORD"):
        return
    file = FOLDER / f"{kind}.json"
    rows = json.loads(file.read_text()) if file.exists() else {}
    row = rows.get(name, {})
    kept = row if row.get("version") == version else {}
    rows[name] = {**kept, **found, "version": version, "date": dt.datetime.now(dt.UTC).date().isoformat()}
    FOLDER.mkdir(exist_ok=True)
    file.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def record_package(name: str, package: str, folder: Path, **found: int) -> None:
    """Add what was found of a package in the environment in *folder*."""
    if os.environ.get("LEEWARD_RECORD"):
        asks = f"import importlib.metadata as found; print(found.version({package!r}), end='')"
        said = subprocess.run([folder / "bin/python", "-c", asks], capture_output=True, text=True, check=True)
        record("frameworks", name, said.stdout, package=package, **found)


def recorded(kind: str) -> dict[str, dict[str, str | int | bool]]:
    """All that was recorded of a kind, by name."""
    found: dict[str, dict[str, str | int | bool]] = json.loads((FOLDER / f"{kind}.json").read_text())
    return found
