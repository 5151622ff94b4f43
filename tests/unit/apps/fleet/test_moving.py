"""A kernel's state on its way from one node to another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leeward.apps.fleet.moving import moved_state
from leeward.errors import SandboxOver, SnapshotFailed
from leeward.wire.replies import Reply


class Connections:
    """A node's. Its daemon answers what *answers* has by operation; an exception there is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[str]()

    async def call(self, op: str, fields: Any) -> tuple[Reply, list[int]]:
        self.asked.append(op)
        answer = self.answers.get(op, {})
        if isinstance(answer, Exception):
            raise answer
        return Reply(1, answer, "", "", []), []


FACTS = {"snapshot": "s" * 26, "size": 3, "made": 1.0, "python": "3.11", "packages": {}, "lost": []}
SOURCE = {"kernel_snapshot": FACTS, "snapshot_export": {"key": {}, "sizes": [3, 0]}, "snapshot_read": {"data": b"abc"}}
LOST = SandboxOver("node_lost", "node_lost")


def test_a_node_that_is_lost_when_all_was_read_loses_nothing():
    """As one that drains, whose kernels are moved for that."""
    source, target = Connections(**SOURCE, snapshot_remove=LOST), Connections(snapshot_import={"snapshot": "t" * 26})
    assert "t" * 26 == asyncio.run(moved_state(source, target, "a" * 26, 1))  # type: ignore[arg-type]
    assert ["snapshot_import", "snapshot_write"] == target.asked


def test_what_was_refused_says_why_whatever_is_left_then():
    source = Connections(**SOURCE)
    target = Connections(snapshot_import={"snapshot": "t" * 26}, snapshot_write=SnapshotFailed("why"), snapshot_remove=LOST)
    with pytest.raises(SnapshotFailed, match="why"):
        asyncio.run(moved_state(source, target, "a" * 26, 1))  # type: ignore[arg-type]
    assert "snapshot_remove" == source.asked[-1] == target.asked[-1]
