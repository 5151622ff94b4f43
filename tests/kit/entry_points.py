"""What pip would have written of leeward's entry points, for frameworks that find their adapters by these."""

from __future__ import annotations

import tomllib
from pathlib import Path

from kit import features


def written(folder: Path) -> Path:
    """*folder*, which for a PYTHONPATH now has a distribution with the entry points of pyproject.toml."""
    found = folder / "leeward-0.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: leeward\nVersion: 0\n")
    groups = tomllib.loads((features.ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (found / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()))
    return folder
