"""How much memory there is: the host's, or what a group allows."""

from __future__ import annotations

import pytest

from leeward.isolation.cgroup import hierarchy
from leeward.isolation.cgroup.hierarchy import Hierarchy

MEMINFO = "MemTotal:        1000 kB\nMemFree:         10 kB\n"


@pytest.mark.parametrize(("limits", "least"), [
    ([], 1024000), (["max\n"], 1024000), (["2048000\n"], 1024000), (["512000\n", "max\n", "700000\n"], 512000),
    (["9223372036854771712\n"], 1024000), (["", "-1", "x"], 1024000)])
def test_the_smallest_counts(limits: list[str], least: int) -> None:
    assert least == hierarchy.least(MEMINFO, limits)


def test_all_groups_above_are_asked() -> None:
    hierarchies = [Hierarchy(2, frozenset(), "/sys/fs/cgroup", "/sys/fs/cgroup/a/b"),
                   Hierarchy(1, frozenset({"memory"}), "/m", "/m/x"), Hierarchy(1, frozenset({"pids"}), "/p", "/p/x"),
                   Hierarchy(2, frozenset(), "/", "/a")]
    assert ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max",
            "/m/x/memory.limit_in_bytes", "/m/memory.limit_in_bytes",
            "/a/memory.max", "//memory.max"] == list(hierarchy.limit_files(hierarchies))


def test_the_budget_of_this_host() -> None:
    assert 64 << 20 < hierarchy.memory() < 1 << 50
