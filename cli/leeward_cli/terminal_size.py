"""The size of the user's terminal, which an agent's start needs before `leeward_cli.terminal` is imported."""

from __future__ import annotations

import os


def size() -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80
