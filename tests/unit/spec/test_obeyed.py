"""Paths that programs on the host obey by themselves."""

from __future__ import annotations

import pytest

from leeward.spec.obeyed import is_obeyed


@pytest.mark.parametrize(("path", "obeyed"), [
    (".envrc", True), ("sub/.ENVRC", True), (".vscode/tasks.json", True), ("a/.cargo/config.toml", True),
    ("claude.md", True), (".claude/settings.json", True), ("b/x.code-workspace", True), (".config/mise/conf.d/x", True),
    ("code.py", False), (".cargo/other", False), ("config.toml", False), ("my.envrc.txt", False), ("x.npmrc", False),
    (".claude/notes", False),
])
def test_a_path_is_obeyed(path: str, obeyed: bool) -> None:
    assert obeyed == is_obeyed(path)
