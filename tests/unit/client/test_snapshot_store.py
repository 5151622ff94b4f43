"""Snapshots on disk: named by their content, bounded in bytes and by age, their user's alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from leeward.client.snapshot import Snapshot
from leeward.client.snapshot_files import facts_of, snapshot_written
from leeward.client.snapshot_store import SnapshotStore, is_kept
from leeward.errors import SnapshotFailed

DAY = 86400.0


class Fake(Snapshot):
    """One whose bytes are known."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def save(self, path: str | os.PathLike[str]) -> None:
        head = {"key": {"kernel": "6.1"}, "sizes": [len(self.content), 0], "made": 3.5,
                "facts": facts_of("3.11", {"numpy": "1.2"}, ["a socket"])}
        with snapshot_written(path, head) as write:
            write(self.content)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots", most=30_000, days=2)


def test_one_is_kept_by_its_content(store: SnapshotStore) -> None:
    """Once, for its user alone."""
    name = store.keep(Fake(b"a" * 4096))
    assert (name, True) == (store.keep(Fake(b"a" * 4096)), is_kept(name))
    assert name != (other := store.keep(Fake(b"b" * 4096)))
    assert sorted([name, other]) == sorted(os.listdir(store.folder))
    assert (0o40700, 0o100600) == (os.stat(store.folder).st_mode, os.stat(store._path(name)).st_mode)
    assert [3.5, 3.5] == [row["made"] for row in store.list()]
    told = store.info(name)
    assert ("3.11", {"numpy": "1.2"}, ["a socket"], {"kernel": "6.1"}) == (
        told["python"], told["packages"], told["lost"], told["key"])
    store.remove(name)
    assert [other] == [row["snapshot"] for row in store.list()]
    for call in (store.remove, store.load, store.info):
        with pytest.raises(SnapshotFailed, match="you keep no snapshot"):
            call(name)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", ".part-1", "a" * 63])
def test_no_other_file_has_such_a_name(store: SnapshotStore, name: str) -> None:
    store.keep(Fake(b"a"))
    for call in (store.remove, store.load, store.info):
        with pytest.raises(SnapshotFailed, match="you keep no snapshot"):
            call(name)


def test_they_have_so_many_bytes(store: SnapshotStore) -> None:
    """Nothing is left of one that is refused."""
    names = [store.keep(Fake(b"a" * 10_000)), store.keep(Fake(b"b" * 10_000))]
    with pytest.raises(SnapshotFailed, match="are the most: remove one"):
        store.keep(Fake(b"c" * 10_000))
    assert sorted(names) == sorted(os.listdir(store.folder))
    assert names[0] == store.keep(Fake(b"a" * 10_000))
    store.remove(names[0])
    store.keep(Fake(b"c" * 10_000))


def test_those_that_nobody_uses_go(store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a program has left behind; use begins the time anew."""
    loaded: list[Any] = []
    monkeypatch.setattr(Snapshot, "load", lambda *how: loaded.append(how))
    old, used = store.keep(Fake(b"a")), store.keep(Fake(b"b"))
    left, half, fresh = (store._path(name) for name in (".part-1-2", ".leeward-snapshot-x", ".part-3-4"))
    for path in (left, half, fresh):
        Path(path).write_bytes(b"x")
    before = time.time() - 3 * DAY
    for path in (store._path(old), store._path(used), left, half):
        os.utime(path, (before, before))
    store.load(used, "/socket")
    assert [(store._path(used), "/socket")] == loaded
    new = store.keep(Fake(b"c"))
    assert sorted([used, new, ".part-3-4"]) == sorted(os.listdir(store.folder))
    assert [] == store.prune()
    os.utime(store._path(new), (before, before))
    assert [new] == store.prune(1)


def test_another_content_is_not_loaded(store: SnapshotStore) -> None:
    name, other = store.keep(Fake(b"a")), store.keep(Fake(b"b"))
    os.replace(store._path(other), store._path(name))
    for _ in range(2):
        with pytest.raises(SnapshotFailed, match="its content isn't that of its name"):
            store.load(name)
        os.truncate(store._path(name), 9)


def test_a_folder_of_others_is_refused(store: SnapshotStore) -> None:
    assert ([], []) == (store.list(), store.prune())
    name = store.keep(Fake(b"a"))
    os.chmod(store.folder, 0o755)
    for call in (lambda: store.keep(Fake(b"b")), lambda: store.load(name)):
        with pytest.raises(SnapshotFailed, match="isn't yours alone"):
            call()


def test_what_is_no_snapshot_is_not_listed(store: SnapshotStore) -> None:
    store.keep(Fake(b"a"))
    Path(store._path("0" * 64)).write_bytes(b"no snapshot")
    assert 1 == len(store.list())
    with pytest.raises(SnapshotFailed, match=r"holds no snapshot|too early"):
        store.info("0" * 64)
