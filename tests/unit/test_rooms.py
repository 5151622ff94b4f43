"""The rooms of the tree: each package says where it runs."""

from __future__ import annotations

import pytest

from kit.features import ROOT
from kit.from_file import module_at

drawing = module_at("docs/draw_rooms.py")


@pytest.mark.parametrize("name", [name for name in drawing.rooms() if "leeward" != name])
def test_a_package_says_where_it_runs(name: str):
    assert drawing.runs_in(drawing.rooms()[name])


def test_the_twelve_rooms():
    """What `ls leeward` shows: docs/decisions/0173."""
    files = [path.relative_to(ROOT / "leeward") for path in (ROOT / "leeward").glob("*/**/*") if path.is_file()]
    assert {path.parts[0] for path in files if "__pycache__" not in path.parts} == {
        "_native", "apps", "base", "client", "clients", "crossing", "daemon", "egress", "inside", "isolation", "spec", "wire"}


def test_a_package_without_the_words_is_found(tmp_path):
    (tmp_path / "__init__.py").write_text('"""\nA room.\n"""\n')

    assert not drawing.runs_in(tmp_path)


def test_an_import_is_attributed_to_its_package(tmp_path):
    (tmp_path / "one.py").write_text("from leeward.daemon.pool.line import Line\n"
                                     "import leeward.errors\n"
                                     "from leeward.wire import job\n")

    assert ["leeward.daemon.pool", "leeward.wire"] == drawing.imports("leeward.x", tmp_path, drawing.rooms())
