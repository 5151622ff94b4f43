"""Sandboxes on disk: what was put comes back, what is spoiled is told, and nothing is left of what has gone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from leeward._native.memfd import memory_file
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.sleep_folder import Asleep, SleepFolder
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import Busy, SnapshotFailed

ONE, TWO = "a" * 26, "b" * 26
MOST = 1 << 20
Make = Callable[[], SleepFolder]


@pytest.fixture
def make(reactor: Reactor, tmp_path: Path) -> Make:
    tmp_path.chmod(0o700)
    return lambda: SleepFolder(reactor, LastUses(reactor), str(tmp_path / "sleep"), lambda: MOST)


def file_of(data: bytes) -> int:
    fd = memory_file("x")
    os.write(fd, data)
    return fd


def asleep(memory: ZygoteMemory | None = None) -> Asleep:
    page = os.sysconf("SC_PAGESIZE")
    state = KernelState(file_of(b"s" * page), page, "3.11", {"numpy": "2"}, ("a pipe",), memory)
    return Asleep({3: state}, file_of(b"rows"), 4)


def wait(reactor: Reactor, order: Callable[[Callable[[Any], None]], None]) -> Any:
    said: list[Any] = []
    order(said.append)
    while not said:
        reactor.turn(1.0)
    return said[0]


def names(make: SleepFolder) -> list[str]:
    return sorted(os.listdir(make._folder))


def test_what_was_put_comes_back_to_the_next_daemon(make: Make, reactor: Reactor) -> None:
    """Zygotes' memory is there once, and goes with its last sandbox."""
    folder, memory = make(), ZygoteMemory(file_of(b"zygote"))
    for name in (ONE, TWO):
        what = asleep(memory)
        assert wait(reactor, partial(folder.put, name, 7, {"user": 7}, what)) is None
        what.close()
    with pytest.raises(OSError):
        make()
    assert 4 == len(names(folder))
    folder.close()
    folder = make()
    assert {ONE: {"user": 7}, TWO: {"user": 7}} == dict(folder.sleepers())
    found = wait(reactor, partial(folder.get, ONE))
    state = found.states[3]
    assert (4, b"rows", b"s", b"zygote") == (
        found.size, os.read(found.files, 99), os.pread(state.fd, 1, 0), os.pread(state.memory.fd, 99, 0))
    assert ("3.11", {"numpy": "2"}, ("a pipe",)) == (state.python, state.packages, state.lost)
    assert os.fstat(state.fd).st_size == state.size
    with pytest.raises(OSError):
        os.write(state.fd, b"x")
    found.close()
    for name in (ONE, TWO):
        folder.remove(name)
    assert {} == folder._sizes
    what = Asleep({}, file_of(b""), 4)  # less than it says
    assert isinstance(wait(reactor, partial(folder.put, ONE, 7, {"user": 7}, what)), OSError)
    what.close()
    assert ["lock"] == names(folder)
    folder.close()


@pytest.mark.parametrize("head", [None, "", "[]", '{"format": 0}', '{"format": 1}',
                                  '{"format": 1, "kernels": 1, "files": 1}'])
def test_what_is_spoiled_is_told_and_what_is_not_whole_goes(make: Make, reactor: Reactor, head: str | None) -> None:
    folder = make()
    for name in (ONE, TWO):
        what = asleep()
        wait(reactor, partial(folder.put, name, 7, {"user": 7}, what))
        what.close()
    folder.close()
    place = Path(folder._folder)
    path = place / f"{ONE}.sleeper" / "head"
    written = path.read_bytes()
    path.write_bytes(written[:-1] + b" " if head is None else sha256(head.encode()).digest() + head.encode())
    (place / f"{TWO}.sleeper" / "files").unlink()
    (place / f"{TWO}.sleeper.part").mkdir()
    (place / "memory-0").write_bytes(b"x")
    (place / "memory-1.part").write_bytes(b"x")
    folder = make()
    found = dict(folder.sleepers())
    assert (SnapshotFailed, {"user": 7}) == (type(found[ONE]), found[TWO])
    assert isinstance(wait(reactor, partial(folder.get, TWO)), OSError)
    settle(folder, reactor)
    assert [f"{ONE}.sleeper", f"{TWO}.sleeper", "lock"] == names(folder)
    folder.close()


def settle(folder: SleepFolder, reactor: Reactor) -> None:
    """Wait until all is written and removed that was ordered."""
    wait(reactor, partial(folder._writer.order, lambda: None))


def put(folder: SleepFolder, reactor: Reactor, name: str, what: Asleep) -> Any:
    try:
        return wait(reactor, partial(folder.put, name, 7, {"user": 7}, what))
    finally:
        what.close()


def test_those_that_are_refused_at_the_start_take_their_memory_with_them(make: Make, reactor: Reactor) -> None:
    """Not that of others, and whoever removes them while they are told."""
    folder, memory = make(), ZygoteMemory(file_of(b"zygote"))
    for name in (ONE, TWO):
        put(folder, reactor, name, asleep(memory))
    folder.close()
    folder = make()
    told = iter(folder.sleepers())
    gone, _ = next(told)
    folder.remove(gone)
    settle(folder, reactor)
    (stays, _), = told
    assert 3 == len(names(folder))
    assert isinstance(wait(reactor, partial(folder.get, stays)), Asleep)
    folder.remove(stays)
    settle(folder, reactor)
    assert ["lock"] == names(folder)
    folder.close()
    folder = make()
    assert [] == list(folder.sleepers())
    folder.close()


def test_what_cannot_be_removed_does_not_keep_a_daemon_from_its_start(make: Make, reactor: Reactor) -> None:
    folder = make()
    folder.close()
    (Path(folder._folder) / "a" / "b" / "c").mkdir(parents=True)
    (Path(folder._folder) / "memory-0").write_bytes(b"x")
    folder = make()
    assert [] == list(folder.sleepers())
    settle(folder, reactor)
    assert "memory-0" not in names(folder)
    folder.close()


def test_a_zygotes_memory_counts_and_goes_with_what_could_not_be_written(
        make: Make, reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody can have brought it: a snapshot that is imported has its own."""
    folder, large = make(), memory_file("x")
    os.ftruncate(large, MOST)
    assert isinstance(put(folder, reactor, ONE, asleep(ZygoteMemory(large))), Busy)
    assert ["lock"] == names(folder)
    what = asleep(ZygoteMemory(file_of(b"zygote")))
    assert isinstance(put(folder, reactor, ONE, Asleep(what.states, what.files, 5)), OSError)  # it has 4
    assert ["lock"] == names(folder)
    rename = os.rename
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError(28, "no space")))
    assert isinstance(put(folder, reactor, ONE, asleep(ZygoteMemory(file_of(b"zygote")))), OSError)
    assert ["lock"] == names(folder)
    monkeypatch.setattr(os, "rename", rename)
    half = ZygoteMemory(file_of(bytes(MOST // 2)))
    assert put(folder, reactor, ONE, asleep(half)) is None
    assert put(folder, reactor, TWO, asleep(half)) is None
    folder.close()
    folder = make()
    assert 2 == len(folder.sleepers())
    assert isinstance(put(folder, reactor, "c" * 26, asleep(ZygoteMemory(file_of(bytes(MOST // 2 - 1))))), Busy)
    folder.close()


def test_what_is_told_of_it_counts_and_comes_back_whole(make: Make, reactor: Reactor) -> None:
    """In any alphabet; what couldn't be read again isn't written."""
    folder, record = make(), {"user": 7, "env": {"a": "\U0001f600\udc80" * 90_000}}
    what, large = asleep(), asleep()
    assert wait(reactor, partial(folder.put, ONE, 7, record, what)) is None
    assert isinstance(wait(reactor, partial(folder.put, TWO, 7, {"user": 7, "env": "b" * MOST}, large)), Busy)
    assert {} == {name: size for name, (size, _) in folder._heads.items() if size <= 4 * 90_000}
    folder.close()
    folder = make()
    assert [(ONE, record)] == list(folder.sleepers())
    assert isinstance(wait(reactor, partial(folder.put, TWO, 7, record, large)), Busy)
    folder.remove(ONE)
    settle(folder, reactor)
    assert {} == folder._heads
    for each in (what, large):
        each.close()
    folder.close()


def test_what_was_read_is_no_later_daemons(make: Make, reactor: Reactor) -> None:
    """It was awake, and has gone on."""
    folder = make()
    put(folder, reactor, ONE, asleep())
    wait(reactor, partial(folder.get, ONE)).close()
    folder.close()
    folder = make()
    assert [] == list(folder.sleepers())
    settle(folder, reactor)
    assert ["lock"] == names(folder)
    folder.close()


def test_what_is_half_removed_is_no_sandbox(make: Make, reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make()
    put(folder, reactor, ONE, asleep())
    monkeypatch.setattr(os, "unlink", Mock(side_effect=OSError(5, "an error")))
    folder.remove(ONE)
    settle(folder, reactor)
    folder.close()
    monkeypatch.undo()
    folder = make()
    assert [] == list(folder.sleepers())
    folder.close()


def test_the_bytes_of_an_earlier_sleep_are_given_back_once(make: Make, reactor: Reactor) -> None:
    folder, said = make(), list[Any]()
    first, second = Asleep({}, file_of(b""), 4), asleep()  # less than it says
    folder.put(ONE, 7, {"user": 7}, first, said.append)
    folder.remove(ONE)
    folder.put(ONE, 7, {"user": 7}, second, said.append)
    assert (second.bytes, 7) == folder._sizes[ONE]
    while len(said) < 2:
        reactor.turn(1.0)
    assert (OSError, None, (second.bytes, 7)) == (type(said[0]), said[1], folder._sizes[ONE])
    folder.remove(ONE)
    settle(folder, reactor)
    assert ({}, ["lock"]) == (folder._sizes, names(folder))
    for each in (first, second):
        each.close()
    folder.close()


def test_a_copy_that_has_too_few_descriptors_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    what, before = asleep(), len(os.listdir("/proc/self/fd"))
    duplicate = os.dup
    monkeypatch.setattr(os, "dup", Mock(side_effect=[duplicate(what.files), OSError(24, "too many")]))
    with pytest.raises(OSError):
        what.copy()
    assert before == len(os.listdir("/proc/self/fd"))
    what.close()


def test_without_room_it_is_refused(make: Make, reactor: Reactor) -> None:
    folder = make()
    fd = file_of(b"")
    os.ftruncate(fd, MOST + 1)
    what = Asleep({}, fd, MOST + 1)
    with pytest.raises(Busy, match="sleep_size"):
        folder.put(ONE, 7, {"user": 7}, what, lambda _: None)
    what.close()
    folder.close()


def test_a_guest_leaves_others_their_part(reactor: Reactor, tmp_path: Path) -> None:
    """And what a woken kernel has mapped counts until it is let go, though its name is gone."""
    tmp_path.chmod(0o700)
    uses, what = LastUses(reactor), asleep()
    folder = SleepFolder(reactor, uses, str(tmp_path / "sleep"), lambda: 6 * what.bytes, lambda user, own, left: own <= left)
    for name in (ONE, TWO):
        assert wait(reactor, partial(folder.put, name, 7, {"user": 7}, what)) is None
    with pytest.raises(Busy, match="of yours"):
        folder.put("c" * 26, 7, {"user": 7}, what, print)
    assert wait(reactor, partial(folder.put, "d" * 26, 8, {"user": 8}, what)) is None
    found = wait(reactor, partial(folder.get, ONE))
    folder.count(7, found.states[3].fd, found.states[3].size)
    folder.count(7, found.states[3].fd, found.states[3].size)
    folder.remove(ONE)
    settle(folder, reactor)
    uses.wait(0.0)
    assert [(what.states[3].size, 7)] == list(folder._woken.values())
    with pytest.raises(Busy, match="of yours"):
        folder.put(ONE, 7, {"user": 7}, what, print)
    found.close()
    uses.wait(0.0)
    assert wait(reactor, partial(folder.put, ONE, 7, {"user": 7}, what)) is None
    for each in (what, folder, uses):
        each.close()


def test_where_nothing_can_be_run_a_state_is_read_into_memory(
        make: Make, reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, what = make(), asleep()
    wait(reactor, partial(folder.put, ONE, 7, {"user": 7}, what))
    what.close()
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: Mock(f_flag=os.ST_NOEXEC))
    found = wait(reactor, partial(folder.get, ONE))
    assert (b"s", True) == (os.pread(found.states[3].fd, 1, 0), bool(fcntl.fcntl(found.states[3].fd, fcntl.F_GET_SEALS)))
    found.close()
    folder.close()
