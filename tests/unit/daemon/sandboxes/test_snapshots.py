"""Whose a snapshot is, how much of them a user may have, and when one goes."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.reference_reactor import ReferenceReactor
from leeward.client.snapshot_files import facts_of
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.sandboxes.importing import Arriving, check, key
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.snapshots import DUMPS_S, MOST_DUMPS, MOST_OF_ALL, MOST_SNAPSHOTS, Snapshots
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import BadRequest, Busy, SnapshotFailed
from leeward.wire.job_frames import STATES

MOST = 1000
FACTS = facts_of("3.11", {"numpy": "2"}, ["a socket"])


class Desk:
    def __init__(self) -> None:
        self.reactor, self.idle = ReferenceReactor(), 60.0
        self.uses = LastUses(self.reactor)
        self.snapshots = Snapshots(self.reactor, self.uses, lambda user: MOST * user, lambda: self.idle, self.leaves)
        self.guests = False

    def leaves(self, _user: int, own: int, left: int) -> bool:
        return not self.guests or own <= left

    def add(self, user: int, size: int, memory: ZygoteMemory | None = None) -> str:
        return self.snapshots.add(user, KernelState(self.snapshots.new_file(user, size), size, "3", {}, (), memory)).name

    def bytes_of(self, user: int) -> int:
        self.uses.wait(0.0)
        return self.snapshots._bytes()[user]

    def fits(self, user: int, size: int) -> None:
        os.close(self.snapshots.new_file(user, size))

    def bring(self, user: int, state: int, memory: int = 0) -> str:
        return self.snapshots.begin_import(user, Arriving((state, memory), FACTS, 7.5))


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.snapshots.close()
    made.uses.close()
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
        desk.fits(1, 500)
    desk.fits(2, 500)
    desk.snapshots.remove(first, 1)
    desk.fits(1, 1000)
    assert 0 == desk.bytes_of(1) == desk.bytes_of(2)


def _kept_by_a_mapping(fd: int) -> Callable[[], None]:
    mapped = mmap.mmap(fd, 512, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    return mapped.close


def _kept_by_a_path(fd: int) -> Callable[[], None]:
    return partial(os.close, os.open(f"/proc/self/fd/{fd}", os.O_PATH))


@pytest.mark.parametrize("keep", [_kept_by_a_mapping, _kept_by_a_path, lambda fd: partial(os.close, os.dup(fd))])
@pytest.mark.parametrize("what", ["snapshot", "dump", "import"])
def test_bytes_are_counted_while_somebody_has_them(desk: Desk, keep: Callable[[int], Callable[[], None]], what: str) -> None:
    """A copy of a snapshot that was removed, or a process that has kept what it got for a dump."""
    name = desk.bring(1, 0, 700) if what == "import" else ""
    if what == "import":
        fd = desk.snapshots._arriving[name][1]._files[1]
    else:
        fd = desk.snapshots.new_file(1, 700)
        os.ftruncate(fd, 4096)
    if what == "snapshot":
        name = desk.snapshots.add(1, KernelState(fd, 700, "3", {}, ())).name
    let_go = keep(fd)
    if name:
        desk.snapshots.remove(name, 1)
    else:
        os.close(fd)
    assert 700 == desk.bytes_of(1)
    with pytest.raises(Busy):
        desk.fits(1, 301)
    let_go()
    assert 0 == desk.bytes_of(1)


def test_a_guest_leaves_others_their_part_of_the_memory(desk: Desk) -> None:
    """As much as he has is always left."""
    desk.snapshots._room = 900
    desk.fits(1, 900)
    desk.guests = True
    with pytest.raises(Busy, match="all users"):
        desk.fits(1, 451)
    desk.add(1, 450)
    desk.add(2, 225)
    with pytest.raises(Busy, match="all users"):
        desk.fits(2, 1)


def test_a_guest_leaves_others_their_part_of_the_watches(desk: Desk) -> None:
    """The kernel counts those of all users for the daemon's."""
    desk.snapshots._most_files, desk.guests = 4, True
    for user in (1, 1, 2):
        desk.add(user, 1)
    with pytest.raises(Busy, match="2 states of yours"):
        desk.fits(1, 1)
    desk.guests = False
    desk.add(1, 1)
    with pytest.raises(Busy, match="1 states of yours"):
        desk.fits(2, 1)


def test_who_asks_for_too_much_holds_up_nobody(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(desk.uses, "wait", waits.append)
    desk.add(1, MOST)
    with pytest.raises(Busy):
        desk.fits(1, 1)
    assert [0.0] == waits


def test_a_request_waits_for_the_snapshot_that_was_removed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closes(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            self.start()
            super().join(timeout)

    monkeypatch.setattr("leeward.daemon.sandboxes.snapshots._FREED_S", 10.0)
    monkeypatch.setattr("leeward.daemon.sandboxes.snapshots.close_file", lambda fd, _: Closes(target=os.close, args=(fd,)))
    desk.snapshots.remove(desk.add(1, MOST), 1)
    desk.fits(1, MOST)


def test_what_a_request_looks_at_doesnt_grow_with_the_users(desk: Desk) -> None:
    class Files(dict[int, tuple[int, int]]):
        looks = 0

        def values(self) -> Any:
            Files.looks += 1
            return super().values()

    looks = []
    for user in range(1, 30):
        desk.add(user, 1)
        desk.snapshots._files = Files(desk.snapshots._files)
        Files.looks = 0
        desk.fits(user, 1)
        looks.append(Files.looks)
        desk.uses.wait(0.0)
    assert 1 == len(set(looks))


def test_a_zygotes_memory_counts_once(desk: Desk) -> None:
    """For each user whose snapshots keep it."""
    fd = os.memfd_create("x")
    os.ftruncate(fd, 300)
    memory = ZygoteMemory(fd)
    names = [desk.add(1, 100, memory) for _ in range(2)]
    assert 500 == desk.bytes_of(1)
    desk.snapshots.remove(names[0], 1)
    assert 400 == desk.bytes_of(1)
    desk.snapshots.remove(names[1], 1)
    assert 0 == desk.bytes_of(1)
    os.fstat(fd)
    del memory
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_there_are_so_many_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """And others beside those that take long: code in a sandbox can keep one waiting."""
    began = [desk.snapshots.begin(1) for _ in range(MOST_DUMPS)]
    with pytest.raises(Busy):
        desk.snapshots.begin(1)
    desk.snapshots.begin(2)
    desk.snapshots.end(1, began.pop())
    began.append(desk.snapshots.begin(1))
    with monkeypatch.context() as later:
        later.setattr(desk.reactor, "now", lambda now=desk.reactor.now: now() + DUMPS_S)
        began += [desk.snapshots.begin(1) for _ in range(MOST_DUMPS)]
        with pytest.raises(Busy):
            desk.snapshots.begin(1)
    for each in began:
        desk.snapshots.end(1, each)
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
        desk.fits(1 << 40, 1 << 48)


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
    assert 10 == desk.bytes_of(1)
    with pytest.raises(SnapshotFailed):
        desk.snapshots.get(old, 1)


def test_bytes_that_come_back_are_a_snapshot_when_all_are_there(desk: Desk) -> None:
    name, content = desk.bring(1, 600, 200), os.urandom(800)
    with pytest.raises(SnapshotFailed):
        desk.snapshots.get(name, 1)
    assert [300, 100] == [desk.snapshots.add_bytes(name, 1, content[at:to]) for at, to in ((0, 500), (500, 700))]
    with pytest.raises(BadRequest):
        desk.snapshots.add_bytes(name, 1, bytes(101))
    assert 0 == desk.snapshots.add_bytes(name, 1, content[700:])
    found = desk.snapshots.get(name, 1)
    assert (7.5, "3.11", (600, 200)) == (found.made, found.state.python, found.sizes)
    assert content == found.bytes_at(0, 599) + found.bytes_at(599, 99) + found.bytes_at(600, 1000)
    assert b"" == found.bytes_at(800, 10)
    assert found.state.memory is not None
    for fd in (found.state.fd, found.state.memory.fd):
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
    with pytest.raises(Busy):
        desk.fits(1, MOST - 799)
    desk.snapshots.remove(name, 1)
    with pytest.raises(Busy):
        desk.fits(1, MOST)  # a copy may still need the zygote's memory
    del found
    desk.fits(1, MOST)


def test_an_import_is_its_users_and_counts_until_it_is_given_up(desk: Desk) -> None:
    name = desk.bring(1, MOST)
    for call in (lambda: desk.snapshots.add_bytes(name, 2, b"x"), lambda: desk.snapshots.remove(name, 2)):
        with pytest.raises(SnapshotFailed):
            call()
    with pytest.raises(Busy):
        desk.bring(1, 1)
    desk.snapshots.remove(name, 1)
    with pytest.raises(SnapshotFailed):
        desk.snapshots.add_bytes(name, 1, b"x")
    several = [desk.bring(1, 1) for _ in range(MOST_DUMPS)]
    with pytest.raises(Busy):
        desk.bring(1, 1)
    assert len(several) == len(set(several))


def test_an_import_ends_when_nothing_comes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leeward.daemon.sandboxes.snapshots.PATIENCE_S", 0.0)
    name = desk.bring(1, MOST)

    def given_up() -> bool:
        try:
            desk.fits(1, MOST)
        except Busy:
            return False
        return True

    desk.reactor.run(given_up)
    with pytest.raises(SnapshotFailed):
        desk.snapshots.add_bytes(name, 1, b"x")


@pytest.mark.parametrize("name", sorted(key()))
def test_what_was_different_is_named(name: str) -> None:
    check(key())
    for value in ({**key(), name: "another one"}, {each: value for each, value in key().items() if each != name}):
        with pytest.raises(SnapshotFailed, match=f"another {name}: "):
            check(value)


def test_what_a_state_shares_with_a_later_leeward_has_a_number() -> None:
    """Who changes one of these files raises STATES, if a state of before wouldn't do any more, and changes the digest."""
    source = Path(leeward.__path__[0])
    shared = b"".join((source / each).read_bytes() for each in ("_native/src/state_private.h", "wire/job_frames.py"))
    assert (3, "aa6cc71ac9d4857d") == (STATES, hashlib.sha256(shared).hexdigest()[:16])


def test_facts_of_an_import_are_checked(desk: Desk) -> None:
    for facts in (b"", b"\xc1", b"\x80"):
        with pytest.raises(BadRequest, match="facts"):
            Arriving((4096, 0), facts, 1.0)
