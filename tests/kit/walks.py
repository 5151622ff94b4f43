"""The walks that docs/architecture.md draws, and those that calls take."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kit.features import ROOT

#: A row of a drawing: the room, where it is another one than in the row before, and the function.
_ROW = re.compile(r"^([a-z.]+)? +((?:[A-Z]\w+\.)?\w+)  +\S", re.MULTILINE)

#: The most rooms of a walk, and how often it may come back to one.
MOST_ROOMS, MOST_RETURNS = 6, 2

Walk = list[tuple[str, str]]


def drawn(first: str) -> Walk:
    """The rows of the drawing that begins with this function."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = next(block for block in page.split("```") if f" {first} " in block)
    rows = Walk()
    for room, function in _ROW.findall(drawing):
        rows.append((room or rows[-1][0], function))
    entered = [room for (room, _), (before, _) in zip(rows, [("", ""), *rows], strict=False) if room != before]
    assert len(set(entered)) <= MOST_ROOMS
    assert len(entered) - len(set(entered)) <= MOST_RETURNS
    return rows


def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, first: str,
          told: Callable[..., bool] = lambda *_: True) -> list[Walk]:
    """Replace a function by itself and a note of who called it, from *first* on, where *told* says yes to its arguments."""
    walks, real = list[Walk](), getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        if told(*given):
            walk, frame = [(real.__module__, real.__qualname__)], sys._getframe(1)
            while first != walk[-1][1] and frame.f_back is not None:
                walk.append((frame.f_globals["__name__"], frame.f_code.co_qualname))
                frame = frame.f_back
            walks.append([(module.removeprefix("leeward.").rpartition(".")[0], function)
                          for module, function in reversed(walk) if module.startswith("leeward.")])
        return real(*given, **named)

    monkeypatch.setattr(owner, name, called)
    return walks
