"""When nobody has a file any more: a name, a descriptor, a mapping."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leeward._native import last_use
from leeward._native.memfd import memory_file


def told(queue: int) -> list[int]:
    return list(last_use.told(queue, ()))


@pytest.fixture
def queue() -> Iterator[int]:
    made = last_use.new_queue()
    yield made
    os.close(made)


def test_the_last_use_is_told_once_whatever_it_is(queue: int) -> None:
    fd = memory_file("x")
    os.ftruncate(fd, 4096)
    number = last_use.watch(queue, fd)
    again, path = os.dup(fd), os.open(f"/proc/self/fd/{fd}", os.O_PATH)
    assert number == last_use.watch(queue, again)
    mapped = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    ways: list[Callable[[], None]] = [lambda: os.close(fd), lambda: os.close(again), mapped.close, lambda: os.close(path)]
    for let_go in ways:
        assert [] == told(queue)
        let_go()
    assert [number] == told(queue)
    assert [] == told(queue)


def test_a_file_on_disk_lives_as_long_as_its_name(queue: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    number = last_use.watch(queue, fd)
    os.close(fd)
    assert [] == told(queue)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    (tmp_path / "file").unlink()
    assert [] == told(queue)
    os.close(fd)
    assert [number] == told(queue)


def test_files_are_told_of_that_the_queue_had_no_place_for(queue: int) -> None:
    """The kernel drops events beyond fs.inotify.max_queued_events, two for each file."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 2 + 10
    if most > 20_000 or most + 1000 > last_use.most():
        pytest.skip("needs fs.inotify.max_queued_events of 16384, and watches for as many files")
    kept = memory_file("x")
    watched = {last_use.watch(queue, kept)}
    for _ in range(most):
        fd = memory_file("x")
        watched.add(last_use.watch(queue, fd))
        os.close(fd)
    gone = set(last_use.told(queue, watched))
    assert {last_use.watch(queue, kept)} == watched - gone
    assert [] == list(last_use.told(queue, watched - gone))
    os.close(kept)
    assert watched == gone | set(told(queue))


def test_what_is_no_file_is_refused(queue: int) -> None:
    with pytest.raises(OSError, match="No such file"):
        last_use.watch(queue, 1 << 20)
