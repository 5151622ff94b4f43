"""What a service notes about its sandboxes for the next one."""

from __future__ import annotations

from pathlib import Path

from leeward.approvals.bridge.box_notes import BoxNotes


def test_a_note_is_read_by_the_next_service_until_it_is_removed(tmp_path: Path) -> None:
    """A file that is no note is left out."""
    notes = BoxNotes(str(tmp_path))
    assert {} == notes.all()
    notes.remove("one")
    notes.write("one", {"project": "/p"})
    notes.write("two", {"project": "/q", "left": False})
    notes.write("two", {"project": "/q", "left": True})
    (tmp_path / "boxes/torn.json").write_text('{"project":')
    assert {"one": {"project": "/p"}, "two": {"project": "/q", "left": True}} == BoxNotes(str(tmp_path)).all()
    notes.remove("one")
    assert ["two"] == [*BoxNotes(str(tmp_path)).all()]
    assert 0o700 == (tmp_path / "boxes").stat().st_mode & 0o777
