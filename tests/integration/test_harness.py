"""The harness for a model that docs/agents.md shows: it survives what its scripted model does."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon

FILE = ROOT / "examples" / "harness.py"


def test_a_loop_over_a_scripted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, a mistake, an answer, a file, no network, a memory limit, the lost state, and on."""
    harness = runpy.run_path(str(FILE))
    scripted: Callable[[list[str]], Any] = harness["scripted"]()
    texts: list[str] = []

    def model(read: list[str]) -> Any:
        texts[:] = read
        return scripted(read)

    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, daemon.client() as client:
        answer, files = harness["work"](model, client)

    nothing, mistake, total, made, refused, ended, lost, again = texts
    assert "[no output]" == nothing
    assert "NameError: name 'row' is not defined" in mistake
    assert "30\n" == total
    assert "[files: rows.json (116 bytes)]" == made
    assert "gaierror" in refused or "PermissionError" in refused
    assert ended  # by its memory limit, or refused the memory where no controller counts it
    assert lost.startswith("The process had ended") or "bytearray" in lost
    assert "again 42\n" == again
    assert "done after 8 calls; the last one printed 'again 42\\n'" == answer
    assert [b'[{"n": 0'] == [content[:8] for content in files.values()]


def test_the_harness_has_about_a_hundred_lines() -> None:
    """As its page says."""
    assert len(FILE.read_text().splitlines()) <= 130
