"""How many rows one sandbox makes: those beyond are counted, and what people decide is never among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leeward.apps.audit.journal import Journal, read
from leeward.apps.audit.record import BURST, EACH_MINUTE, MOST_KINDS, MOST_SANDBOXES, BoundedJournal
from leeward.apps.audit.record_lines import AuditRow


class Seconds:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def denied(sandbox: str = "box", action: str = "egress", by: str = "policy") -> AuditRow:
    return AuditRow(1.0, "network", action, "denied", by=by, sandbox=sandbox)


def rows(folder: Path) -> list[Any]:
    return [line.row for line in read(str(folder))]


def test_c360_cannot_have_decisions_rotated_away_by_a_flood(tmp_path: Path) -> None:
    """A sandbox makes more rows than the record keeps. The control: without the bound what was decided before is gone."""
    decision = AuditRow(1.0, "exec", "run", "approved", "7", "cli", "box")
    for name, is_bounded in (("control", False), ("bounded", True)):
        journal = Journal(str(tmp_path / name), rotate=200_000, kept=3)
        bounded = BoundedJournal(journal, Seconds())
        bounded.write(decision)
        for _ in range(6000):
            (bounded if is_bounded else journal).write(denied())
        bounded.write(AuditRow(2.0, "exec", "run", "applied", "7", "cli", "box"))
        bounded.end("box")
        journal.close()
        found = [row["decision"] for row in rows(tmp_path / name) if row["id"] == "7"]
        assert (["approved", "applied"] if is_bounded else ["applied"]) == found
        assert 0 == journal.lost
    last = rows(tmp_path / "bounded")[-1]
    assert ("audit", "bound", {"rows": {"network egress denied": 6000 - BURST}}) == (
        last["category"], last["action"], last["metadata"])


def test_rows_come_back_with_time_and_each_sandbox_has_its_own(tmp_path: Path) -> None:
    clock, journal = Seconds(), Journal(str(tmp_path))
    bounded = BoundedJournal(journal, clock)
    assert BURST == sum(bounded.write(denied()) for _ in range(BURST + 5))
    assert bounded.write(denied("other"))
    clock.now = 60.0
    assert EACH_MINUTE == sum(bounded.write(denied()) for _ in range(EACH_MINUTE + 5))
    for row in (AuditRow(1.0, "filesystem", "sync", "applied", by="sync", sandbox="box"),
                AuditRow(1.0, "filesystem", "write", "applied", "1", "rule", "box"),
                AuditRow(1.0, "sandbox", "limit", "ended", sandbox="box"), AuditRow(1.0, "service", "serve", "ended")):
        assert bounded.write(row)
    journal.close()
    assert [{"rows": {"network egress denied": 5}}] == [row["metadata"] for row in rows(tmp_path)
                                                       if "audit" == row["category"]]


def test_counted_rows_are_bounded_as_well(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    bounded = BoundedJournal(journal, Seconds())
    for _ in range(BURST):
        bounded.write(denied())
    for number in range(500):
        bounded.write(denied(action=f"kind{number}"))
    for number in range(MOST_SANDBOXES + 10):
        bounded.write(denied(f"box{number}"))
    journal.close()
    told, = [row["metadata"]["rows"] for row in rows(tmp_path) if "audit" == row["category"]]
    assert (MOST_KINDS + 1, 500) == (len(told), sum(told.values()))
