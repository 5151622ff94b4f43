"""What a process has that can't be taken, and what a copy gets anew."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from leeward.inside import imports, snapshots
from leeward.inside.snapshots import CantTake, OpenFile
from leeward.wire import job_frames as wire


@pytest.fixture
def kept() -> Iterator[int]:
    """The number from which on descriptors are the test's."""
    above = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    end = os.open("/", os.O_PATH)
    number = os.dup2(end, above + 20)
    os.close(end)
    yield number + 1
    os.close(number)


def opened(least: int, *files: int) -> list[int]:
    """Move descriptors to numbers from *least* on."""
    return [snapshots._above(least, fd) for fd in files]


def test_files_are_opened_again_at_their_positions(kept: int, tmp_path: Path) -> None:
    """With their flags; a folder, too."""
    (tmp_path / "a").write_text("abcdef")
    numbers = opened(kept, os.open(tmp_path / "a", os.O_RDWR | os.O_APPEND | os.O_CREAT), os.open(tmp_path, os.O_RDONLY))
    os.lseek(numbers[0], 3, os.SEEK_SET)
    found = [file for file, _ in snapshots._descriptors(kept)]
    assert [(numbers[0], str(tmp_path / "a"), os.O_RDWR | os.O_APPEND, 3),
            (numbers[1], str(tmp_path), os.O_DIRECTORY, 0)] == [
                (each.number, each.path, each.flags & ~(os.O_RDONLY | os.O_DIRECTORY) if 0 == index else os.O_DIRECTORY,
                 each.position) for index, each in enumerate(found)]
    for number in numbers:
        os.close(number)
    snapshots._open_files(found)
    assert b"def" == os.read(numbers[0], 9)
    os.write(numbers[0], b"more")
    assert "abcdefmore" == (tmp_path / "a").read_text()
    for number in numbers:
        os.close(number)
    assert not [number for number in map(int, os.listdir("/proc/self/fd")) if number > max(numbers) + 40]


def test_what_cannot_be_opened_is_dead(kept: int, tmp_path: Path) -> None:
    """Sockets, pipes, and a file that was removed: their numbers are taken, and permit nothing."""
    one, other = socket.socketpair()
    (tmp_path / "gone").write_text("x")
    numbers = opened(kept, one.detach(), os.open(tmp_path / "gone", os.O_RDONLY))
    (tmp_path / "gone").unlink()
    found = list(snapshots._descriptors(kept))
    assert ["", ""] == [file.path for file, _ in found]
    assert found[0][1].startswith("socket:")
    for number in numbers:
        os.close(number)
    other.close()
    snapshots._open_files([file for file, _ in found])
    for number in numbers:
        with pytest.raises(OSError, match="descriptor") as refused:
            os.read(number, 1)
        assert errno.EBADF == refused.value.errno
        os.close(number)


def test_a_missing_file_is_named_and_nothing_is_open(kept: int) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError, match="/no/such"):
        snapshots._open_files([OpenFile(kept, "", 0, 0, False), OpenFile(kept + 1, "/no/such", os.O_RDONLY, 0, False)])
    assert before == os.listdir("/proc/self/fd")


def test_threads_and_children_are_named() -> None:
    waits = threading.Event()
    thread = threading.Thread(target=waits.wait, name="it waits")
    thread.start()
    try:
        with pytest.raises(CantTake, match="it waits"):
            snapshots._check()
    finally:
        waits.set()
        thread.join()
    others = snapshots._named(ended=True)  # children of other tests in this process
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            assert any(each.startswith(f"{child.pid} 'sleep'") for each in snapshots._named(ended=False))
            assert set(others) >= set(snapshots._named(ended=True))
        finally:
            child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert any(each.startswith(f"{child.pid} ") for each in snapshots._named(ended=True))


def test_packages_are_those_beside_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("made_up")
    made.__version__ = "1.5"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up", made)
    odd = types.ModuleType("odd_one")
    odd.__version__ = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd_one", odd)
    found = snapshots._packages()
    assert ("1.5", "") == (found["made_up"], found["odd_one"])
    assert not {"os", "leeward", "msgpack", "collections.abc"} & found.keys()


def test_functions_are_called_in_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, and given by `leeward.on_restore`; without a kernel that does nothing."""
    calls: list[int] = []

    def first() -> None:
        calls.append(1)

    assert first is leeward.on_restore(first)
    monkeypatch.setattr(snapshots, "_on_restore", [])
    monkeypatch.setattr(sys, snapshots._REGISTER, snapshots.on_restore, raising=False)
    monkeypatch.setattr(imports, "offers", {})
    leeward.on_restore(first)
    leeward.on_restore(lambda: calls.append(2))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(snapshots.reseeding, "sources", lambda: (("os", lambda _: calls.append(0)), ("none", calls.append)))
    snapshots._left.append((1, 2))
    snapshots.resume(snapshots.Taken([], "/"))
    assert [0, 1, 2] == calls
    snapshots.resume(snapshots.Taken([], "/", word=wire.SAME_RANDOM))
    assert [0, 1, 2, 1, 2] == calls
    assert not snapshots._left


def test_a_package_with_the_hook_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """To code that has no leeward to import."""
    monkeypatch.setattr(sys, snapshots._REGISTER, None, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    offered: dict[str, object] = {}
    monkeypatch.setattr(imports, "offer", offered.__setitem__)
    snapshots.offer_hook()
    module = types.ModuleType("leeward")
    offered["leeward"](module)  # type: ignore[operator]
    assert snapshots.on_restore is module.on_restore


def test_what_branches_and_writers_leave_is_reaped_and_no_child_of_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this process has adopted it: the writers that it has noted, and what is of the branches' sessions."""
    alone, own = (subprocess.Popen(["sleep", "1000"], start_new_session=session) for session in (True, False))
    writer = os.fork()
    if not writer:
        os._exit(0)
    os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(snapshots, "_left", [(os.getpid(), writer), (os.getpid(), 1), (1, own.pid)])
    try:
        snapshots.adopt([alone.pid])
        assert [f"{own.pid} 'sleep'"] == [each for each in snapshots._named(ended=False) if "'sleep'" in each]
        snapshots.reap()
        assert not snapshots._left
        alone.kill()
        os.waitid(os.P_PID, alone.pid, os.WEXITED | os.WNOWAIT)
        snapshots.adopt([])
        with pytest.raises(ChildProcessError):
            os.waitpid(alone.pid, 0)
        assert not snapshots._sessions
    finally:
        for each in (alone, own):
            each.kill()
            each.wait()


def test_an_unknown_processor_is_named() -> None:
    """Before anything is done; the descriptors are closed."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(CantTake, match="processor"):
        snapshots.take(list(os.pipe()), 1 << 20, snapshots.NONE)
    assert before == os.listdir("/proc/self/fd")
