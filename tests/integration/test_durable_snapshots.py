"""A snapshot in a file: written by one daemon, loaded by the next, refused where something else is different."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, run
from leeward.client.snapshot_files import SnapshotReader, snapshot_written

pytestmark = pytest.mark.needs("x86-64")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a daemon that has ended."""
    folder = tmp_path_factory.mktemp("saved")
    with LiveDaemon(folder, "--pool-size", "2") as daemon, leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        kernel.execute("import json, sqlite3\nbase = sqlite3.connect(':memory:')\nbase.execute('create table t (x)')\n"
                       "numbers = list(range(200_000))\ncounter = iter(numbers)\nnext(counter)")
        with kernel.snapshot() as snapshot:
            snapshot.save(folder / "state")
    assert 0o600 == stat.S_IMODE((folder / "state").stat().st_mode)
    return folder / "state"


def test_it_outlives_the_daemon(saved: Path, tmp_path: Path) -> None:
    """In a process with another layout; and what began with it can be taken and saved again."""
    look = "base.execute('insert into t values (7)')\nnext(counter), sum(numbers), base.execute('select x from t').fetchall()"
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, leeward.Sandbox(socket=daemon.socket) as box:
        first = leeward.Snapshot.load(saved, daemon.socket)
        assert [first.id] == [row["snapshot"] for row in leeward.Snapshot.list(socket=daemon.socket)]
        with box.kernel(snapshot=first) as kernel, kernel.snapshot() as again:
            again.save(tmp_path / "again")
        second = leeward.Snapshot.load(tmp_path / "again", daemon.socket)
        assert first.made < second.made
        for snapshot in (first, second):
            with box.kernel(snapshot=snapshot) as kernel:
                assert "(1, 19999900000, [(7,)])" == kernel.execute(look).value
                assert kernel.execute("import subprocess, threading\nsubprocess.run(['true'], check=True)\n"
                                      "t = threading.Thread(target=numbers.clear); t.start(); t.join()").ok

DAEMON = ("--pool-size", "2")


@pytest.mark.parametrize("name", ["kernel", "leeward", "processor", "vdso"])
def test_what_is_different_here_is_named(daemon: LiveDaemon, saved: Path, tmp_path: Path, name: str) -> None:
    with open(saved, "rb") as file:
        reader = SnapshotReader(file)
        with snapshot_written(tmp_path / "other", {**reader.head, "key": {**reader.head["key"], name: "another"}}) as write:
            for data in reader.pieces():
                write(data)
    with pytest.raises(leeward.SnapshotFailed, match=f"another {name}: another; here it is"):
        leeward.Snapshot.load(tmp_path / "other", daemon.socket)
    assert [] == leeward.Snapshot.list(socket=daemon.socket)


def test_a_damaged_file_is_refused_and_leaves_nothing(daemon: LiveDaemon, saved: Path, tmp_path: Path) -> None:
    """Several times, so that nothing is counted for it."""
    whole = saved.read_bytes()
    (tmp_path / "damaged").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for _ in range(5):
        with pytest.raises(leeward.SnapshotFailed, match="damaged"):
            leeward.Snapshot.load(tmp_path / "damaged", daemon.socket)
    assert [] == leeward.Snapshot.list(socket=daemon.socket)


def test_the_command_writes_and_reads_files(daemon: LiveDaemon, saved: Path, tmp_path: Path) -> None:
    def done(*words: str) -> str:
        return run(daemon.socket, "snapshot", *words).stdout.decode()

    name = done("import", str(saved)).strip()
    done("export", name, str(tmp_path / "copy"))
    assert saved.read_bytes() == (tmp_path / "copy").read_bytes()
    done("rm", name)


def test_the_command_keeps_them(daemon: LiveDaemon, saved: Path, tmp_path: Path) -> None:
    """Without a daemon they are shown and removed, too."""
    def done(*words: str) -> str:
        return run(daemon.socket, "snapshot", *words, "--store", str(tmp_path / "store")).stdout.decode().strip()

    first = leeward.Snapshot.load(saved, daemon.socket)
    kept = done("keep", first.id)
    assert saved.read_bytes() == (tmp_path / "store" / kept).read_bytes()
    first.remove()
    assert [kept] == [json.loads(line)["snapshot"] for line in done("list", "--json").splitlines()]
    second = done("import", kept)
    assert json.loads(done("info", second, "--json"))["made"] == json.loads(done("info", kept, "--json"))["made"]
    assert 2 == len(done("list").splitlines())
    done("rm", second, kept)
    assert ("", "") == (done("list", "--kept", "--json"), done("prune", "--days", "0"))
