"""The size of the user's terminal, which an agent's start needs before `leeward_cli.terminal` is imported."""

from __future__ import annotations

import os


def size() -> tuple[int, int]:
    """Rows and columns of the terminal on standard output; 24 and 80 if they aren't known."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80
