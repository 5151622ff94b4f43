"""Files that programs make say so, and one that isn't as it would be made is found."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from kit.from_file import module_at


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, for a tree with one file and one folder."""
    module = module_at("packaging/generated.py")
    maker = ModuleType("maker")
    maker.text = lambda: "text\n"  # type: ignore[attr-defined]  # no module that mypy knows
    maker.texts = lambda: {"_shell": "#compdef x\nrest\n", "b.1": "page\n"}  # type: ignore[attr-defined]  # the same
    monkeypatch.setitem(sys.modules, "maker", maker)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "WHOLE", {"a.md": "maker:text", "folder/": "maker:texts"})
    monkeypatch.setattr(module, "PARTS", {"part.md": "maker:text"})
    assert 0 == module.main([])
    return module


def test_a_whole_file_says_who_made_it(generated: ModuleType, tmp_path: Path) -> None:
    """But where the form wants another first line."""
    assert "<!-- Made by ./dev generate -->\n\ntext\n" == (tmp_path / "a.md").read_text()
    assert "text\n" == (tmp_path / "part.md").read_text()
    assert "#compdef x\n# Made by ./dev generate\nrest\n" == (tmp_path / "folder/_shell").read_text()
    assert '.\\" Made by ./dev generate\npage\n' == (tmp_path / "folder/b.1").read_text()


@pytest.mark.parametrize("path", ["a.md", "part.md", "folder/b.1", "folder/more"])
def test_a_file_that_was_changed_is_found_and_made_anew(
        path: str, generated: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == generated.main(["--check"])
    (tmp_path / path).write_text("changed")

    assert 1 == generated.main(["--check"])
    assert f"{path} isn't what ./dev generate makes\n" == capsys.readouterr().err
    assert 0 == generated.main([])
    assert 0 == generated.main(["--check"])


def test_a_file_that_is_gone_is_found(generated: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.md").unlink()

    assert 1 == generated.main(["--check"])
    assert 0 == generated.main(["a"])
    assert 0 == generated.main(["--check"])
