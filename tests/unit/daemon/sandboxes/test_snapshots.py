"""Whose a snapshot is, how much of them a user may have, and when one goes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.sandboxes.snapshots import MOST_DUMPS, MOST_OF_ALL, MOST_SNAPSHOTS, Snapshots
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import Busy, SnapshotFailed

MOST = 1000


class Desk:
    def __init__(self) -> None:
        self.reactor, self.idle = Reactor(), 60.0
        self.snapshots = Snapshots(self.reactor, lambda user: MOST * user, lambda: self.idle)

    def add(self, user: int, size: int, memory: ZygoteMemory | None = None) -> str:
        self.snapshots.admit(user, size)
        state = KernelState(os.memfd_create("x"), size, "3", {}, (), memory)
        return self.snapshots.add(user, state, size).name


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.snapshots.close()
    made.reactor.close()


def test_a_snapshot_is_its_users(desk: Desk) -> None:
    mine, theirs = desk.add(1, 10), desk.add(2, 10)
    assert [mine] == [each.name for each in desk.snapshots.of(1)]
    assert mine == desk.snapshots.get(mine, 1).name
    for call in (desk.snapshots.get, desk.snapshots.remove):
        with pytest.raises(SnapshotFailed):
            call(theirs, 1)
    desk.snapshots.remove(theirs, 2)
    with pytest.raises(SnapshotFailed):
        desk.snapshots.get(theirs, 2)


def test_bytes_are_counted_until_it_goes(desk: Desk) -> None:
    """Also those that a dump was admitted, which may be more than it takes."""
    first = desk.add(1, 600)
    with pytest.raises(Busy, match="snapshot_memory"):
        desk.snapshots.admit(1, 500)
    desk.snapshots.admit(2, 500)
    desk.snapshots.give_back(2, 500)
    desk.snapshots.remove(first, 1)
    desk.snapshots.admit(1, 1000)
    desk.snapshots.give_back(1, 1000)
    assert not desk.snapshots._bytes


def test_a_zygotes_memory_counts_once(desk: Desk) -> None:
    """For each user whose snapshots keep it."""
    fd = os.memfd_create("x")
    os.ftruncate(fd, 300)
    memory = ZygoteMemory(fd)
    names = [desk.add(1, 100, memory) for _ in range(2)]
    assert 500 == desk.snapshots._bytes[1]
    desk.snapshots.remove(names[0], 1)
    assert 400 == desk.snapshots._bytes[1]
    desk.snapshots.remove(names[1], 1)
    assert not desk.snapshots._bytes
    os.fstat(fd)
    del memory
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_there_are_so_many_at_once(desk: Desk) -> None:
    for _ in range(MOST_DUMPS):
        desk.snapshots.begin(1)
    with pytest.raises(Busy):
        desk.snapshots.begin(1)
    desk.snapshots.begin(2)
    desk.snapshots.end(1)
    desk.snapshots.begin(1)
    for _ in range(MOST_DUMPS):
        desk.snapshots.end(1)
    for _ in range(MOST_SNAPSHOTS):
        desk.add(1, 1)
    with pytest.raises(Busy):
        desk.snapshots.begin(1)
    for user in range(2, 2 + (MOST_OF_ALL - MOST_SNAPSHOTS) // 2):
        desk.add(user, 1)
        desk.add(user, 1)
    with pytest.raises(Busy, match="the daemon has"):
        desk.snapshots.begin(1000)


def test_all_users_together_leave_half_of_the_memory(desk: Desk) -> None:
    with pytest.raises(Busy, match="all users"):
        desk.snapshots.admit(1 << 40, 1 << 48)


def test_an_unused_one_goes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it was idle for long; one that was used stays."""
    now = [100.0]
    monkeypatch.setattr(desk.reactor, "now", lambda: now[0])
    old, used = desk.add(1, 10), desk.add(1, 10)
    now[0] = 150.0
    desk.snapshots.get(used, 1)
    now[0] = 165.0
    desk.snapshots._look()
    assert [used] == [each.name for each in desk.snapshots.of(1)]
    assert 10 == desk.snapshots._bytes[1]
    with pytest.raises(SnapshotFailed):
        desk.snapshots.get(old, 1)
