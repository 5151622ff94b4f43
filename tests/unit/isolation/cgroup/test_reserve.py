"""Descriptors that are kept for what must work when no other is left."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from leeward.isolation.cgroup import reserve
from leeward.isolation.cgroup.watch import fields_of, process


@pytest.fixture
def none_left() -> Iterator[None]:
    """No descriptor can be made."""
    reserve.fill()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.open("/", os.O_PATH)]
    while filler[-1] < max(reserve._kept):
        filler.append(os.open("/", os.O_PATH))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler[-1] + 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for fd in filler:
        os.close(fd)
    reserve.fill()


def test_a_process_is_looked_at_though_none_is_left(none_left: None) -> None:
    """Again and again: what a look has taken is kept again after it."""
    for _ in range(20):
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_PATH)
        with process(os.getpid()) as folder:
            assert fields_of(folder)
        reserve.fill()


def test_without_kept_ones_the_error_is_told() -> None:
    def none() -> int:
        raise OSError(errno.EMFILE, "none")

    with pytest.raises(OSError, match="none"):
        reserve.opened(none)
    reserve.fill()


def test_another_error_costs_none() -> None:
    reserve.fill()

    def missing() -> int:
        raise FileNotFoundError(errno.ENOENT, "no")

    with pytest.raises(FileNotFoundError):
        reserve.opened(missing)
    assert reserve.MOST == len(reserve._kept)
