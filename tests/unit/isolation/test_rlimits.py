"""How many watches jobs get of what the kernel grants a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from leeward.isolation import rlimits


@pytest.mark.parametrize(("text", "most"), [("5491533\n", 2745766), ("2\n", 1), ("1\n", 1), ("0\n", 1)])
def test_half_of_the_watches_are_the_jobs(text: str, most: int) -> None:
    assert most == rlimits.half(text)


def test_half_of_the_kernels_watches_are_granted() -> None:
    most = int(Path("/proc/sys/fs/epoll/max_user_watches").read_text())

    assert max(1, most // 2) == rlimits.granted_watches()
