"""What the files of a job count as where there is no controller."""

from __future__ import annotations

import os

import pytest

from leeward.isolation.cgroup import none


def test_files_count_by_their_number_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million empty ones, which a sandbox for an agent may have, take half a gigabyte of the kernel's."""
    has = os.statvfs_result((4096, 4096, 1000, 990, 990, 1 << 19, 24, 24, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: has)
    assert 10 * 4096 + ((1 << 19) - 24) * 1024 == none._bytes_in_files(3)
