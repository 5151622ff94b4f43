"""Processes that come to the daemon when their parents have died are reaped, whatever has ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

LONG = bool(os.environ.get("LEEWARD_LONG"))
#: Ends of each kind; a pool takes a second to be idle.
CYCLES, POOLS = 100, 100 if LONG else 3


def _children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def _is(pid: int, state: str) -> bool:
    try:
        return f"State:\t{state}" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _zombies(pid: int) -> list[int]:
    return [child for child in _children(pid) if _is(child, "Z")]


def _running(pid: int, word: bytes) -> list[int]:
    """The children whose command line has *word*."""
    found = []
    for child in _children(pid):
        try:
            if word in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
        except OSError:
            continue
    return found


def _census(daemon: LiveDaemon) -> None:
    poll_until(lambda: not _zombies(daemon.process.pid), "a parent is told of its child's end, and nobody else")


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveDaemon]:
    (tmp_path / "d").mkdir(mode=0o700)
    config = tmp_path / "config.toml"
    config.write_text(getattr(request, "param", ""))
    with LiveDaemon(tmp_path / "d", "--pool-size", "2", "--config", str(config)) as made:
        yield made


@pytest.mark.parametrize("daemon", ["pool_idle = 1"], indirect=True)
def test_pools_that_end_when_idle_leave_no_zombie(daemon: LiveDaemon) -> None:
    for number in range(POOLS):
        assert 0 == daemon.run("exec", "--profile", "workdir", "--", "true").returncode
        daemon.logged(lambda rows, ends=number + 1: ends == sum("pool ends" == row.get("event") for row in rows))
    _census(daemon)


def _killed_again_and_again(daemon: LiveDaemon, word: bytes, after: Callable[[], object]) -> None:
    for _ in range(CYCLES):
        poll_until(lambda: _running(daemon.process.pid, word), "the daemon starts it")
        one = _running(daemon.process.pid, word)[0]
        os.kill(one, signal.SIGKILL)
        poll_until(lambda one=one: not os.path.exists(f"/proc/{one}") or _is(one, "Z"), "it isn't our child")
        after()


def test_killed_openers_leave_no_zombie(daemon: LiveDaemon, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()

    def opened() -> None:
        _census(daemon)  # nothing has to happen for that
        with leeward.Sandbox(socket=daemon.socket, workdir=project) as box:
            assert box.id

    _killed_again_and_again(daemon, b"opener", opened)
    _census(daemon)


@pytest.mark.parametrize("daemon", ["fresh_layout = true"], indirect=True)
def test_jobs_with_layouts_of_their_own_leave_no_zombie(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        for _ in range(1000 if LONG else CYCLES):
            assert client.execute("").ok
    _census(daemon)


def test_killed_zygotes_and_keepers_leave_no_zombie(daemon: LiveDaemon) -> None:
    """With all that is below them; jobs are served again."""
    for _ in range(10):
        for child in _children(daemon.process.pid):
            if child not in _running(daemon.process.pid, b"opener"):
                with contextlib.suppress(ProcessLookupError):  # it has ended with one that was killed before it
                    os.kill(child, signal.SIGKILL)
        with daemon.client() as client:
            assert client.execute("", deadline=60).outcome
    _census(daemon)
