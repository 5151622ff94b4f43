"""
What of the queue goes into the record.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import json

from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest, subject_text
from leeward.audit.journal import Journal
from leeward.audit.rows import AuditRow


def audit_row(request: ApprovalRequest) -> AuditRow | None:
    """
    The row for what became of *request*: each decision, and each order that was carried out or wasn't; None for one
    that is pending.
    """
    if "pending" == request.status:
        return None
    done = request.stage in ("applied", "failed")
    metadata = {"subject": json.loads(subject_text(request.subject))[1:], "digest": request.digest,
                "rule": request.rule, "repeats": request.repeats, "note": request.note, "asker": request.asker}
    return AuditRow(request.decided or request.created, request.category, request.action,
                    request.stage if done else request.status, str(request.id), request.decided_by, request.sandbox,
                    None if request.decided is None else request.decided - request.created, metadata)


def record(queue: ApprovalQueue, journal: Journal) -> None:
    """
    Have every decision of *queue* written to *journal*. A journal that can't be written holds no decision up.
    """
    def told(request: ApprovalRequest) -> None:
        row = audit_row(request)
        if row is not None:
            journal.write(row)

    queue.subscribe(told)
