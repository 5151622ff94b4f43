"""What documents and other languages say of the wire, from its schema: packaging/wire_files.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from leeward.wire.file_requests import FileMkdir
from leeward.wire.requests import OPERATIONS
from leeward.wire.schema import ClientRequest, field, operation

ROOT = Path(__file__).resolve().parents[3]
MADE = runpy.run_path(str(ROOT / "packaging" / "wire_files.py"))


def test_the_table_of_an_operation() -> None:
    """Fields that are alike share a row; a field that must be given has no default."""
    made = MADE["table"](FileMkdir.operation).splitlines()

    assert "| field | type | default | |" == made[0]
    assert "| `sandbox` | text | | its id |" == made[2]
    assert "| `timeout` | int or float | 30 | seconds |" in made
    assert "| `parents` | bool | false | and those that lead there |" in made
    assert any(row.startswith("| `first`, `last` | int | 0 | ") for row in
               MADE["table"](OPERATIONS["file_read"]).splitlines())


def test_the_fields_of_operations_in_c() -> None:
    """A number that isn't 0 by default may be left out though 0 is one; maps of any content are left out."""
    made = MADE["c_header"]()
    write = made.partition("struct lw_file_write {\n")[2].partition("\n};\n\n")[0]

    assert '\t{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_write, sandbox)},\n' in write
    assert '\t{"mode", LW_SOME, false, offsetof(struct lw_file_write, mode)},\n' in write
    assert "\tstruct lw_some mode; /* permission bits; " in write
    assert "\tuint64_t stdout_; /* " in made
    assert '\t{"argv", LW_TEXTS, false, offsetof(struct lw_process_run, argv)},\n' in made
    assert '\t{"limits", LW_LIMITS, false, offsetof(struct lw_execute, limits)},\n' in made
    assert "execute, policy)" not in made
    assert '\t{"files", LW_TABLE, false, offsetof(struct lw_execute_answer, files)},\n' in made
    assert '\t{"limit", LW_ANYTHING, false, offsetof(struct lw_execute_answer, limit)},\n' in made


def check(value: object, _what: str) -> int:
    assert isinstance(value, int)
    return value


def test_an_operation_that_the_page_hasnt_gets_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what its class says; and a page without marks is an error."""
    page = MADE["PAGE"].read_text()
    monkeypatch.setitem(OPERATIONS, "rest", None)  # as it was, it is afterwards

    @operation("rest", answers={"rested": "float"}, admits="at once", guests="no")
    class Rest(ClientRequest):
        """Rest for *hours*."""

        hours: int = field(check, "at most 8")

    made = MADE["page"](page)

    assert "\n### `rest`\n\nRest for `hours`.\n\n<!-- rest: made by" in made
    assert "| `hours` | int | at most 8 |\n" in made
    assert '| [`rest`](#rest) | `{"rested": float}` | at once | no | 0.1 |\n' in made
    with pytest.raises(ValueError, match="no marks of file_mkdir"):
        MADE["page"](page.replace("<!-- file_mkdir: made by", "<!-- "))
    assert Rest(1, hours=2).hours == 2
