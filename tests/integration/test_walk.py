"""The walk of a job from a connection to its runner's pipe, as docs/architecture.md draws it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kit import reactors
from kit.box import Box
from kit.sessions import Wire
from leeward.daemon.run.execution import FrameWriter

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"

#: A row of the drawing: the room, where it is another one than in the row before, and the method.
_ROW = re.compile(r"^([a-z.]+)? +([A-Z]\w+\.\w+)  +\S", re.MULTILINE)


def test_the_calls_are_those_of_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = next(block for block in PAGE.read_text().split("```") if "Operations.serve" in block)
    drawn: list[tuple[str, str]] = []
    for room, method in _ROW.findall(drawing):
        drawn.append((room or drawn[-1][0], method))
    stacks: list[list[tuple[str, str]]] = []
    go_on = FrameWriter.go_on

    def noted(errand: FrameWriter) -> bool:
        stack, frame = [("daemon.run", "FrameWriter.go_on")], sys._getframe(1)
        while "Operations.serve" != stack[-1][1] and frame.f_back is not None:
            owner = type(frame.f_locals["self"])
            stack.append((owner.__module__.removeprefix("leeward.").rpartition(".")[0],
                          f"{owner.__name__}.{frame.f_code.co_name}"))
            frame = frame.f_back
        stacks.append(stack[::-1])
        return go_on(errand)

    monkeypatch.setattr(FrameWriter, "go_on", noted)
    with Box(pool_size=1, reactor=reactors.reactor(reactors.REFERENCE)) as box, Wire(box) as wire:
        assert 0 == wire.peer().ask("execute", code=b"pass")["exit_code"]

    assert [drawn] == stacks
    assert 10 == len(drawn)
