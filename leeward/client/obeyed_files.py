"""
Searches a folder of the host for what programs there obey.

Runs in:   anybody's program.
Trust:     none in the folder's content: nothing is opened through a link or on another mount.
"""

from __future__ import annotations

import os

from leeward._native.beneath import open_beneath
from leeward.client.changes import FOLDER
from leeward.obeyed.search import ObeyedPaths, search

#: Names of a folder, at most.
MAX_NAMES = 2_000_000


def found_in(folder: int, *, at_once: bool = False, passed: tuple[str, ...] = ()) -> ObeyedPaths:
    """
    What `search` finds in a folder.

    Args:
        folder: a descriptor of it.
        at_once: as for `search`.
        passed: as for `search`.
    """
    def listed(path: str) -> list[tuple[str, bool]]:
        fd = open_beneath(folder, os.fsencode(path) or b".", FOLDER)
        try:
            with os.scandir(fd) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        finally:
            os.close(fd)
    return search(listed, MAX_NAMES, at_once=at_once, passed=passed)
