"""What bench/configurations.py compares, and what it prints."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bench import configurations


def test_one_tree_has_both_switches_off_and_nothing_else_is_changed() -> None:
    with configurations.trees() as (off, on):
        assert 0o755 == off.parent.stat().st_mode & 0o777
        differ = {str(path.relative_to(on)) for path in on.rglob("*.py")
                  if path.read_text() != (off / path.relative_to(on)).read_text()}
        assert "\nTAKE = False\n" in (off / "leeward/crossing/snapshot.py").read_text()
        assert "\nCOPY_BY_CLONE = False\n" in (off / "leeward/crossing/keeper.py").read_text()
        folder = off.parent

    assert {"leeward/crossing/snapshot.py", "leeward/crossing/keeper.py"} == differ
    assert not folder.exists()


def test_a_switch_that_was_renamed_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trees that are the same would be measured otherwise."""
    monkeypatch.setattr(configurations, "_SWITCHES", {"leeward/crossing/keeper.py": "NO_SUCH = True"})

    with pytest.raises(SystemExit, match="has no line"), configurations.trees():
        pass


def test_an_environment_is_a_name_a_folder_and_modules(tmp_path: Path) -> None:
    found = configurations.environment("numbers=/srv/numbers,numpy,pandas", tmp_path / "1.toml")

    assert ("numbers", ("--config", str(tmp_path / "1.toml"))) == (found.name, found.options)
    assert {"python_env": "/srv/numbers", "preload": ["numpy", "pandas"]} == tomllib.loads(
        (tmp_path / "1.toml").read_text())


def test_a_row_has_a_cell_for_each_part_and_count() -> None:
    """What no group counts, and what has too few rounds for an interval, stays empty."""
    found = {"configuration": "root", "ratios": {"daemon": {"ratio": 0.9, "interval": [0.88, 0.914]},
                                                 "both": {"ratio": 0.8, "interval": []}},
             "off": {"faults": 270.4, "calls": 210.0}, "on": {"faults": 133.0, "calls": 212.6}}

    assert "| root | 0.90, *0.88 to 0.91* |  | 0.80 | 270, 133 | 210, 213 |" == configurations.text(found)
