"""When nobody has a file any more: a name, a descriptor, a mapping."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leeward._native import last_use
from leeward._native.memfd import memory_file


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
        assert [] == list(last_use.told(queue))
        let_go()
    assert [number] == list(last_use.told(queue))
    assert [] == list(last_use.told(queue))


def test_a_file_on_disk_lives_as_long_as_its_name(queue: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    number = last_use.watch(queue, fd)
    os.close(fd)
    assert [] == list(last_use.told(queue))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    (tmp_path / "file").unlink()
    assert [] == list(last_use.told(queue))
    os.close(fd)
    assert [number] == list(last_use.told(queue))


def test_what_is_no_file_is_refused(queue: int) -> None:
    with pytest.raises(OSError, match="No such file"):
        last_use.watch(queue, 1 << 20)
