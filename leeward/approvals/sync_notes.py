"""
Changes that live sync has found and not written, for a sandbox's display.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leeward.approvals.files import FileState

#: Kinds: both sides changed it; a request asks for it; a rule denies it; it can't be synced.
CONFLICT, ASKED, DENIED, REFUSED = "conflict", "asked", "denied", "refused"

#: Notes that are kept, and those that one row tells.
MOST_NOTES, SHOWN_NOTES = 1000, 100


@dataclass(frozen=True, slots=True)
class SyncNote:
    """
    Attributes:
        kind: "conflict", "asked", "denied" or "refused".
        why: for people.
        inside: what the sandbox had; None where the host's own showed through.
        host: what the host had.
        request: the id of the request that asks; None where there is none.
    """

    kind: str
    why: str
    inside: FileState | None
    host: FileState
    request: int | None = None


class SyncNotes:
    """
    By path.

    Args:
        noted: is told of each that is new.
    """

    def __init__(self, noted: Callable[[str, SyncNote], None]) -> None:
        self._noted, self._notes = noted, dict[str, SyncNote]()

    def is_settled(self, path: str, inside: FileState | None, host: FileState) -> bool:
        """
        Whether *path* was seen so, and a note says what came of it. A denial is looked at again, since rules change,
        and so is a folder on one side alone: what is in it may have changed.
        """
        note = self._notes.get(path)
        if note is None or DENIED == note.kind or (note.inside, note.host) != (inside, host):
            return False
        one_folder = inside is not None and {inside.type, host.type} == {"none", "folder"}
        return ASKED == note.kind or not one_folder

    def add(self, path: str, note: SyncNote) -> None:
        if self._notes.get(path) == note:
            return
        if path not in self._notes and len(self._notes) >= MOST_NOTES:
            return
        self._notes[path] = note
        self._noted(path, note)

    def drop(self, path: str) -> None:
        self._notes.pop(path, None)

    def paths(self) -> list[str]:
        return list(self._notes)

    def rows(self) -> list[dict[str, Any]]:
        """
        For JSON, conflicts first: `path`, `kind`, `why`, `request`.
        """
        found = sorted(dict(self._notes).items(), key=lambda item: (CONFLICT != item[1].kind, item[0]))
        return [{"path": path.encode("utf-8", "backslashreplace").decode(), "kind": note.kind, "why": note.why,
                 "request": note.request} for path, note in found[:SHOWN_NOTES]]

    def __len__(self) -> int:
        return len(self._notes)
