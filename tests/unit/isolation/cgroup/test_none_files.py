"""What the files of a job count as where there is no controller; and the file that tells C what looks have found."""

from __future__ import annotations

import os
import threading

import pytest

from leeward._native.memfd import memory_file
from leeward.isolation.cgroup import none
from leeward.spec.limits import Limits


def test_files_count_by_their_number_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million empty ones, which a sandbox for an agent may have, take half a gigabyte of the kernel's."""
    has = os.statvfs_result((4096, 4096, 1000, 990, 990, 1 << 19, 24, 24, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: has)
    assert 10 * 4096 + ((1 << 19) - 24) * 1024 == none._bytes_in_files(3)


def test_a_look_of_the_watchdogs_thread_writes_to_no_file_that_has_its_number_by_then(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may let a sandbox rest meanwhile, and open another file."""
    leaf = none.NoneLeaf((0,), Limits())
    leaf.share()
    assert leaf.gauges() is not None
    fds: list[int] = []

    def let_rest() -> None:
        leaf.rest()
        fds.append(memory_file("another"))

    loop = threading.Thread(target=let_rest)

    def figures() -> bytes:
        loop.start()
        loop.join(0.1)
        return b"peak 1"

    monkeypatch.setattr(leaf, "_figures", figures)
    leaf.tick(os.getpid())
    loop.join()

    assert [0] == [os.fstat(fd).st_size for fd in fds]
    os.close(*fds)
