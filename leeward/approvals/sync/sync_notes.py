"""
Notes about changes that live sync has found and not written.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leeward.approvals.carrying.files import FileState

#: Kinds: both sides have changed the path; there is a request for the change; a rule denies it; it can't be synced.
CONFLICT, ASKED, DENIED, REFUSED = "conflict", "asked", "denied", "refused"

#: Notes that are kept, and notes that `rows` returns.
MOST_NOTES, SHOWN_NOTES = 1000, 100


@dataclass(frozen=True, slots=True)
class SyncNote:
    """
    Why a path wasn't written.

    Attributes:
        kind: CONFLICT, ASKED, DENIED or REFUSED.
        why: for people.
        inside: the state in the sandbox; None where the host's own showed through.
        host: the state on the host.
        request: the id of the request for the change; None for none.
    """

    kind: str
    why: str
    inside: FileState | None
    host: FileState
    request: int | None = None


class SyncNotes:
    """
    The notes of one sandbox by path, MOST_NOTES at most.

    Args:
        noted: is called with each new note and its path.
    """

    def __init__(self, noted: Callable[[str, SyncNote], None]) -> None:
        self._noted, self._notes = noted, dict[str, SyncNote]()

    def is_noted(self, path: str, inside: FileState | None, host: FileState) -> bool:
        """
        Whether there is a note on *path* for these states, so that the path needn't be tried again. A denied one is
        tried again, since rules change, and so is a folder on one side alone, whose content may have changed.
        """
        note = self._notes.get(path)
        if note is None or note.kind == DENIED or (note.inside, note.host) != (inside, host):
            return False
        one_folder = inside is not None and {inside.type, host.type} == {"none", "folder"}
        return note.kind == ASKED or not one_folder

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
        """For JSON, conflicts first: `path`, `kind`, `why`, `request`."""
        found = sorted(dict(self._notes).items(), key=lambda item: (item[1].kind != CONFLICT, item[0]))
        return [{"path": path.encode("utf-8", "backslashreplace").decode(), "kind": note.kind, "why": note.why,
                 "request": note.request} for path, note in found[:SHOWN_NOTES]]

    def __len__(self) -> int:
        return len(self._notes)
