"""
Live sync, the part that decides: which side of a path has to be written so that the host and a sandbox are the same,
and the notes about what isn't written.

Trust:     none in the sandbox's rows: names, modes, links and content are hostile.
Holds:     one side's change is written to the other side only if that side still has the last common state. If both
           have changed a path, nothing is written, and the conflict is noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from leeward.apps.approvals.carrying.orders import NOTHING, FileState
from leeward.apps.approvals.queue.subjects import project_path, storable
from leeward.apps.approvals.sync.changes import is_left_out
from leeward.base.token_bucket import TokenBucket
from leeward.client.changes import FolderChange, UpperRow
from leeward.errors import BadRequest

Move = Literal["same", "to_host", "to_sandbox", "conflict"]

#: The name of a temporary file of `apply.Project.put`.
_TEMPORARY = re.compile(r"\.leeward-(?:sync-)?[0-9a-f]{16}")

#: Files that a sandbox may sync at once, and the further ones each second; the same for bytes.
BURST_FILES, FILES_S = 2000, 5.0
BURST_BYTES, BYTES_S = 256 << 20, 4 << 20


@dataclass(frozen=True, slots=True)
class InsideView:
    """A sandbox's states of paths, from the rows of its overlay's upper folder."""

    rows: Mapping[str, UpperRow]

    def state(self, path: str) -> FileState | None:
        """The state of *path* in the sandbox; None where the host's own shows through."""
        row = self.rows.get(path)
        if row is not None:
            return _state(row)
        return NOTHING if self.is_hidden(path) else None

    def is_hidden(self, path: str) -> bool:
        """Whether a folder above *path* was removed or replaced in the sandbox."""
        end = path.rfind("/")
        while end > 0:
            row = self.rows.get(path[:end])
            if row is not None and (row.type != "folder" or row.hides):
                return True
            end = path.rfind("/", 0, end)
        return False


def _state(row: UpperRow) -> FileState:
    if row.type == "gone":
        return NOTHING
    mode = row.mode & 0o777 if row.type in ("file", "folder") else 0
    found = row.digest.hex() if row.type == "file" and row.digest is not None else ""
    link = row.link.decode("utf-8", "surrogateescape") if row.type == "link" else ""
    return FileState(row.type, mode, found, link)


def agree(one: FileState, other: FileState) -> bool:
    """Whether two states are the same except for the set-id and sticky bits, which never leave a sandbox."""
    return ((one.type, one.mode & 0o777, one.sha256, one.link)
            == (other.type, other.mode & 0o777, other.sha256, other.link))


def three_way(base: FileState | None, inside: FileState, host: FileState) -> Move:
    """
    The move for a path, by a three-way comparison. *base* is the last common state; None if it isn't known, since the
    host has changed the path before it was read.
    """
    if agree(inside, host):
        return "same"
    if base is not None and agree(base, host):
        return "to_host"
    if base is not None and agree(base, inside):
        return "to_sandbox"
    return "conflict"


def is_skipped(path: str) -> bool:
    """Whether a path isn't synced: those of `changes.LEFT_OUT`, and temporary files."""
    return is_left_out(path) or _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def row_change(path: str, inside: FileState, row: UpperRow | None, host: FileState) -> FolderChange:
    """The change of a path, as a row of `Sandbox.diff`."""
    if inside.type == "none":
        return FolderChange(path, "deleted", host.type, host.mode)
    kind = "created" if host.type == "none" else "modified"
    return FolderChange(path, kind, inside.type, inside.mode, 0 if row is None else row.size, inside.sha256 or None,
                        link=inside.link)


class SyncBudget:
    """The budget of one sandbox's sync, from *now* on a monotonic clock: a token bucket of files and one of bytes."""

    def __init__(self, now: float) -> None:
        self._files, self._bytes = TokenBucket(BURST_FILES, FILES_S, now), TokenBucket(BURST_BYTES, BYTES_S, now)

    def take(self, size: int, now: float) -> bool:
        """Take one file of *size* bytes; False, and nothing is taken, if there isn't enough left."""
        return self._files.left(now) >= 1 and self._bytes.take(now, size) and self._files.take(now)


def sync_option(options: dict[str, Any]) -> str | None:
    """
    Take `sync` and `sync_after` out of the options of a sandbox; returns the path that the sync waits for ("": none),
    None without sync.
    """
    wanted, after = options.pop("sync", False), options.pop("sync_after", "")
    if type(wanted) is not bool or not isinstance(after, str):
        raise BadRequest("sync is true or false, and sync_after a path of the project")
    if after and not wanted:
        raise BadRequest("sync_after is for sandboxes with sync")
    if not wanted:
        return None
    return project_path(after).path if after else ""


#: Kinds: both sides have changed the path; there is a request for the change; a rule denies it; it can't be synced.
CONFLICT, ASKED, DENIED, REFUSED = "conflict", "asked", "denied", "refused"

#: Notes that are kept, and notes that `rows` returns.
MOST_NOTES, SHOWN_NOTES = 1000, 100


@dataclass(frozen=True, slots=True)
class SyncNote:
    """Why a path wasn't written."""

    kind: str  # CONFLICT, ASKED, DENIED or REFUSED
    why: str  # for people
    inside: FileState | None  # the state in the sandbox; None where the host's own showed through
    host: FileState  # the state on the host
    request: int | None = None  # the id of the request for the change; None for none


class SyncNotes:
    """The notes of one sandbox by path, MOST_NOTES at most; *noted* is called with each new one and its path."""

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
        return [{"path": storable(path), "kind": note.kind, "why": note.why,
                 "request": note.request} for path, note in found[:SHOWN_NOTES]]

    def __len__(self) -> int:
        return len(self._notes)
