"""
The size of our terminal.

Runs in:   the CLI. A program on a terminal of that size is started before `leeward_cli.terminal` is imported.
"""

from __future__ import annotations

import os


def size() -> tuple[int, int]:
    """
    Rows and columns of our terminal; 24 and 80 where it doesn't know.
    """
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80
