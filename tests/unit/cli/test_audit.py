"""`leeward audit`: a record as it is shown, and whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from leeward.apps.audit.journal import FILE, Journal, default_folder
from leeward.apps.audit.record_lines import AuditRow
from leeward_cli.full import app, cli


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of this user's, with six rows."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = default_folder({"XDG_STATE_HOME": str(tmp_path)})
    writer = Journal(folder)
    for number in range(6):
        writer.write(AuditRow(number * 1000.0, "exec", "run", "denied", str(number), "cli", f"box{number % 2}", 1.0,
                              {"subject": ["ls\x1b[2J\u202e"], "note": ""}))
    writer.close()
    return Path(folder) / FILE


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["audit", *arguments], standalone_mode=False, catch_exceptions=False)
    return result.stdout


def test_the_newest_is_shown_first_and_escaped(record: Path) -> None:
    lines = said("show").splitlines()

    assert [f"request {number}" in line for number, line in zip(range(5, -1, -1), lines, strict=True)] == [True] * 6
    assert all(line.isprintable() for line in lines)
    assert "denied  cli  exec  run" in lines[0]
    assert 2 == len(said("show", "--limit", "2").splitlines())
    rows = said("show", "--sandbox", "box1", "--json").splitlines()
    assert ["5", "3", "1"] == [json.loads(line)["id"] for line in rows]


def test_a_sandbox_is_named_by_the_beginning_of_its_id(record: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 1 == app(["audit", "show", "--sandbox", "bo"])
    assert "'bo' fits several sandboxes: 'box0', 'box1'" in capfd.readouterr().err
    assert 0 == app(["audit", "show", "--sandbox", "none"])


def test_a_bad_line_is_shown_as_bad(record: Path) -> None:
    lines = record.read_bytes().splitlines(keepends=True)
    lines[2] = b"\x1b[2Junk\n"
    record.write_bytes(b"".join(lines))

    shown = said("show").splitlines()
    assert 6 == len(shown)
    assert "BAD line 3, in audit.jsonl: it isn't a line of a record" == shown[3]
    assert shown[2].startswith("BAD line 4: ")
    assert "bad" in json.loads(said("show", "--json").splitlines()[3])


def test_verify_names_the_first_line_that_doesnt_fit(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == app(["audit", "verify"])
    assert "6 lines, and each follows the one before\n" == capsys.readouterr().out
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join(lines[:3] + lines[4:]))
    assert 1 == app(["audit", "verify", "--folder", str(record.parent)])
    assert "line 4, in audit.jsonl: its number is 5, but line 4 should follow\n" == capsys.readouterr().out
    record.write_bytes(b"".join(lines[:4]))
    assert 1 == app(["audit", "verify"])
    assert "the head names line 6, but the record ends with line 4\n" == capsys.readouterr().out


def test_without_a_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 != app(["audit", "show", "--folder", str(tmp_path / "none")])
    said = capfd.readouterr().err
    assert f"there is no record in '{tmp_path}/none': `leeward approvals serve` writes it" in said
    assert default_folder({"HOME": "/h", "XDG_STATE_HOME": "not/absolute"}) == "/h/.local/state/leeward/audit"


def test_mend_takes_a_half_written_line_out(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `verify` says before that it does."""
    assert 0 == app(["audit", "mend"])
    assert "no half-written line" in capsys.readouterr().out
    with record.open("ab") as file:
        file.write(b'{"number": 7')
    assert 1 == app(["audit", "verify"])
    assert "`leeward audit mend` takes it out" in capsys.readouterr().out
    assert 0 == app(["audit", "mend"])
    assert "1 half-written lines were taken out" in capsys.readouterr().out
    assert 0 == app(["audit", "verify"])
