"""Which processor the jobs of a worker have where they are pinned to one."""

from __future__ import annotations

import os

import pytest

from leeward.isolation.cgroup.entry import is_near, processors_in_turn
from leeward.spec.limits import MIB


def test_every_processor_has_its_turn_and_any_may_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 3, 6})
    orders = {processors_in_turn() for _ in range(200)}

    assert {(1, 3, 6), (3, 6, 1), (6, 1, 3)} == orders


@pytest.mark.parametrize(("peak", "near"), [(10, False), (90, False), (95, True), (100, True), (0, True)])
def test_what_was_at_its_limit(peak: int, near: bool) -> None:
    """The kernel charges in batches; 0: the host can't measure it."""
    assert near is is_near(peak * MIB, 100 * MIB)
