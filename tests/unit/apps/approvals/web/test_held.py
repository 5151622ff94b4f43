"""Decisions that can be taken back for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.waiting import poll_until
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.apps.approvals.web import held as module
from leeward.apps.approvals.web.held import HeldDecisions
from leeward.errors import Busy


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    made = ApprovalQueue(str(tmp_path))
    for name in "abc":
        made.submit(NewRequest(branch(name), "push"))
    yield made
    made.close()


def statuses(queue: ApprovalQueue) -> list[str]:
    return [each.status for each in reversed(queue.recent())]


def test_a_decision_is_made_when_its_time_is_over(queue: ApprovalQueue) -> None:
    held = HeldDecisions(queue, 0.01)
    held.hold([1, 3], True, "page")
    poll_until(lambda: ["approved", "pending", "approved"] == statuses(queue), "the time is over")
    assert [] == held.all()


def test_what_is_taken_back_is_not_decided(queue: ApprovalQueue) -> None:
    held = HeldDecisions(queue, 60.0)
    made = held.hold([1, 2], False, "page")
    assert [made] == held.all()
    assert made == held.undo(made.key)
    assert None is held.undo(made.key)
    held._make(made)  # the timer ends at the same moment
    assert ["pending"] * 3 == statuses(queue)


def test_nothing_is_decided_after_the_end(queue: ApprovalQueue) -> None:
    held = HeldDecisions(queue, 60.0)
    made = held.hold([1], True, "page")
    held.close()
    held._make(made)
    assert ["pending"] * 3 == statuses(queue)
    with pytest.raises(Busy):
        held.hold([1], True, "page")


def test_there_is_a_bound(queue: ApprovalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 1)
    held = HeldDecisions(queue, 60.0)
    held.hold([1], True, "page")
    with pytest.raises(Busy):
        held.hold([2], True, "page")
    held.close()
