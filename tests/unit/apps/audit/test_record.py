"""The two chains of the record: what people decide stays, and neither goes without the other telling."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leeward.apps.audit.journal import FILE, HEAD, Journal
from leeward.apps.audit.record import DECISIONS, AuditRecord, BoundedJournal, RowSink, read_record, verify_record
from leeward.apps.audit.record_lines import AuditRow
from leeward.errors import Busy


def decided(number: int, when: float = 1.0) -> AuditRow:
    return AuditRow(when, "exec", "run", "approved", str(number), "cli", "box")


def written_by_rule(number: int, when: float = 1.0) -> AuditRow:
    return AuditRow(when, "filesystem", "write", "applied", str(number), "rule", "box", 0.1)


def record(folder: Path, *rows: AuditRow, head: Path | None = None) -> None:
    writer = AuditRecord(str(folder), None if head is None else str(head))
    for row in rows:
        writer.write(row)
    writer.close()
    assert 0 == writer.lost


def ids(folder: Path) -> list[str]:
    return [line.row["id"] for line in read_record(str(folder)) if line.row is not None]


def test_c375_cannot_have_a_persons_decisions_rotated_away_by_rows_of_a_rule(tmp_path: Path) -> None:
    """
    Rows of files that a rule lets a sandbox write aren't bounded, since each of them has reached the host. The control:
    in one chain they displace what was decided.
    """
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    control = Journal(one, rotate=100_000, kept=2)
    bounded = AuditRecord(two, rotate=100_000, kept=2)
    sinks: tuple[RowSink, RowSink] = (control, bounded)
    for sink in sinks:
        rows = BoundedJournal(sink)
        rows.write(decided(7))
        for number in range(1000, 2500):
            rows.write(written_by_rule(number))
    control.close()
    bounded.close()

    assert "7" not in ids(tmp_path / "one")
    assert "7" in ids(tmp_path / "two")
    assert "1000" not in ids(tmp_path / "two")  # the others turn over, as ever
    assert verify_record(two).is_whole
    assert not list(Path(two, DECISIONS).glob(f"{FILE}.*"))


def test_rows_are_shown_by_their_times(tmp_path: Path) -> None:
    record(tmp_path, written_by_rule(1, 10.0), decided(2, 11.0), written_by_rule(3, 12.0), decided(4, 13.0))

    assert ["1", "2", "3", "4"] == ids(tmp_path)
    assert [FILE, f"{DECISIONS}/{FILE}"] * 2 == [line.file for line in read_record(str(tmp_path))]


def test_a_record_of_one_chain_is_read_and_goes_on(tmp_path: Path) -> None:
    before = Journal(str(tmp_path))
    before.write(decided(1))
    before.close()
    assert ["1"] == ids(tmp_path)
    assert verify_record(str(tmp_path)).is_whole

    record(tmp_path, decided(2, 2.0))
    assert ["1", "2"] == ids(tmp_path)
    assert 2 == verify_record(str(tmp_path)).lines


def test_a_changed_line_of_either_is_named(tmp_path: Path) -> None:
    record(tmp_path, decided(1), written_by_rule(2))
    assert verify_record(str(tmp_path)).is_whole
    for folder in (tmp_path, tmp_path / DECISIONS):
        whole = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(whole.replace(b'"box"', b'"cox"'))
        found = verify_record(str(tmp_path))
        assert found.fault is not None
        assert str((folder / FILE).relative_to(tmp_path)) == found.fault.file
        (folder / FILE).write_bytes(whole)


@pytest.mark.parametrize("what", ["lines", "folder", "other"])
def test_c304_cannot_take_the_decisions_away(tmp_path: Path, what: str) -> None:
    """With their head; the chain of the other rows tells, since another writer has begun meanwhile."""
    own, other = tmp_path / "own", tmp_path / "other"
    record(own, decided(1), decided(2))
    record(own, decided(3))
    assert verify_record(str(own)).is_whole

    shutil.rmtree(own / DECISIONS)
    if "lines" == what:
        record(other, decided(1))
    if "other" == what:
        record(other, decided(4), decided(5), decided(6))
    if "folder" != what:
        shutil.copytree(other / DECISIONS, own / DECISIONS)

    found = verify_record(str(own))
    assert not found.is_whole
    assert {"lines": "end with line 1", "folder": "end with line 0", "other": "that differs"}[what] in found.head


def test_heads_may_lie_elsewhere(tmp_path: Path) -> None:
    own, heads = tmp_path / "own", tmp_path / "heads"
    record(own, decided(1), written_by_rule(2), head=heads)
    assert (heads / DECISIONS / HEAD).exists()
    assert verify_record(str(own), str(heads)).is_whole

    shutil.rmtree(own / DECISIONS)
    assert f"{DECISIONS}: it has a head, but no lines" == verify_record(str(own), str(heads)).head


def test_one_program_writes(tmp_path: Path) -> None:
    first = AuditRecord(str(tmp_path))
    with pytest.raises(Busy):
        AuditRecord(str(tmp_path))
    first.close()
    second = Journal(str(tmp_path / DECISIONS))
    with pytest.raises(Busy):
        AuditRecord(str(tmp_path))
    second.close()
    AuditRecord(str(tmp_path)).close()  # the first chain wasn't kept either


def test_unwritten_rows_of_both_chains_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder is to be")
    writer = AuditRecord(str(tmp_path / "file"))
    writer.write(decided(1))
    writer.write(written_by_rule(2))
    writer.close()

    assert 2 == writer.lost
    assert writer.trouble
