"""How long a start waits for the groups of dead daemons. Groups and the clock are the test's own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from leeward.errors import KernelRefusal
from leeward.isolation.cgroup import daemon_group
from leeward.isolation.cgroup.hierarchy import Hierarchy

#: Hierarchies of version 1, and no process has such a number.
COUNT, GONE = 5, 2**22 + 5

HOME = f"leeward-{GONE}-1"


class Host:
    """Folders in place of groups. Processes of `stuck` don't end; others do as soon as somebody waits."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.now = place, 0.0
        self.stuck: set[str] = set()
        self.running: dict[str, bool] = {}  # by name, whether it was killed
        monkeypatch.setattr(daemon_group, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(daemon_group, "_await", self._await)
        monkeypatch.setattr(daemon_group, "pidfd_of", lambda pid: -1)
        host = self

        class Group(daemon_group.Group):
            def remove(self) -> bool:
                if host.running.get(self.name) is not None or self.children():
                    return False
                return super().remove()

            def processes(self) -> list[int]:
                return [GONE] if host.running.get(self.name) is not None else []

            def kill(self) -> None:
                if self.name in host.running:
                    host.running[self.name] = True

        monkeypatch.setattr(daemon_group, "Group", Group)

    def add(self, hierarchy: int, *names: str) -> None:
        (self.place / str(hierarchy) / HOME).joinpath(*names).mkdir(parents=True, exist_ok=True)

    def sweep(self) -> int:
        return daemon_group.sweep(Hierarchy(1, frozenset(), str(self.place / str(number)), "") for number in range(COUNT))

    def left(self) -> list[str]:
        return sorted({path.name for path in self.place.rglob("*") if path.is_dir()} - set("01234"))

    def _await(self, pidfds: list[int], seconds: float) -> None:
        ended = [name for name, killed in self.running.items() if killed and name not in self.stuck]
        for name in ended[:1]:
            del self.running[name]
        self.now += 0.001 if ended else seconds


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_everything_of_a_dead_daemon_goes(host: Host) -> None:
    for number in range(COUNT):
        host.add(number, "w0", "w0.1")
        host.add(number, "w1", "w1.1")
    host.running = {"w0.1": False, "w1.1": False}

    assert 1 == host.sweep()
    assert [] == host.left()
    assert host.now < daemon_group._PATIENCE_S / 10


def test_what_cannot_be_killed_costs_a_start_its_time_once(host: Host) -> None:
    """
    Not for each hierarchy, and each group around it; what can be killed goes all the same, also where its turn comes
    later.
    """
    for number in range(COUNT):
        host.add(number, "w0", "w0.1")
        host.add(number, "w1", "w1.1")
        host.add(number, "a9", "a9.1")
    host.running = {"w0.1": False, "w1.1": False, "a9.1": False}
    host.stuck = {"w0.1"}

    assert 1 == host.sweep()
    assert [HOME, "w0", "w0.1"] == host.left()
    assert host.now <= daemon_group._PATIENCE_S + 0.1

    host.stuck.clear()
    assert 1 == host.sweep()
    assert [] == host.left()


def test_a_group_that_refuses_is_in_no_others_way(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.add(0, "w0")
    host.add(0, "w1")
    real = daemon_group.Group.at

    def at(path: str) -> daemon_group.Group:
        if path.endswith("w0"):
            raise KernelRefusal("open", path, 13)
        return real(path)

    monkeypatch.setattr(daemon_group.Group, "at", at)
    host.sweep()

    assert [HOME, "w0"] == host.left()
    assert host.now <= daemon_group._PATIENCE_S


@pytest.mark.parametrize("removes", [False, True])
def test_a_home_that_a_sweep_takes_before_it_is_locked_is_made_anew(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                                    removes: bool) -> None:
    """By a daemon of another pid namespace, to which this one's process isn't there."""
    parent, made, sweeps = daemon_group.Group.at(str(host.place)), daemon_group.Group.make, list[int]()

    def taken(self: daemon_group.Group, name: str) -> daemon_group.Group:
        home = made(self, name)
        if not sweeps:
            sweeps.append(os.open(home.path, os.O_RDONLY | os.O_DIRECTORY))
            fcntl.flock(sweeps[0], fcntl.LOCK_EX)
            if removes:
                os.rmdir(home.path)
                fcntl.flock(sweeps[0], fcntl.LOCK_UN)
        return home

    monkeypatch.setattr(daemon_group.Group, "make", taken)
    home = daemon_group.make(parent)

    assert f"{daemon_group.name()}-1" == home.name
    assert os.path.samestat(os.stat(home.path), os.fstat(home.fd))
    with pytest.raises(BlockingIOError):
        fcntl.flock(os.open(home.path, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX | fcntl.LOCK_NB)
