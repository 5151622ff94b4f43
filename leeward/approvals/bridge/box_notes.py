"""
What the service has to know again of its sandboxes when another service adopts them.

Runs in:   the operator's program that decides.
Holds:     a file for each sandbox, in the service's folder, which no other user can enter.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

_ENDING = ".json"


class BoxNotes:
    """
    Args:
        folder: of the service.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "boxes")

    def all(self) -> dict[str, dict[str, Any]]:
        """The notes of all sandboxes by their ids. A file that can't be read is left out."""
        found = dict[str, dict[str, Any]]()
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._folder)):
                if name.endswith(_ENDING):
                    with contextlib.suppress(OSError, ValueError), \
                            open(os.path.join(self._folder, name), encoding="utf-8") as file:
                        found[name.removesuffix(_ENDING)] = json.load(file)
        return found

    def write(self, sandbox: str, note: dict[str, Any]) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = self._path(sandbox)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(note, file)
        os.replace(f"{path}.new", path)

    def remove(self, sandbox: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(sandbox))

    def _path(self, sandbox: str) -> str:
        return os.path.join(self._folder, f"{os.path.basename(sandbox)}{_ENDING}")
