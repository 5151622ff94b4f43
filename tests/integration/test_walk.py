"""The walk of a job from a connection to its runner's pipe, as docs/architecture.md draws it."""

from __future__ import annotations

import pytest

from kit import reactors
from kit.box import Box
from kit.sessions import Wire
from kit.walks import drawn, noted
from leeward.daemon.run.execution import FrameWriter


def test_the_calls_are_those_of_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn("Operations.serve")
    walks = noted(monkeypatch, FrameWriter, "go_on", "Operations.serve")
    with Box(pool_size=1, reactor=reactors.reactor(reactors.REFERENCE)) as box, Wire(box) as wire:
        assert 0 == wire.peer().ask("execute", code=b"pass")["exit_code"]

    assert [rows] == walks
    assert 10 == len(rows)
