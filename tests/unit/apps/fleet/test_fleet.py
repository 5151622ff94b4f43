"""The blocking fleet: calls of its program's threads, in the loop of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.fake_daemon import FakeDaemon
from leeward.apps.fleet.fleet import Fleet
from leeward.errors import RequestRejected

STATUS = {"workers": {"busy": 0}, "queued": 0, "sandboxes": 0, "sessions": 0, "max_sessions": 9}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    found = FakeDaemon(tmp_path / "d", pool_size=2)
    found.status = STATUS
    with found:
        yield found


@pytest.fixture
def fleet(daemon: FakeDaemon) -> Iterator[Fleet]:
    with Fleet([f"unix:{daemon.path}"]) as found:
        yield found


def test_threads_share_it(fleet: Fleet):
    with ThreadPoolExecutor(8) as threads:
        assert [b"%d" % number for number in range(40)] == [
            result.stdout for result in threads.map(fleet.execute, (b"%d" % number for number in range(40)))]


def test_a_source_of_jobs_may_use_the_fleet(fleet: Fleet):
    """It is read in a thread of its own."""
    def jobs() -> Iterator[str]:
        for number in range(5):
            yield fleet.execute(str(number)).text + "!"

    assert [f"{number}!" for number in range(5)] == [result.text for _, result in fleet.execute_many(jobs(), in_order=True)]


def test_what_is_told_of_progress_may_not(fleet: Fleet):
    """It would wait for itself."""
    wrong: list[str] = []

    def told(done: int) -> None:
        try:
            fleet.status()
        except RequestRejected as error:
            wrong.append(str(error))

    assert 1 == len(list(fleet.execute_many(["1"], on_progress=told)))
    assert ["a function that is told what arrives can't wait for the fleet, which waits for it"] == wrong


def test_many_jobs_that_are_left_are_cancelled(daemon: FakeDaemon, fleet: Fleet):
    """A loop that is left early."""
    for _ in fleet.execute_many(map(str, range(10_000))):
        break

    assert daemon.jobs.qsize() < 100
    assert b"x" == fleet.execute("x").stdout


def test_after_a_fork_it_is_refused(fleet: Fleet):
    fleet.execute("1")
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            fleet.execute("2")
        except RequestRejected as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        assert b"this fleet is the parent process's; after a fork the child needs one of its own" == pipe.read()
    os.waitpid(pid, 0)


def test_a_fleet_that_was_closed_is_over(daemon: FakeDaemon):
    """Calls that wait end, and none begins."""
    daemon.answer = lambda job: None
    fleet = Fleet([f"unix:{daemon.path}"])
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            fleet.execute("1")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    daemon.jobs.get(timeout=10)
    fleet.close()
    thread.join(10)
    fleet.close()

    assert 1 == len(ended)
    with pytest.raises(RequestRejected, match="was closed"):
        fleet.execute("1")
