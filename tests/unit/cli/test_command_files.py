"""The manual pages name the commands as they are."""

from __future__ import annotations

import re

from kit.from_file import module_at


def test_every_command_and_option_has_its_place() -> None:
    made = module_at("packaging/command_files.py")
    pages = made.pages()

    assert {name for page in pages.values() for name in re.findall("LEEWARD[A-Z_]+", page)} == {
        "LEEWARD_APPROVALS_SOCKET", "LEEWARD_FLEET", "LEEWARD_HOST", "LEEWARD_SERVE_TOKENS", "LEEWARD_SOCKET"}
    assert {"leeward-exec.1", "leeward-sandbox.1", "leeward-shell.1", "leeward-cp.1", "leeward-diff.1", "leeward-top.1",
            "leeward-explain.1"} <= set(pages)
    assert '.SS "leeward sandbox new"\n' in pages["leeward-sandbox.1"]
    assert ".TP\n.B \\-\\-overlay\n" in pages["leeward-sandbox.1"]
    assert made._text(".a \\b -c") == r"\&.a \eb \-c"
