"""Files copied from sandbox to sandbox: one answer by two porters, and no descriptor that is left."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest

from leeward.daemon.sandboxes.copying import FolderCopy
from leeward.errors import LeewardError

FAILED, ENDED = LeewardError("it doesn't fit"), LeewardError("it ended")


class Ends:
    """Two sandboxes whose porters answer when the test says so."""

    def __init__(self) -> None:
        self.source, self.target = Mock(), Mock()
        self.said: list[int | LeewardError] = []

    def begin(self) -> FolderCopy:
        return FolderCopy(self.source, self.target, self.said.append)

    def answer(self, end: Mock, what: Any) -> None:
        end.carry.call_args.args[2](what, [])


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.mark.parametrize("turns", ["target source", "source target"])
def test_it_is_done_when_both_are(ends: Ends, turns: str) -> None:
    before = os.listdir("/proc/self/fd")
    ends.begin()
    assert before == os.listdir("/proc/self/fd")
    for turn in turns.split():
        assert [] == ends.said
        ends.answer(getattr(ends, turn), {"made": 3} if turn == "target" else {"ok": True})
    assert [3] == ends.said


@pytest.mark.parametrize("turns", ["target source", "source target"])
@pytest.mark.parametrize(("given", "taken", "why"), [
    ({"ok": True}, FAILED, FAILED), (ENDED, FAILED, ENDED), (ENDED, {"made": 3}, ENDED)])
def test_the_reason_is_the_givers_if_it_has_one(ends: Ends, turns: str, given: Any, taken: Any, why: LeewardError) -> None:
    ends.begin()
    for turn in turns.split():
        ends.answer(getattr(ends, turn), given if turn == "source" else taken)
    assert [why] == ends.said


def test_one_that_cannot_begin_ends_the_other(ends: Ends) -> None:
    ends.source.carry.side_effect = LeewardError("no room")
    with pytest.raises(LeewardError, match="no room"):
        ends.begin()
    ends.target.carry.return_value.cancel.assert_called_once()


def test_nobody_is_told_of_one_that_was_taken_back(ends: Ends) -> None:
    ends.begin().cancel()
    ends.answer(ends.target, {"made": 3})
    ends.answer(ends.source, {"ok": True})
    assert [] == ends.said
