"""
The rows of the record about requests, sandboxes and the service itself.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from leeward.approvals.carrying.files import FileState
from leeward.approvals.queue.queue import ApprovalQueue
from leeward.approvals.queue.requests import ApprovalRequest, subject_text
from leeward.approvals.sync.sync_notes import SyncNote
from leeward.audit.record import RowSink, read_record
from leeward.audit.rows import AuditRow, ReadLine
from leeward.errors import BadRequest, SandboxOver

#: Characters of a text in a row, and of the words of a list together; words of a list: at most.
MOST_TEXT, MOST_WORDS = 2000, 200


def audit_row(request: ApprovalRequest) -> AuditRow | None:
    """The row for a request that was decided, carried out, or couldn't be carried out; None for a pending one."""
    if request.status == "pending":
        return None
    done = request.stage in ("applied", "failed")
    metadata = {"subject": [_short(each) for each in json.loads(subject_text(request.subject))[1:]],
                "digest": request.digest, "rule": _short(request.rule), "repeats": request.repeats,
                "note": request.note, "asker": _short(request.asker)}
    return AuditRow(request.decided or request.created, request.category, request.action,
                    request.stage if done else request.status, str(request.id), request.decided_by, request.sandbox,
                    None if request.decided is None else request.decided - request.created, metadata)


def _short(said: Any) -> Any:
    """The beginning of a long text or list, which bounds the row's length. The row's digest is of the whole request."""
    if isinstance(said, list):
        short = [_short(each) for each in said[:MOST_WORDS]]
        while len(short) > 1 and sum(len(str(each)) for each in short) > MOST_TEXT:
            short.pop()
        return [*short, f"... {len(said) - len(short)} more"] if len(short) < len(said) else short
    if isinstance(said, str) and len(said) > MOST_TEXT:
        return f"{said[:MOST_TEXT]}... {len(said) - MOST_TEXT} characters more"
    return said


def record(queue: ApprovalQueue, journal: RowSink) -> None:
    """Write every decision of *queue* to *journal* from now on. A journal that can't be written delays no decision."""
    def write(request: ApprovalRequest) -> None:
        row = audit_row(request)
        if row is not None:
            journal.write(row)

    queue.subscribe(write)


def newest_rows(folder: str, limit: int, sandbox: str) -> list[dict[str, Any]]:
    """
    Rows of the record in *folder*, for JSON, the newest first. A line that isn't intact has `bad`, the reason, and
    `line`, its number.

    Args:
        folder: of the record.
        limit: rows at most.
        sandbox: the id of a sandbox, for its rows alone; "" for all.

    Raises:
        BadRequest: the record can't be read.
    """
    try:
        lines = (line for line in read_record(folder)
                 if not sandbox or line.row is None or line.row.get("sandbox") == sandbox)
        found: deque[ReadLine] = deque(lines, maxlen=max(1, min(limit, 10_000)))
    except OSError as error:
        raise BadRequest(f"the record: {(error.strerror or 'an error').lower()}") from None
    return [{**(line.row or {}), **({"bad": line.fault, "line": line.number} if line.fault else {})}
            for line in reversed(found)]


def service_row(decision: str, **metadata: Any) -> AuditRow:
    """
    The row for the service's own start or end.

    Args:
        decision: "started", "ended", or "not adopted" of a sandbox that the last service has left.
        metadata: for JSON.
    """
    return AuditRow(time.time(), "service", "serve", decision, metadata=metadata)


def changed_row(by: str, action: str, decision: str, **metadata: Any) -> AuditRow:
    """
    The row for a change by the operator that affects later decisions.

    Args:
        by: "cli" or "page".
        action: "rule", "mode", "config", "login link" or "token".
        decision: "added", "removed", "set" or "made".
        metadata: for JSON.
    """
    return AuditRow(time.time(), "service", action, decision, by=by, metadata=metadata)


def started_row(sandbox: str, **metadata: Any) -> AuditRow:
    """
    The row for a sandbox that was opened.

    Args:
        sandbox: its id.
        metadata: `project`, the folder of which it has a copy; or `profile` and `request`, if it was opened for a
            command; or `by`.
    """
    return AuditRow(time.time(), "sandbox", "open", "started", sandbox=sandbox, metadata=metadata)


def ended_row(sandbox: str, opened: float, info: Mapping[str, Any], why: SandboxOver | None) -> AuditRow:
    """
    The row for a sandbox that has ended.

    Args:
        sandbox: its id.
        opened: seconds since the epoch.
        info: the last `sandbox_info`.
        why: the daemon's reason for the end; None if the service has ended the sandbox.
    """
    used = {name: info[name] for name in ("memory_peak", "cpu_time") if isinstance(info.get(name), (int, float))}
    metadata = {"reason": "closed" if why is None else why.reason, "limit": "" if why is None else why.limit or "",
                **used}
    return AuditRow(time.time(), "sandbox", "limit" if metadata["limit"] else "end", "ended", sandbox=sandbox,
                    duration=time.time() - opened, metadata=metadata)


def denied_rows(sandbox: str, info: Mapping[str, Any], before: dict[str, int]) -> list[AuditRow]:
    """
    A row for each system call that was denied since the last look.

    Args:
        sandbox: its id.
        info: as `sandbox_info` returns it.
        before: the counts at the last look; updated.
    """
    denied = info.get("denied")
    return [AuditRow(time.time(), "syscall", name, "denied", by="policy", sandbox=sandbox, metadata={"count": more})
            for name, more in _grown(denied if isinstance(denied, Mapping) else {}, before)]


#: The daemon's counts of limits that were reached without ending the sandbox: the limit, and what happened to the
#: process that reached it.
_LIMITS = {"oom_kills": ("memory", "killed"), "forks_refused": ("processes", "refused")}


def limit_rows(sandbox: str, info: Mapping[str, Any], before: dict[str, int]) -> list[AuditRow]:
    """
    A row for each limit that processes of a sandbox have reached since the last look.

    Args:
        sandbox: its id.
        info: as `sandbox_info` returns it.
        before: the counts at the last look; updated.
    """
    found = _grown({name: info[name] for name in _LIMITS if name in info}, before)
    return [AuditRow(time.time(), "sandbox", "limit", _LIMITS[name][1], by="policy", sandbox=sandbox,
                     metadata={"limit": _LIMITS[name][0], "count": more}) for name, more in found]


def _grown(counts: Mapping[Any, Any], before: dict[str, int]) -> list[tuple[str, int]]:
    """The counts that have grown since *before*, and by how much; *before* is updated."""
    found = list[tuple[str, int]]()
    for name, count in counts.items():
        more = count - before.get(name, 0) if isinstance(name, str) and type(count) is int else 0
        if more > 0:
            before[name] = count
            found.append((name, more))
    return found


def synced_row(sandbox: str, path: str, way: str, before: FileState | None, after: FileState) -> AuditRow:
    """
    The row for a path that live sync has written.

    Args:
        sandbox: its id.
        path: of the project.
        way: "to the host" or "to the sandbox".
        before: the state that was replaced; None if the sandbox had nothing of its own there.
        after: the state that was written.
    """
    metadata = {"subject": [path], "way": way, "type": after.type, "mode": after.mode,
                "before": "" if before is None else before.sha256, "after": after.sha256}
    return AuditRow(time.time(), "filesystem", "sync", "applied", by="sync", sandbox=sandbox, metadata=metadata)


def sync_note_row(sandbox: str, path: str, note: SyncNote) -> AuditRow:
    """The row for a path that live sync hasn't written."""
    return AuditRow(time.time(), "filesystem", "sync", note.kind, "" if note.request is None else str(note.request),
                    "sync", sandbox, metadata={"subject": [path], "why": note.why})


def sync_ended_row(sandbox: str, to_host: int, to_sandbox: int, left: int, unnoted: int, trouble: str) -> AuditRow:
    """
    The row for the end of a live sync.

    Args:
        sandbox: its id.
        to_host: how many paths were written there.
        to_sandbox: how many were written there.
        left: how many changes the last pass hasn't written.
        unnoted: how many rows about paths that weren't written are missing, since there were too many.
        trouble: the error of the last pass; "" for none.
    """
    metadata = {"to_host": to_host, "to_sandbox": to_sandbox, "left": left, "unnoted": unnoted, "trouble": trouble}
    return AuditRow(time.time(), "filesystem", "sync", "failed" if left or trouble else "ended", by="sync",
                    sandbox=sandbox, metadata=metadata)
