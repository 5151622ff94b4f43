"""The record: every way to change it is found, and nothing that is wrong with the disk holds anybody up."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.waiting import poll_until
from leeward.apps.audit import journal
from leeward.apps.audit.journal import FILE, HEAD, TORN, Journal, is_torn, mend, read, verify
from leeward.apps.audit.record_lines import BEGINNING, AuditRow, read_line, written
from leeward.errors import BadRequest, Busy


def row(number: int, **metadata: object) -> AuditRow:
    return AuditRow(1000.0 + number, "network", "connect", "denied", id=str(number), by="rule", metadata=metadata)


def record(folder: Path, count: int = 10, **options: int) -> Path:
    """One of *count* rows."""
    writer = Journal(str(folder), **options)
    for number in range(count):
        assert writer.write(row(number))
    writer.close()
    assert (0, "") == (writer.lost, writer.trouble)
    return folder / FILE


def test_written_rows_are_read_back_whole(tmp_path: Path) -> None:
    path = record(tmp_path / "a")

    found = list(read(str(path.parent)))
    assert [str(number) for number in range(10)] == [line.row["id"] for line in found if line.row]
    assert [*range(1, 11)] == [line.number for line in found]
    assert {""} == {line.fault for line in found}
    assert verify(str(path.parent)).is_whole
    first = json.loads(path.read_text().splitlines()[0])
    assert BEGINNING == first["before"]
    assert {"time", "id", "category", "action", "decision", "by", "sandbox", "duration", "metadata",
            "hash"} <= set(first)
    assert 0o600 == path.stat().st_mode & 0o777


def test_another_writer_goes_on_behind_the_last_line(tmp_path: Path) -> None:
    for _ in range(3):
        record(tmp_path, 4)

    assert verify(str(tmp_path)).is_whole
    assert 12 == verify(str(tmp_path)).lines


def test_one_program_writes(tmp_path: Path) -> None:
    writer = Journal(str(tmp_path))
    with pytest.raises(Busy):
        Journal(str(tmp_path))
    writer.close()


def flip(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b"denied", b"allowed")


def forge(lines: list[bytes]) -> None:
    """With a hash of its own that is right."""
    lines[4] = written(row(99), 5, json.loads(lines[3])["hash"])[0]


def drop(lines: list[bytes]) -> None:
    del lines[4]


def swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def double(lines: list[bytes]) -> None:
    lines.insert(4, lines[3])


def junk(lines: list[bytes]) -> None:
    lines.insert(4, b"\xff{]\n")


def huge(lines: list[bytes]) -> None:
    lines.insert(4, b"x" * (1 << 20) + b"\n")


def nested(lines: list[bytes]) -> None:
    lines.insert(4, b"[" * 100_000 + b"\n")


@pytest.mark.parametrize(("change", "where"), [(flip, 5), (forge, 6), (drop, 5), (swap, 5), (double, 5), (junk, 5),
                                               (huge, 5), (nested, 5)])
def test_c304_cannot_change_a_line(tmp_path: Path, change: Callable[[list[bytes]], None],
                                                 where: int) -> None:
    path = record(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))

    found = verify(str(tmp_path))
    assert found.fault is not None
    assert where == found.fault.number
    assert found.fault.fault
    # A bad one is skipped, and the others are shown.
    assert len([line for line in read(str(tmp_path)) if line.row is not None]) >= 9


@pytest.mark.parametrize("left", range(10))
def test_c304_cannot_cut_the_record_off(tmp_path: Path, left: int) -> None:
    path = record(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:left]))

    found = verify(str(tmp_path))
    assert not found.is_whole
    assert f"ends with line {left}" in found.head
    # And it stays to be seen when another writer has gone on.
    record(tmp_path, 3)
    again = verify(str(tmp_path))
    assert not again.is_whole
    assert left == 0 or (again.fault is not None and left + 1 == again.fault.number)
    assert left > 0 or "begins with line 11" in again.head


def test_c304_cannot_make_the_record_anew(tmp_path: Path) -> None:
    record(tmp_path / "real", 10)
    other = Journal(str(tmp_path / "other"))
    for number in range(12):
        other.write(row(number, forged=True))
    other.close()
    (tmp_path / "real" / FILE).write_bytes((tmp_path / "other" / FILE).read_bytes())

    assert "differs" in verify(str(tmp_path / "real")).head
    record(tmp_path / "real", 1)
    assert not verify(str(tmp_path / "real")).is_whole


def test_the_head_may_lie_elsewhere(tmp_path: Path) -> None:
    writer = Journal(str(tmp_path / "a"), str(tmp_path / "b"))
    writer.write(row(1))
    writer.close()

    assert not (tmp_path / "a" / HEAD).exists()
    assert verify(str(tmp_path / "a"), str(tmp_path / "b")).is_whole
    assert "no head" in verify(str(tmp_path / "a")).head
    (tmp_path / "b" / HEAD).write_text("x")
    assert "can't be read" in verify(str(tmp_path / "a"), str(tmp_path / "b")).head


def test_a_head_behind_the_record_is_no_fault(tmp_path: Path) -> None:
    """A program that was killed between a line and its head."""
    record(tmp_path, 3)
    head = (tmp_path / HEAD).read_bytes()
    record(tmp_path, 2)
    (tmp_path / HEAD).write_bytes(head)

    assert verify(str(tmp_path)).is_whole
    record(tmp_path, 2)
    assert verify(str(tmp_path)).is_whole


def test_a_half_written_line_is_one_bad_line(tmp_path: Path) -> None:
    path = record(tmp_path, 3)
    with open(path, "ab") as file:
        file.write(b'{"number": 4, "ti')
    record(tmp_path, 2)

    lines = list(read(str(tmp_path)))
    assert ["", "", "", "it isn't a line of a record", "", ""] == [line.fault for line in lines]
    assert 4 == (verify(str(tmp_path)).fault or lines[0]).number


def test_rotation_keeps_the_chain(tmp_path: Path) -> None:
    record(tmp_path, 40, rotate=2000, kept=100)
    names = {name for name in os.listdir(tmp_path) if name.startswith(FILE)}

    assert len(names) > 3
    assert verify(str(tmp_path)).is_whole
    assert [str(number) for number in range(40)] == [line.row["id"] for line in read(str(tmp_path)) if line.row]
    (tmp_path / f"{FILE}.2").unlink()
    assert verify(str(tmp_path)).fault is not None


def test_the_oldest_files_go(tmp_path: Path) -> None:
    record(tmp_path, 40, rotate=1000, kept=3)

    assert {FILE, f"{FILE}.1", f"{FILE}.2"} == {name for name in os.listdir(tmp_path) if name.startswith(FILE)}
    assert verify(str(tmp_path)).is_whole
    (tmp_path / f"{FILE}.2").unlink()
    assert "begins with" in verify(str(tmp_path)).head
    assert 40 == [line.row["number"] for line in read(str(tmp_path)) if line.row][-1]


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("step", ["unlink", "rename", "open"])
def test_an_end_while_files_go_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, step: str) -> None:
    """The head says before which line nothing is missing, and is written before the oldest file goes."""
    record(tmp_path, 30, rotate=3000, kept=kept)
    usual, child = getattr(os, step), os.fork()
    if not child:
        def ends(path: str, *rest: object) -> object:
            found = usual(path, *rest)
            if os.path.basename(path).startswith(FILE):
                os._exit(0)
            return found

        monkeypatch.setattr(os, step, ends)
        record(tmp_path, 30, rotate=3000, kept=kept)
        os._exit(1)
    os.waitpid(child, 0)
    record(tmp_path, 3)
    assert verify(str(tmp_path)).is_whole


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "open"])
def test_a_disk_that_refuses_costs_lines_that_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          call: str, why: int) -> None:
    """
    A full one, or one that can't be written any more; also the disk of the first line. Whoever writes doesn't wait and
    isn't told; the next line that can be written says how many are missing.
    """
    real, full = getattr(os, call), threading.Event()

    def refuse(*arguments: object, **named: object) -> object:
        if full.is_set() and "audit" == threading.current_thread().name:
            raise OSError(why, os.strerror(why))
        return real(*arguments, **named)

    monkeypatch.setattr(journal.os, call, refuse)
    writer, before = Journal(str(tmp_path)), 2 if "write" == call else 0
    for number in range(before):
        writer.write(row(number))
    wait_for(writer, before, 0)
    full.set()
    for number in range(5):
        assert writer.write(row(10 + number))
    wait_for(writer, before, 5)
    assert (5, os.strerror(why).lower()) == (writer.lost, writer.trouble)
    full.clear()
    writer.write(row(20))
    writer.close()

    rows = [line.row for line in read(str(tmp_path)) if line.row]
    assert ["failed", "denied"] == [each["decision"] for each in rows[-2:]]
    assert {"lost": 5} == rows[-2]["metadata"]
    assert verify(str(tmp_path)).is_whole
    assert "" == writer.trouble


def wait_for(writer: Journal, number: int, lost: int) -> None:
    """Until the writer has dealt with that many rows."""
    poll_until(lambda: writer._rows.empty() and writer._number + writer.lost >= number + lost, "the writer's thread")


def test_a_partial_write_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, short = os.write, [False]

    def write(fd: int, data: bytes) -> int:
        if short[0] and len(data) > 100:
            short[0] = False
            return real(fd, data[:50])
        return real(fd, data)

    monkeypatch.setattr(journal.os, "write", write)
    writer = Journal(str(tmp_path))
    writer.write(row(0))
    wait_for(writer, 1, 0)
    short[0] = True
    writer.write(row(1))
    wait_for(writer, 1, 1)
    writer.write(row(2))
    writer.close()

    assert 1 == writer.lost
    assert verify(str(tmp_path)).is_whole


def test_rows_that_come_too_fast_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk stands still nobody waits."""
    monkeypatch.setattr(journal, "MOST_WAITING", 5)
    stands, begun, real = threading.Event(), threading.Event(), os.write

    def write(fd: int, data: bytes) -> int:
        begun.set()
        stands.wait()
        return real(fd, data)

    monkeypatch.setattr(journal.os, "write", write)
    writer = Journal(str(tmp_path))
    writer.write(row(0))
    begun.wait()
    assert [True] * 5 + [False] * 4 == [writer.write(row(number)) for number in range(9)]
    assert 4 == writer.lost
    stands.set()
    writer.close()

    assert {"lost": 4} in [line.row["metadata"] for line in read(str(tmp_path)) if line.row]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.floats(), st.binary(max_size=3), st.none()),
                       max_size=3), st.text(max_size=200))
def test_every_written_row_is_one_line(metadata: dict[str, object], text: str) -> None:
    """Hostile texts, numbers that JSON doesn't have, and values that JSON can't represent."""
    line, digest = written(AuditRow(1.0, text, text, text, text, text, text, 0.5, metadata), 7, BEGINNING)
    found = read_line(line, 1)

    assert line.isascii()
    assert 1 == line.count(b"\n")
    assert ("", digest) == (found.fault, found.hash)
    assert found.row is not None
    assert text[:100] == found.row["by"]


def test_metadata_that_is_too_long_is_left_out() -> None:
    line, _ = written(row(1, text="x" * (1 << 20)), 1, BEGINNING)

    assert "left out" in (read_line(line, 1).row or {})["metadata"]


def test_a_head_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def refused(fd: int, data: bytes) -> int:
        if not data.startswith(b"{") and "audit" == threading.current_thread().name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(journal.os, "write", refused)
    writer = Journal(str(tmp_path / "record"), str(tmp_path / "head"))
    for number in range(3):
        writer.write(row(number))
    writer.close()

    assert (0, "no space left on device") == (writer.lost, writer.trouble)
    assert [] == list((tmp_path / "head").iterdir())


@pytest.mark.parametrize("cut", [2, 40, 150])
def test_a_half_written_line_is_mended(tmp_path: Path, cut: int) -> None:
    """At the end, or with lines that a writer has put behind it; and the mending is recorded."""
    for then in (0, 3):
        folder = tmp_path / f"{cut}-{then}"
        path = record(folder)
        torn = written(row(99), 11, "0" * 64)[0][:-cut]
        with path.open("ab") as file:
            file.write(torn)
        assert is_torn(str(folder))
        if then:
            record(folder, then)
            assert not is_torn(str(folder))
        assert not verify(str(folder)).is_whole
        assert 1 == mend(str(folder))

        found = verify(str(folder))
        assert (True, 11 + then) == (found.is_whole, found.lines)
        last = list(read(str(folder)))[-1].row
        assert last is not None
        assert ("mend", "mended", 1) == (last["action"], last["decision"], last["metadata"]["lines"])
        assert torn == (folder / TORN).read_bytes().removesuffix(b"\n")
        assert 0o600 == (folder / TORN).stat().st_mode & 0o777
        assert 0 == mend(str(folder))


def test_no_other_fault_is_mended(tmp_path: Path) -> None:
    """A changed line, one that is missing, the last line that was cut after the head named it; nothing is written."""
    for number, change in enumerate((
            lambda lines: [*lines[:3], lines[3].replace(b"denied", b"allowed"), *lines[4:]],
            lambda lines: [*lines[:3], *lines[4:]], lambda lines: [*lines[:-1], lines[-1][:50]],
            lambda lines: [*lines[:3], lines[3][:50] + b"\n", *lines[4:]])):
        folder = tmp_path / str(number)
        path = record(folder)
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
        before = path.read_bytes()
        with pytest.raises(BadRequest):
            mend(str(folder))
        assert before == path.read_bytes()
        assert not (folder / TORN).exists()
