"""The agent of examples/agent.py: it mends a project in a copy, and the host gets what a person agrees to."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon

FILE = ROOT / "examples" / "agent.py"


@pytest.mark.parametrize("agrees", [True, False])
def test_the_example_mends_a_copy_and_applies_the_approved_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   agrees: bool,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    agent = runpy.run_path(str(FILE))
    project = tmp_path / "project"
    project.mkdir()
    agent["example"](project)
    before = {path.name: path.read_text() for path in project.iterdir()}
    asked: list[str] = []

    def answers(question: str) -> bool:
        asked.append(question)
        return agrees

    with LiveDaemon(tmp_path / "daemon") as daemon:
        monkeypatch.setenv("LEEWARD_SOCKET", str(daemon.socket))
        agent["main"](project, answers)

    shown = capsys.readouterr().out
    after = {path.name: path.read_text() for path in project.iterdir()}
    assert "The tests say: OK" in shown
    assert "modified  total.py" in shown
    assert "created   NOTES.md" in shown
    assert len(asked) == 1
    if agrees:
        assert "range(1, n + 1)" in after.pop("total.py")
        assert "total(n) counts n itself now.\n" == after.pop("NOTES.md")
        assert {"test_total.py"} == set(after)
    else:
        assert before == after


def test_the_example_has_about_a_hundred_lines() -> None:
    assert len(FILE.read_text().splitlines()) <= 130
