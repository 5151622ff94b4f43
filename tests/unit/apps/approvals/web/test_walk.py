"""The walk of an approval from the page's form to the host's file, as docs/architecture.md draws it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette

from kit.approvals_page import PageService, browser
from kit.walks import drawn, noted
from leeward.apps.approvals.carrying.carrying import TurnPool
from leeward.apps.approvals.web import api
from leeward.client.placing import NewFile


def test_the_calls_are_those_of_the_drawing(monkeypatch: pytest.MonkeyPatch, app: Starlette, service: PageService,
                                            tmp_path: Path) -> None:
    """On the event loop, then by a thread that decides, then by one that writes."""
    asked = noted(monkeypatch, api, "in_thread", "decide_form", lambda call, *_: call == service.queue.decide)
    decided = noted(monkeypatch, TurnPool, "submit", "ApprovalQueue.decide")
    written = noted(monkeypatch, NewFile, "put", "TurnPool._in_turn")
    client, csrf = browser(app)
    request = service.write("note", "approved\n")
    done = client.post(f"/queue/{request.id}/decide", data={
        "csrf": csrf, "answer": "approve", "hunks": "all", "digest": request.digest})

    assert 303 == done.status_code
    assert "approved\n" == (tmp_path / "project" / "note").read_text()
    assert [1, 1, 1] == [len(walks) for walks in (asked, decided, written)]
    assert drawn("decide_form") == [*asked[0], *decided[0], *written[0]]
