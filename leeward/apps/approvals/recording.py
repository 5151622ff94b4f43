"""The record: a row for each decision about a request, and the newest rows of all."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import subject_text
from leeward.apps.audit.record import RowSink, read_record
from leeward.apps.audit.record_lines import AuditRow, ReadLine
from leeward.errors import BadRequest, reason_of

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
    Rows of the record, for JSON, the newest first, of one sandbox or by "" of all. A line that isn't intact has `bad`, the
    reason, and `line`, its number. BadRequest if the record can't be read.
    """
    try:
        lines = (line for line in read_record(folder)
                 if not sandbox or line.row is None or line.row.get("sandbox") == sandbox)
        found: deque[ReadLine] = deque(lines, maxlen=max(1, min(limit, 10_000)))
    except OSError as error:
        raise BadRequest(f"the record: {reason_of(error)}") from None
    return [{**(line.row or {}), **({"bad": line.fault, "line": line.number} if line.fault else {})}
            for line in reversed(found)]
