"""Locks of files and folders."""

from __future__ import annotations

import os

import pytest

from leeward.base.closing import OwnedFd
from leeward.base.file_locks import MADE, THERE, locked


def is_free(path) -> bool:
    """Whether nobody holds a lock of *path*."""
    try:
        os.close(locked(str(path), THERE))
    except BlockingIOError:
        return False
    return True


def test_one_has_it_at_a_time(tmp_path):
    path = str(tmp_path / "lock")
    with OwnedFd(locked(path)) as fd:
        assert not os.get_inheritable(fd)
        assert 0o600 == os.stat(path).st_mode & 0o777
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(BlockingIOError):
            locked(path)
        assert before == len(os.listdir("/proc/self/fd"))

    assert is_free(path)


def test_several_share_it(tmp_path):
    with OwnedFd(locked(str(tmp_path), THERE, shared=True)), OwnedFd(locked(str(tmp_path), THERE, shared=True)):
        assert not is_free(tmp_path)

    assert is_free(tmp_path)


def test_no_link_is_locked(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "lock")

    for flags in (MADE, THERE):
        with pytest.raises(OSError, match="symbolic"):
            locked(str(tmp_path / "link"), flags)
