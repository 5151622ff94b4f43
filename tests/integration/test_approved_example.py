"""The agent of examples/approved.py: what it does in its copy reaches the host as far as a person agrees."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from kit.approvals import ServedApprovals
from kit.features import ROOT
from kit.live_daemon import LiveDaemon

pytestmark = pytest.mark.needs("extra-web")

FILE = ROOT / "examples" / "approved.py"


def test_the_host_gets_the_approved_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    approved = runpy.run_path(str(FILE))
    project = tmp_path / "project"
    project.mkdir()
    approved["example"](project)
    (tmp_path / "daemon").mkdir()

    with LiveDaemon(tmp_path / "daemon") as daemon, ServedApprovals(daemon, tmp_path) as service:
        monkeypatch.setenv("LEEWARD_SOCKET", str(daemon.socket))
        approved["main"](project, lambda question: "notes" not in question, service.connection)

    shown = capsys.readouterr().out
    assert "approve: exec python3 total.py" in shown
    assert "the command: completed 6" in shown
    assert "deciding by itself: 403" in shown
    assert "asked for: ['notes.txt', 'total.py']" in shown
    assert "deny: filesystem notes.txt" in shown
    assert ["total.py"] == [path.name for path in project.iterdir()]
    assert "return sum(numbers)\n" in (project / "total.py").read_text()
