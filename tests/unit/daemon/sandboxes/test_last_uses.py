"""Whose end of a file is told of, also where the kernel's queue isn't what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward._native.memfd import memory_file
from leeward.daemon.sandboxes.last_uses import LastUses


@pytest.fixture
def uses() -> Iterator[LastUses]:
    reactor = ReferenceReactor()
    made = LastUses(reactor)
    yield made
    made.close()
    reactor.close()


def test_no_number_is_one_of_an_earlier_queues(uses: LastUses) -> None:
    """What was watched before stays in use: else another file's end would be taken for its own."""
    gone: list[int] = []
    before = memory_file("x")
    first = uses.watch(before, gone.append)
    uses.broken(OSError())
    fd = memory_file("x")
    second = uses.watch(fd, gone.append)
    assert first != second
    os.close(before)
    os.close(fd)
    uses.wait(0.0)
    assert [second] == gone
