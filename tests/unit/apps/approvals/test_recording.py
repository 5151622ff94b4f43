"""Every decision of the queue has its line in the record."""

from __future__ import annotations

import json
from pathlib import Path

from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch, endpoint, invocation, project_path
from leeward.apps.approvals.recording import record
from leeward.apps.audit.journal import Journal, read, verify
from leeward.apps.audit.record import AuditRecord, read_record


def test_every_decision_is_recorded_with_its_author(tmp_path: Path) -> None:
    clock = [100.0]
    queue, journal = ApprovalQueue(str(tmp_path / "q"), clock=lambda: clock[0]), Journal(str(tmp_path / "a"))
    record(queue, journal)
    ask = [queue.submit(NewRequest(each, "ask", sandbox="one", payload=payload)).id for each, payload in (
        (branch("main"), None), (invocation("ls"), None), (project_path("a"), b"1"), (project_path("a"), b"2"),
        (endpoint("x.datadoghq.com"), None), (endpoint("example.org"), None))]
    clock[0] += 2.5
    queue.decide(ask[:2], True, "cli")
    queue.decide([ask[3]], True, "page")
    queue.begin(ask[3])
    queue.finish(ask[3], "no disk", failed=True)
    clock[0] += 400
    queue.expire()
    queue.submit(NewRequest(branch("late"), "push"))
    queue.shut_down()
    queue.close()
    journal.close()

    rows = [line.row for line in read(str(tmp_path / "a")) if line.row]
    assert [(3, "superseded", "supersession"), (5, "denied", "rule"), (1, "approved", "cli"), (2, "approved", "cli"),
            (4, "approved", "page"), (4, "failed", "page"), (6, "expired", "expiry"), (7, "denied", "shutdown")] == [
        (int(row["id"]), row["decision"], row["by"]) for row in rows]
    assert 2.5 == rows[2]["duration"]
    assert ["main"] == rows[2]["metadata"]["subject"]
    assert "no disk" == rows[5]["metadata"]["note"]
    assert verify(str(tmp_path / "a")).is_whole


def test_a_record_that_cant_be_written_holds_no_decision_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where the folder is to be")
    queue, journal = ApprovalQueue(str(tmp_path / "q")), Journal(str(tmp_path / "a"))
    record(queue, journal)
    number = queue.submit(NewRequest(branch("main"), "push")).id

    assert "approved" == queue.decide([number], True, "cli").decided[0].status
    journal.close()
    queue.close()
    assert 1 == journal.lost
    assert journal.trouble


def test_a_row_is_no_longer_than_a_person_reads(tmp_path: Path) -> None:
    """What people decide is kept for as long as its rows have room, so how long one is isn't a sandbox's to choose."""
    queue, record_of = ApprovalQueue(str(tmp_path / "q")), AuditRecord(str(tmp_path / "a"))
    record(queue, record_of)
    for subject in (invocation(["x" * 60_000]), invocation(["y"] * 1000), invocation("echo $(" + "z" * 60_000 + ")")):
        number = queue.submit(NewRequest(subject, "run", sandbox="box", asker="a" * 200)).id
        queue.decide([number], False, "cli")
    queue.close()
    record_of.close()

    found = [line.row for line in read_record(str(tmp_path / "a")) if line.row]
    assert 3 == len(found)
    assert max(len(json.dumps(row)) for row in found) < 8000
    assert "58000 characters more" in str(found[0]["metadata"]["subject"])
    assert "800 more" in str(found[1]["metadata"]["subject"])
    assert 64 == len(found[2]["metadata"]["digest"])
