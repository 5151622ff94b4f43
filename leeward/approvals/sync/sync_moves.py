"""
Live sync, the part that writes: one path to the host, or one path into the sandbox.

Runs in:   the operator's program that decides, in the thread of a sandbox's sync.
Trust:     none in the sandbox's content, which is read once and compared with the hash that was listed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from leeward.approvals.carrying.apply import Project
from leeward.approvals.carrying.files import (
    MOST_CONTENT,
    FileOrder,
    FileState,
    change_order,
    digest,
    file_request,
    remarks,
)
from leeward.approvals.queue.asking import in_project
from leeward.approvals.queue.queue import ApprovalQueue
from leeward.approvals.queue.recording import sync_ended_row, sync_note_row, synced_row
from leeward.approvals.queue.rules import decide_subject
from leeward.approvals.queue.subjects import ProjectPath
from leeward.approvals.sync.host_names import NameSign
from leeward.approvals.sync.sync_notes import ASKED, DENIED, REFUSED, SyncNote
from leeward.approvals.sync.syncing import Move, SyncBudget
from leeward.audit.record import RowSink
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, LeewardError, SandboxOver

#: Files of the project that a sandbox may delete on the host; each further deletion becomes a request.
MOST_DELETED = 100


class Deferred(Exception):
    """A path waits for a later round: its file is being changed, or the queue takes no request now."""


class BudgetSpent(Deferred):
    """All further paths wait for a later round: the sandbox's budget is used up."""


@dataclass(frozen=True, slots=True)
class SyncPath:
    """
    A path that has to be written to one side.

    Attributes:
        path: relative to the project.
        move: "to_host" or "to_sandbox".
        inside: the state in the sandbox; None where the host's own shows through.
        host: the state on the host.
        sign: of the name on the host; None if there is none.
        change: for a move to the host, the row for its order.
        is_restless: the file changes in every round, so it is written as it is read, whatever its hash.
    """

    path: str
    move: Move
    inside: FileState | None
    host: FileState
    sign: NameSign | None
    change: FolderChange | None = None
    is_restless: bool = False

    @property
    def is_deletion(self) -> bool:
        goal = self.inside if self.move == "to_host" else self.host
        return goal is not None and goal.type == "none"


class SyncMoves:
    """
    Writes paths, within a sandbox's budget.

    Args:
        box: the sandbox.
        overlay: its copy of the project.
        project: the folder on the host.
        queue: has the rules, and takes the requests.
        journal: the record.
        hides: whether the host's file at a path isn't shown to the sandbox.

    Attributes:
        to_host, to_sandbox: how many paths were written there.
        unlisted: folders that the host has replaced. The overlay lists the old folder that it has opened, so new files
            can be opened by name in the sandbox and aren't listed.
    """

    def __init__(self, box: Sandbox, overlay: Overlay, project: Project, queue: ApprovalQueue,
                 journal: RowSink, hides: Callable[[str], bool]) -> None:
        self._box, self._overlay, self._project, self._queue, self._journal = box, overlay, project, queue, journal
        self._hides = hides
        self._budget, self._deleted = SyncBudget(time.monotonic()), 0
        self._noting, self._unnoted = SyncBudget(time.monotonic()), 0
        self._temporary = f".leeward-sync-{secrets.token_hex(8)}"
        self.to_host = self.to_sandbox = 0
        self.unlisted = set[str]()

    def noted(self, path: str, note: SyncNote) -> None:
        """Write *note* to the record, at a bounded rate."""
        if not self._noting.take(0, time.monotonic()):
            self._unnoted += 1
            return
        self._journal.write(sync_note_row(self._box.id, path, note))

    def ended(self, left: int, trouble: str) -> None:
        """Write to the record that the last pass is over, and what it has left."""
        self._journal.write(sync_ended_row(self._box.id, self.to_host, self.to_sandbox, left, self._unnoted, trouble))

    def _denial(self, move: SyncPath) -> SyncNote | None:
        ruling = decide_subject(self._queue.rules(), ProjectPath(move.path), self._project.path)
        if ruling.answer != "deny":
            return None
        return SyncNote(DENIED, f"{ruling.reason}: {ruling.rule or ruling.mode}", move.inside, move.host)

    def _take(self, size: int, last: bool) -> None:
        if not self._budget.take(size, time.monotonic()) and not last:
            raise BudgetSpent

    # --- to the host ------------------------------------------------------------------

    def out(self, move: SyncPath, is_own: bool, last: bool) -> SyncNote | FileState:
        """
        Write the sandbox's state of a path to the host.

        Args:
            move: a move to the host.
            is_own: whether the project had the path when the sandbox was opened.
            last: ignore the budget, in the last pass.

        Returns:
            The state that was written, or a note that says why nothing was.

        Raises:
            Deferred: the path waits for another round; BudgetSpent: all paths do.
            Stale: the host was changed meanwhile.
            LeewardError, OSError: reading or writing fails.
        """
        if (denial := self._denial(move)) is not None:
            return denial
        change = move.change
        if change is None or move.inside is None:
            raise BadRequest("a move to the host without a change")
        is_file = move.inside.type == "file"
        if not (move.is_deletion and move.host.type == "folder"):  # a folder may need several rounds to be empty
            self._take(change.size if is_file else 0, last)
        content = self._content(change, move.is_restless) if is_file else b""
        if is_file and move.is_restless:
            change = replace(change, sha256=digest(content))
        host, before = self._project.content(move.path) if is_file else (self._project.state(move.path), b"")
        if host != move.host:
            raise Deferred
        order = change_order(change, host, content)
        in_repository, more = self._project.in_repository(order.path), list[str]()
        if order.goal.type == "none" and is_own and self._deleted >= MOST_DELETED:
            more.append(f"the sandbox has deleted {self._deleted} of the project's files already")
        why = remarks(order, before, in_repository)
        if why or more:
            return self._ask(move, order, before, why, more, in_repository)
        self._project.put(order, self._temporary)
        if move.is_deletion and is_own:
            self._deleted += 1
        self.to_host += 1
        self._journal.write(synced_row(self._box.id, order.path, "to the host", order.base, order.goal))
        return order.goal

    def _content(self, change: FolderChange, is_restless: bool) -> bytes:
        if change.sha256 is None:
            raise BadRequest("the file is too large to be listed by hash")
        if change.size > MOST_CONTENT:
            raise BadRequest(f"a file has {MOST_CONTENT} bytes at most here")
        try:
            found = self._overlay.content(change.path, MOST_CONTENT)
        except SandboxOver:
            raise
        except LeewardError:
            raise Deferred from None  # the file was removed or has grown since it was listed
        if not is_restless and digest(found) != change.sha256:
            raise Deferred
        return found

    def _ask(self, move: SyncPath, order: FileOrder, before: bytes, why: list[str], more: list[str],
             in_repository: bool) -> SyncNote:
        new = file_request(order, "apply", before=before, sandbox=self._box.id, reason="live sync doesn't write this",
                           description=f"sync: {order.goal.type}", more=more, in_repository=in_repository)
        try:
            request = self._queue.submit(in_project(new, self._project))
        except Busy:
            raise Deferred from None
        return SyncNote(ASKED, "; ".join([*why, *more])[:500], move.inside, move.host, request.id)

    # --- into the sandbox -------------------------------------------------------------

    def inward(self, move: SyncPath) -> SyncNote | None:
        """
        Write the host's state of a path into the sandbox.

        Returns:
            None if the sandbox has it now, or a note that says why not.

        Raises:
            Deferred, BudgetSpent, LeewardError, OSError: as for `out`.
        """
        if (denial := self._denial(move)) is not None:
            return denial
        if move.host.type != "none" and self._hides(move.path):
            return SyncNote(REFUSED, "the sandbox isn't shown this file", move.inside, move.host)
        where, files = f"{self._overlay.target}/{move.path}", self._box.files
        if move.host.type not in ("none", "file", "folder"):
            return SyncNote(REFUSED, f"a {move.host.type} of the host isn't written into the sandbox", move.inside,
                            move.host)
        if move.host.type == "folder":
            return self._folder_inward(move, where)
        if move.host.type == "none":
            if files.exists(where):
                try:
                    files.remove(where, missing_ok=True)
                except FileNotFoundError:  # the overlay still lists the lower folder that it has opened
                    return SyncNote(REFUSED, "the host has removed this folder, but the sandbox still lists it",
                                    move.inside, move.host)
                self._has_moved(move)
            return None
        return self._file_inward(move, where)

    def _folder_inward(self, move: SyncPath, where: str) -> SyncNote | None:
        files = self._box.files
        if not files.exists(where):
            files.mkdir(where, exist_ok=True)
            self._has_moved(move)
        return None

    def _file_inward(self, move: SyncPath, where: str) -> SyncNote | None:
        state, content = self._project.content(move.path)
        if state != move.host:
            raise Deferred
        self._take(len(content), False)
        files, mode = self._box.files, state.mode & 0o777
        try:
            there: bytes | None = files.read(where, limit=MOST_CONTENT)
        except FileNotFoundError:
            there = None
        if there is None:
            try:
                files.write(where, content, mode=mode, exclusive=True)
            except FileExistsError:
                raise Deferred from None  # a process made the file first; the next round compares it
            folder = move.path.rpartition("/")[0]
            if folder and not files.list(where.rpartition("/")[0]):
                self.unlisted.add(folder)
        elif move.inside is not None and digest(there) != move.inside.sha256:
            raise Deferred
        elif there != content or (move.inside is not None and move.inside.mode != mode):
            files.write(where, content, mode=mode)
        else:
            return None
        self._has_moved(move)
        return None

    def _has_moved(self, move: SyncPath) -> None:
        self.to_sandbox += 1
        self._journal.write(synced_row(self._box.id, move.path, "to the sandbox", move.inside, move.host))
