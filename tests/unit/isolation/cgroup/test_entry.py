"""Which processor the jobs of a worker have where they are pinned to one."""

from __future__ import annotations

import os

import pytest

from leeward.isolation.cgroup.entry import processors_in_turn


def test_every_processor_has_its_turn_and_any_may_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 3, 6})
    orders = {processors_in_turn() for _ in range(200)}

    assert {(1, 3, 6), (3, 6, 1), (6, 1, 3)} == orders
