"""
Live sync, the part that writes: one path to the host, or one path into the sandbox.

Runs in:   the operator's program that decides, in the thread of a sandbox's sync.
Trust:     none in the sandbox's content. It is read once, compared with the hash that was listed, and written.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace

from leeward.approvals.apply import Project
from leeward.approvals.asking import in_project
from leeward.approvals.files import (
    MOST_CONTENT,
    FileOrder,
    FileState,
    change_order,
    digest,
    file_request,
    remarks,
)
from leeward.approvals.host_names import NameSign
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.recording import sync_ended_row, sync_note_row, synced_row
from leeward.approvals.rules import decide_subject
from leeward.approvals.subjects import ProjectPath
from leeward.approvals.sync_notes import ASKED, DENIED, REFUSED, SyncNote
from leeward.approvals.syncing import Move, SyncBudget, why_ask
from leeward.audit.record import RowSink
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, LeewardError, SandboxOver

#: Files of the project's own that a sandbox may delete on the host before each more is asked for.
MOST_DELETED = 100


class Deferred(Exception):
    """
    It waits for a later round: it is being changed, or there is too much to ask for.
    """


class BudgetSpent(Deferred):
    """
    All that is left waits: the sandbox has synced too much.
    """


@dataclass(frozen=True, slots=True)
class SyncPath:
    """
    What one path needs.

    Attributes:
        path: relative to the project.
        move: "to_host" or "to_sandbox".
        inside: what the sandbox has; None where the host's own shows through.
        host: what the host has.
        sign: of the host's name.
        change: the row for an order to the host.
        is_restless: it changes all the time, so it is taken as it is read.
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
        goal = self.inside if "to_host" == self.move else self.host
        return goal is not None and "none" == goal.type


class SyncMoves:
    """
    Args:
        box: the sandbox.
        overlay: its copy of the project.
        project: on the host.
        queue: for rules, and for what is asked.
        journal: the record.

    Attributes:
        to_host, to_sandbox: how many paths were written there.
        unlisted: folders whose files the sandbox has by name and doesn't list: the host has put another folder in
            their place, and an overlay keeps the one below it that it has seen first.
    """

    def __init__(self, box: Sandbox, overlay: Overlay, project: Project, queue: ApprovalQueue,
                 journal: RowSink) -> None:
        self._box, self._overlay, self._project, self._queue, self._journal = box, overlay, project, queue, journal
        self._budget, self._deleted = SyncBudget(time.monotonic()), 0
        self._noting, self._unnoted = SyncBudget(time.monotonic()), 0
        self._way = f".leeward-sync-{secrets.token_hex(8)}"
        self.to_host = self.to_sandbox = 0
        self.unlisted = set[str]()

    def noted(self, path: str, note: SyncNote) -> None:
        """
        Write *note* to the record. One that makes and removes such paths without end doesn't fill it.
        """
        if not self._noting.take(0, time.monotonic()):
            self._unnoted += 1
            return
        self._journal.write(sync_note_row(self._box.id, path, note))

    def ended(self, left: int, trouble: str) -> None:
        """
        Write to the record that the last pass is over, and what it has left.
        """
        self._journal.write(sync_ended_row(self._box.id, self.to_host, self.to_sandbox, left, self._unnoted, trouble))

    def _denial(self, move: SyncPath) -> SyncNote | None:
        ruling = decide_subject(self._queue.rules(), ProjectPath(move.path), self._project.path)
        if "deny" != ruling.answer:
            return None
        return SyncNote(DENIED, f"{ruling.reason}: {ruling.rule or ruling.mode}", move.inside, move.host)

    def _take(self, size: int, last: bool) -> None:
        if not self._budget.take(size, time.monotonic()) and not last:
            raise BudgetSpent

    # --- to the host ------------------------------------------------------------------

    def out(self, move: SyncPath, is_own: bool, last: bool) -> SyncNote | FileState:
        """
        Write to the host what the sandbox has.

        Args:
            move: to the host.
            is_own: the project had it when the sandbox was opened.
            last: nothing is put off.

        Returns:
            What was written; or why nothing was.

        Raises:
            Deferred: it waits for another round; BudgetSpent: and so do all others.
            Stale: the host has changed meanwhile.
            LeewardError, OSError: it can't be done.
        """
        if (denial := self._denial(move)) is not None:
            return denial
        change = move.change
        if change is None or move.inside is None:
            raise BadRequest("a move to the host without a change")
        is_file = "file" == move.inside.type
        if not (move.is_deletion and "folder" == move.host.type):  # one that isn't empty is tried again and again
            self._take(change.size if is_file else 0, last)
        content = self._content(change, move.is_restless) if is_file else b""
        if is_file and move.is_restless:
            change = replace(change, sha256=digest(content))
        host, before = self._project.content(move.path) if is_file else (self._project.state(move.path), b"")
        if host != move.host:
            raise Deferred
        order = change_order(change, host, content)
        if why := self._why_ask(order, before, is_own):
            return self._ask(move, order, before, why)
        self._project.put(order, self._way)
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
            raise Deferred from None  # it was removed or has grown since it was listed
        if not is_restless and digest(found) != change.sha256:
            raise Deferred
        return found

    def _why_ask(self, order: FileOrder, before: bytes, is_own: bool) -> list[str]:
        found = why_ask(order, before)
        if "none" == order.goal.type and is_own and self._deleted >= MOST_DELETED:
            found.append(f"the sandbox has deleted {self._deleted} of the project's files already")
        return found

    def _ask(self, move: SyncPath, order: FileOrder, before: bytes, why: list[str]) -> SyncNote:
        new = file_request(order, "apply", before=before, sandbox=self._box.id, reason="live sync doesn't write this",
                           description=f"sync: {order.goal.type}", more=why[len(remarks(order, before)):])
        try:
            request = self._queue.submit(in_project(new, self._project))
        except Busy:
            raise Deferred from None
        return SyncNote(ASKED, "; ".join(why)[:500], move.inside, move.host, request.id)

    # --- into the sandbox -------------------------------------------------------------

    def inward(self, move: SyncPath) -> SyncNote | None:
        """
        Write into the sandbox what the host has.

        Returns:
            None where the sandbox has it; else why not.

        Raises:
            As `out`.
        """
        if (denial := self._denial(move)) is not None:
            return denial
        where, files = f"{self._overlay.target}/{move.path}", self._box.files
        if move.host.type not in ("none", "file", "folder"):
            return SyncNote(REFUSED, f"the host's is a {move.host.type}, which isn't carried in", move.inside,
                            move.host)
        if "folder" == move.host.type:
            return self._folder_inward(move, where)
        if "none" == move.host.type:
            if files.exists(where):
                try:
                    files.remove(where, missing_ok=True)
                except FileNotFoundError:  # an overlay keeps the folder below it that it has seen first
                    return SyncNote(REFUSED, "the host has removed this folder, and the sandbox goes on to name it",
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
                raise Deferred from None  # a process was faster: the next round sees what it is
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
