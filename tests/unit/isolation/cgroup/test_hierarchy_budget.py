"""How much memory there is: the host's, or what a group allows."""

from __future__ import annotations

from pathlib import Path

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


def test_what_is_left_on_this_host() -> None:
    total, left = hierarchy.memory_left()
    assert hierarchy.memory() == total
    assert 0 < left < total


def write_group(folder: Path, version: int, *, limit: str, usage: int, cached: int) -> str:
    """Make the files of a group's memory; returns that of its limit."""
    names = (("memory.max", "memory.current", "inactive_file") if version == 2 else
             ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    folder.mkdir()
    for name, text in zip((*names[:2], "memory.stat"), (limit, str(usage), f"anon 7\n{names[2]} {cached}\n"), strict=True):
        (folder / name).write_text(f"{text}\n")
    return str(folder / names[0])


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_leaves_less_than_the_host(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache counts as left; a group without a limit, or that is gone, has none."""
    files = (write_group(tmp_path / "a", version, limit="9000000", usage=8_000_000, cached=500_000),
             write_group(tmp_path / "b", version, limit="max", usage=8_000_000, cached=0), str(tmp_path / "c/memory.max"))
    monkeypatch.setattr(hierarchy, "_bounded", lambda: files)

    assert (9_000_000, 1_500_000) == hierarchy.memory_left()


@pytest.mark.parametrize(("files", "processors"), [
    ({"cpu.max": "max 100000"}, 8), ({"cpu.max": "150000 100000"}, 1.5), ({}, 8),
    ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
    ({"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "50000"}, 4)])
def test_a_quota_of_a_group_above_bounds_the_processors(files: dict[str, str], processors: float, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").mkdir()
    version = 1 if "cpu.cfs_quota_us" in files else 2
    monkeypatch.setattr(hierarchy, "here", lambda: (
        Hierarchy(version, frozenset({"cpu"} if version == 1 else ()), str(tmp_path), str(tmp_path / "own")),))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))

    assert processors == hierarchy.processors()
