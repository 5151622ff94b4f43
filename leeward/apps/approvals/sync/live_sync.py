"""
Live sync: writes a sandbox's changes in its copy of a project to the host, and the host's edits into the sandbox.

Writer:    on the host this program alone, by `Project.put`: beneath the project, atomically, and only over the state
           that the round has read. In the sandbox a process of the sandbox.
Trust:     none in the sandbox's content, which is read once and compared with the hash that was listed. A change that a
           person has to see becomes a request (`orders.remarks`); a change that a rule denies isn't written. None in
           the names on the host, some of which come from a sandbox: no link is followed, no other mount is entered.
Rounds:    each one lists the overlay's upper folder and the host's names, since an overlay reports no changes
           to the host and inotify may be refused in sandboxes. The pause after a round is four times as long as it took.
Leaves:    if a process of the sandbox writes to a file in the milliseconds in which a host's edit is written to it, the
           process's write is lost.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

from leeward._native.beneath import open_beneath
from leeward.apps.approvals.carrying.apply import Project, beneath, in_project
from leeward.apps.approvals.carrying.orders import (
    MOST_CONTENT,
    NOTHING,
    FileOrder,
    FileState,
    change_order,
    digest,
    file_request,
    remarks,
)
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.rules import decide_subject
from leeward.apps.approvals.queue.subjects import ProjectPath
from leeward.apps.approvals.sync.syncing import (
    ASKED,
    CONFLICT,
    DENIED,
    REFUSED,
    InsideView,
    Move,
    SyncBudget,
    SyncNote,
    SyncNotes,
    agree,
    is_skipped,
    row_change,
    three_way,
)
from leeward.apps.audit.record import RowSink
from leeward.apps.audit.record_lines import AuditRow
from leeward.base.closing import OwnedFd
from leeward.client.changes import FOLDER, FolderChange
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, LeewardError, SandboxOver, ShuttingDown, Stale, told, told_with_type

#: Seconds between two rounds, at least and at most. A path that is the same in two rounds is taken.
DEBOUNCE_S, LONGEST_S = 0.3, 30.0

#: Seconds of pause for each second of a round.
_REST = 4.0

#: Seconds after which a path that changes in every round is taken as it is.
_RESTLESS_S = 3.0

#: Names of a project, and paths that one round writes: at most.
MOST_NAMES, MOST_MOVES = 50_000, 500

#: States that are kept before those of paths that exist nowhere are dropped.
_MOST_KEPT = 400_000

#: Seconds of the last pass.
LAST_S = 10.0

#: Rounds of the last pass: a path that is being written in one is taken in the next.
_LAST_LOOKS = 3

_UNLISTED = ("the host has put another folder in its place: the sandbox has its files by name and doesn't list them; "
             "open a new sandbox to see them")


@dataclass(frozen=True, slots=True)
class _Look:
    """The state of a path in one round."""

    inside: FileState | None
    sign: NameSign | None
    is_restless: bool = field(default=False, compare=False)


class LiveSync:
    """
    Syncs one sandbox's copy with its project, in a thread of its own, from construction to `end`; but not before the
    path *after*, if there is one, is in the copy. Stale if the overlay is over another folder than *project*,
    BadRequest if that has too many names.
    """

    def __init__(self, moves: SyncMoves, overlay: Overlay, project: Project, after: str, notes: SyncNotes) -> None:
        if not overlay.is_over(project.fd):
            raise Stale(f"{project.path!r} is another folder than the one that the sandbox has", project.path)
        self._moves, self._overlay, self._project, self._after, self._notes = moves, overlay, project, after, notes
        self._opening = names_below(project.fd, is_skipped, MOST_NAMES)
        self._seen = dict(self._opening)
        self._base = dict[str, FileState]()
        self._known = dict[str, tuple[NameSign | None, FileState]]()
        self._upper, self._vanished = set[str](), set[str]()
        self._looks, self._restless = dict[str, _Look](), dict[str, float]()
        self._started, self._rounds, self._left, self.trouble = not after, 0, 0, ""
        self._over, self._turned, self._flushing = threading.Event(), threading.Condition(), threading.Lock()
        self._until, self._next, self._pause = float("inf"), "", DEBOUNCE_S
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    # --- from outside -----------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """
        For JSON: `state` ("waiting", "on", "over"), `to_host` and `to_sandbox` (how many files were written there),
        `left` (how many changes wait for a later round), `notes` as `SyncNotes.rows`, `more` (how many notes aren't
        among these), `trouble` (the error of the last round, or "").
        """
        state = "over" if not self._thread.is_alive() else "on" if self._started else "waiting"
        rows = self._notes.rows()
        return {"state": state, "to_host": self._moves.to_host, "to_sandbox": self._moves.to_sandbox,
                "left": self._left, "notes": rows, "more": len(self._notes) - len(rows),
                "trouble": self.trouble}

    def flush(self, seconds: float) -> None:
        """
        Wait until the changes made so far are written or noted, *seconds* at most. The rounds don't come any earlier.
        Returns at once if another call waits: a sandbox can cause calls.
        """
        if not self._flushing.acquire(blocking=False):
            return
        try:
            end = time.monotonic() + seconds
            with self._turned:
                wanted = self._rounds + 3  # the round that runs now, one that sees a change, one that sees it unchanged
                while (self._rounds < wanted or self._left) and self._thread.is_alive():
                    rest = end - time.monotonic()
                    if rest <= 0:
                        return
                    self._turned.wait(rest)
        finally:
            self._flushing.release()

    def end(self, seconds: float = LAST_S) -> None:
        """Begin the last pass, which takes *seconds* at most. `join` waits for it."""
        if not self._over.is_set():
            self._until = time.monotonic() + seconds
            self._over.set()

    def join(self) -> None:
        self._thread.join(max(0.0, self._until - time.monotonic()))

    # --- rounds -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            if not self._guarded(False):
                self._over.set()
        for _ in range(_LAST_LOOKS):
            if not self._guarded(True) or (not self._left and not self.trouble) or time.monotonic() > self._until:
                break
        self._moves.ended(self._left, self.trouble)

    def _guarded(self, last: bool) -> bool:
        """Make a round; False if the sandbox has ended. An exception costs this round."""
        try:
            self._round(last)
            self.trouble = ""
        except SandboxOver as error:
            self.trouble = f"the sandbox ended first: {error}"[:500]
            return False
        except Exception as error:
            self.trouble = told_with_type(error)[:500]
        with self._turned:
            self._rounds += 1
            self._turned.notify_all()
        return True

    def _round(self, last: bool) -> None:
        began, self._pause = time.monotonic(), LONGEST_S / 10  # the pause after a round that fails
        rows = {row.path.decode("utf-8", "surrogateescape"): row for row in self._overlay.rows()}
        names = names_below(self._project.fd, is_skipped, MOST_NAMES)
        inside = InsideView(rows)
        if not self._has_started(inside):
            self._pause = DEBOUNCE_S
            return
        wanted = {path for path in rows if not is_skipped(path)}
        if len(wanted) > MOST_NAMES:
            raise BadRequest(f"the sandbox has changed more than {MOST_NAMES} paths")
        wanted.update(path for path in names.keys() | self._seen.keys() if names.get(path) != self._seen.get(path))
        if any(row.hides or row.type != "folder" for path, row in rows.items()
               if path in names and stat.S_ISDIR(names[path][0])):
            wanted.update(path for path in names if inside.is_hidden(path))
        wanted.update(self._notes.paths())
        self._note_vanished(rows.keys(), inside)
        wanted |= self._vanished | self._moves.unlisted
        ready, looks = self._ready({path: _Look(inside.state(path), names.get(path)) for path in wanted}, last)
        moves, self._left = list[SyncPath](), len(looks) - len(ready)
        for path in ready:
            try:
                found = self._planned(path, looks[path], inside)
            except Deferred:
                self._left += 1
                continue
            if found is not None:
                moves.append(found)
        self._pause = min(LONGEST_S, max(DEBOUNCE_S, (time.monotonic() - began) * _REST))
        self._carry(moves, last)
        if len(self._base) + len(self._known) > _MOST_KEPT:
            kept = self._opening.keys() | rows.keys() | names.keys() | self._seen.keys()
            self._base = {path: state for path, state in self._base.items() if path in kept}
            self._known = {path: known for path, known in self._known.items() if path in names}

    def _note_vanished(self, rows: Set[str], inside: InsideView) -> None:
        """
        Note the paths that were in the upper folder and have left it without a whiteout: the sandbox had removed its
        own file before it could see the one that the host has now.
        """
        self._vanished |= {path for path in self._upper - rows if not inside.is_hidden(path) and not is_skipped(path)}
        self._vanished -= rows
        self._upper = set(rows)

    def _has_started(self, inside: InsideView) -> bool:
        if not self._started:
            state = inside.state(self._after)
            self._started = (self._project.state(self._after) if state is None else state).type != "none"
        return self._started

    def _ready(self, looks: dict[str, _Look], last: bool) -> tuple[list[str], dict[str, _Look]]:
        """
        The paths whose state is that of the round before, or that have changed for more than _RESTLESS_S seconds; and
        the states of all.
        """
        now, ready = time.monotonic(), list[str]()
        for path, look in list(looks.items()):
            since = self._restless.setdefault(path, now)
            is_restless = self._looks.get(path) != look and (now - since > _RESTLESS_S or self._over.is_set())
            if last or self._looks.get(path) == look or is_restless:
                ready.append(path)
                del self._restless[path]
            if is_restless:
                looks[path] = replace(look, is_restless=True)
        self._restless = {path: since for path, since in self._restless.items() if path in looks}
        self._looks = looks
        return ready, looks

    def _planned(self, path: str, look: _Look, inside: InsideView) -> SyncPath | None:
        """What has to be written for *path*; None for nothing, or if it was noted instead."""
        try:
            host = self._host(path, look.sign)
        except (BadRequest, OSError) as error:
            self._notes.add(path, SyncNote(REFUSED, told(error)[:500], look.inside, NOTHING))
            return None
        if path in self._moves.unlisted and host.type == "folder":
            self._notes.add(path, SyncNote(REFUSED, _UNLISTED, look.inside, host))
            return None
        self._moves.unlisted.discard(path)
        if look.inside is None and path in self._vanished:
            base = self._base.get(path)
            if base is not None and agree(base, host) and host.type != "none":
                return SyncPath(path, "to_host", NOTHING, host, look.sign, row_change(path, NOTHING, None, host))
            self._vanished.discard(path)
        if look.inside is None:  # the host's own shows through
            if self._seen.get(path) == look.sign or host.type == "link":
                self._agreed(path, host, look.sign)
                return None
            return SyncPath(path, "to_sandbox", None, host, look.sign)
        move = three_way(self._base_of(path, host, look.sign), look.inside, host)
        if move == "same":
            self._agreed(path, host, look.sign)
        elif self._notes.is_noted(path, look.inside, host):
            pass
        elif move == "conflict":
            self._notes.add(path, SyncNote(CONFLICT, "changed in the sandbox and on the host", look.inside, host))
        else:
            change = row_change(path, look.inside, inside.rows.get(path), host)
            return SyncPath(path, move, look.inside, host, look.sign, change, look.is_restless)
        return None

    def _host(self, path: str, sign: NameSign | None) -> FileState:
        known = self._known.get(path)
        if sign is None or known is None or known[0] != sign:
            known = sign, self._project.state(path)
            if sign_at(self._project.fd, path) != sign:
                raise Deferred  # the file was changed after it was listed, so the sign isn't that of the state
            self._known[path] = known
        return known[1]

    def _base_of(self, path: str, host: FileState, sign: NameSign | None) -> FileState | None:
        found = self._base.get(path)
        if found is not None:
            return found
        if self._opening.get(path) == sign:
            return host  # unchanged since the sandbox was opened
        return None if path in self._opening else NOTHING

    def _agreed(self, path: str, state: FileState, sign: NameSign | None) -> None:
        self._base[path] = state
        if state.type == "none" and path not in self._opening:
            del self._base[path]
        self._notes.drop(path)
        if sign is None:
            self._seen.pop(path, None)
            self._known.pop(path, None)
        else:
            self._seen[path] = sign

    # --- moves ------------------------------------------------------------------------

    def _carry(self, moves: list[SyncPath], last: bool) -> None:
        """Write to the host first, then into the sandbox; on each side first the deletions, the deepest paths first."""
        gone = [move for move in moves if move.is_deletion]
        rest = [move for move in moves if not move.is_deletion]
        ordered = sorted(gone, key=lambda move: move.path, reverse=True) + sorted(rest, key=lambda move: move.path)
        ordered.sort(key=lambda move: move.move != "to_host")
        if self._next and not last:  # the round before has stopped at this path
            ordered = ([move for move in ordered if move.path >= self._next]
                       + [move for move in ordered if move.path < self._next])
        self._next = ""
        for place, move in enumerate(ordered):
            if (place >= MOST_MOVES and not last) or (last and time.monotonic() > self._until):
                self._left, self._next = self._left + len(ordered) - place, move.path
                return
            try:
                self._carry_one(move, last)
            except BudgetSpent:
                self._left, self._next = self._left + len(ordered) - place, move.path
                return
            except Deferred:
                self._left += 1

    def _carry_one(self, move: SyncPath, last: bool) -> None:
        try:
            if move.move == "to_host":
                written = self._moves.out(move, move.path in self._opening, last)
                if isinstance(written, FileState):
                    self._notes.drop(move.path)
                    self._base[move.path] = written  # not the state now, which may have changed already
                    return
                note: SyncNote | None = written
            elif last:
                return  # the sandbox is about to end
            else:
                note = self._moves.inward(move)
        except (SandboxOver, ShuttingDown, Deferred, Busy):
            raise
        except Stale as error:
            note = SyncNote(CONFLICT, str(error)[:500], move.inside, move.host)
        except (LeewardError, OSError) as error:
            note = SyncNote(REFUSED, told(error)[:500], move.inside, move.host)
        if note is not None:
            self._notes.add(move.path, note)
        else:
            self._agreed(move.path, move.host, move.sign)


def begin_sync(box: Sandbox, project: Project, queue: ApprovalQueue, journal: RowSink, after: str,
               hides: Callable[[str], bool], asker: str = "") -> LiveSync:
    """
    Sync *project* with the copy of it that *box* has, but for the host's files that *hides* is True for. *asker* is the
    name of the agent there.
    """
    overlay = Overlay(box, "")
    moves = SyncMoves(box, overlay, project, queue, journal, hides, asker)
    return LiveSync(moves, overlay, project, after, SyncNotes(moves.noted))


#: Files of the project that a sandbox may delete on the host; each further deletion becomes a request.
MOST_DELETED = 100


class Deferred(Exception):
    """A path waits for a later round: its file is being changed, or the queue takes no request now."""


class BudgetSpent(Deferred):
    """All further paths wait for a later round: the sandbox's budget is used up."""


@dataclass(frozen=True, slots=True)
class SyncPath:
    """A path that has to be written to one side."""

    path: str  # relative to the project
    move: Move  # "to_host" or "to_sandbox"
    inside: FileState | None  # the state in the sandbox; None where the host's own shows through
    host: FileState  # the state on the host
    sign: NameSign | None  # of the name on the host; None if there is none
    change: FolderChange | None = None  # for a move to the host, the row for its order
    is_restless: bool = False  # the file changes in every round, so it is written as it is read, whatever its hash

    @property
    def is_deletion(self) -> bool:
        goal = self.inside if self.move == "to_host" else self.host
        return goal is not None and goal.type == "none"


class SyncMoves:
    """
    Writes paths, within a sandbox's budget. *hides* is True for a path whose file of the host isn't shown to the
    sandbox. `unlisted` has folders that the host has replaced: the overlay lists the old one that it has opened, so new
    files can be opened by name in the sandbox and aren't listed.
    """

    def __init__(self, box: Sandbox, overlay: Overlay, project: Project, queue: ApprovalQueue,
                 journal: RowSink, hides: Callable[[str], bool], asker: str = "") -> None:
        self._box, self._overlay, self._project, self._queue, self._journal = box, overlay, project, queue, journal
        self._hides, self._asker = hides, asker
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
        self._row(note.kind, "" if note.request is None else str(note.request), subject=[path], why=note.why)

    def ended(self, left: int, trouble: str) -> None:
        """Write to the record that the last pass is over, and what it has left."""
        self._row("failed" if left or trouble else "ended", to_host=self.to_host, to_sandbox=self.to_sandbox,
                  left=left, unnoted=self._unnoted, trouble=trouble)

    def _row(self, decision: str, id: str = "", **metadata: Any) -> None:
        self._journal.write(AuditRow(time.time(), "filesystem", "sync", decision, id, "sync", self._box.id,
                                     metadata=metadata))

    def _synced(self, path: str, way: str, before: FileState | None, after: FileState) -> None:
        """Record that the state *before* (None: the sandbox had nothing of its own) was replaced by *after*."""
        self._row("applied", subject=[path], way=way, type=after.type, mode=after.mode,
                  before="" if before is None else before.sha256, after=after.sha256)

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
        Write the sandbox's state of a path to the host; returns what was written, or a note that says why nothing was.

        *is_own* says whether the project had the path when the sandbox was opened; *last* ignores the budget. Deferred
        if the path waits for another round, BudgetSpent if all do, Stale if the host was changed meanwhile.
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
        self._synced(order.path, "to the host", order.base, order.goal)
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
        new = file_request(order, before=before, sandbox=self._box.id, reason="live sync doesn't write this",
                           description=f"sync: {order.goal.type}", asker=self._asker, more=more,
                           in_repository=in_repository)
        try:
            request = self._queue.submit(in_project(new, self._project))
        except Busy:
            raise Deferred from None
        return SyncNote(ASKED, "; ".join([*why, *more])[:500], move.inside, move.host, request.id)

    # --- into the sandbox -------------------------------------------------------------

    def inward(self, move: SyncPath) -> SyncNote | None:
        """Write the host's state of a path into the sandbox; returns None if it has it now, or a note that says why not."""
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
        self._synced(move.path, "to the sandbox", move.inside, move.host)


#: Mode (with the type) and inode of a folder; of anything else also size and ctime, which a program can't set back.
NameSign = tuple[int, ...]

_PASSED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES)


def names_below(folder: int, is_skipped: Callable[[str], bool], most: int) -> dict[str, NameSign]:
    """
    All names in a folder, at any depth, but for skipped paths and what is below them. BadRequest if there are more than
    *most*. A folder that can't be opened is listed without its content.
    """
    found, todo = dict[str, NameSign](), [""]
    while todo:
        inner = todo.pop()
        try:
            fd = open_beneath(folder, os.fsencode(inner) or b".", FOLDER)
        except OSError as error:
            if error.errno in _PASSED:
                continue  # removed or replaced since it was listed, or not readable
            raise
        with OwnedFd(fd), os.scandir(fd) as entries:
            for entry in entries:
                path = f"{inner}/{entry.name}" if inner else entry.name
                if is_skipped(path):
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[path] = _sign(about)
                if stat.S_ISDIR(about.st_mode):
                    todo.append(path)
                if len(found) > most:
                    raise BadRequest(f"a project that is synced has {most} names at most")
    return found


def sign_at(folder: int, path: str) -> NameSign | None:
    """The sign of one name; None if it doesn't exist, or if a part of the path is a link or another mount."""
    with beneath(folder, path) as fd:
        return None if fd is None else _sign(os.fstat(fd))


def _sign(about: os.stat_result) -> NameSign:
    if stat.S_ISDIR(about.st_mode):
        return about.st_mode, about.st_ino
    return about.st_mode, about.st_ino, about.st_size, about.st_ctime_ns
