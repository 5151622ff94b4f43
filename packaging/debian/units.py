"""Writes systemd's units as the package has them: `python3 debian/units.py FOLDER`, run by debian/rules."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [".", "cli"]

from leeward_cli.units import Installation, units  # noqa: E402  # it has to be found first

COMMAND = ["/usr/bin/python3", "-P", "-m", "leeward_cli", "daemon", "run"]

for user in (False, True):
    folder = Path(sys.argv[1], "user" if user else "system")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units(Installation(user, COMMAND), mark="# Of the package leeward.").items():
        (folder / name).write_text(text)
