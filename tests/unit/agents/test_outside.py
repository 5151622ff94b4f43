"""
What programs outside run by themselves, before and after.
"""

from __future__ import annotations

import os
from pathlib import Path

from leeward.agents import outside


def test_each_kind_of_change_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/config").write_text("[core]\n")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/settings.json").write_text("{}")
    (tmp_path / ".npmrc").write_text("x")
    (tmp_path / "main.py").write_text("x")
    before = outside.snapshot(str(tmp_path))
    assert [] == outside.changed(before, outside.snapshot(str(tmp_path)))

    (tmp_path / "main.py").write_text("y")                      # the project's own
    (tmp_path / ".git/config").write_text("[cor3]\n")           # as long as before
    (tmp_path / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (tmp_path / ".vscode/settings.json").chmod(0o755)
    (tmp_path / ".npmrc").unlink()
    (tmp_path / ".envrc").symlink_to("/etc/passwd")
    assert [".envrc", ".git/config", ".git/hooks", ".npmrc", ".vscode"] == outside.changed(
        before, outside.snapshot(str(tmp_path)))


def test_what_an_agent_left_harms_nobody_who_looks(tmp_path: Path) -> None:
    """
    FIFOs, links to devices and huge files aren't opened, or not for long.
    """
    (tmp_path / ".vscode").mkdir()
    os.mkfifo(tmp_path / ".vscode/fifo")
    (tmp_path / ".npmrc").symlink_to("/dev/zero")
    with (tmp_path / ".yarnrc").open("w") as file:
        file.truncate(1 << 40)
    for number in range(1200):
        (tmp_path / f".vscode/{number}").touch()
    assert {".vscode", ".npmrc", ".yarnrc"} == set(outside.snapshot(str(tmp_path)))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / ".idea").mkdir()
    before = outside.snapshot(str(tmp_path))
    (tmp_path / ".idea" / os.fsdecode(b"\xff")).touch()
    assert [".idea"] == outside.changed(before, outside.snapshot(str(tmp_path)))
