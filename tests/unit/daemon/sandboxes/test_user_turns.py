"""Turns of users: a few of each user at once, the others in their order."""

from __future__ import annotations

from unittest.mock import Mock

from leeward.daemon.sandboxes.user_turns import UserTurns


def test_a_user_has_a_few_at_once_and_keeps_no_other_waiting() -> None:
    soon, later = Mock(), [Mock() for _ in range(4)]
    turns = UserTurns(2, soon)
    assert [True, True, False, False] == [turns.enter(1, each) for each in later]
    assert turns.enter(2, Mock())
    turns.leave(1, later[3])
    soon.assert_not_called()
    turns.leave(1, later[0])
    soon.assert_called_once_with(later[2])
    for each in (later[1], later[2]):
        turns.leave(1, each)
    assert ({2: 1}, {}) == (turns._taken, turns._waiting)
