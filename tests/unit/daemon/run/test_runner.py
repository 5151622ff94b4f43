"""What a runner holds, and when it lets go of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from kit.waiting import poll_until
from leeward.daemon.run.runner import Runner, is_runnable
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits
from leeward.wire import job_frames


class Denials:
    def add(self, listener: int, job: int, *, checking: bool = False, of: int = 0) -> None:
        os.close(listener)

    def remove(self, job: int) -> dict[str, int]:
        return {}


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_killed_runner_has_its_namespaces_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Their descriptors are closed before the signal goes out: the last one would have the daemon take a mount namespace
    apart.
    """
    here, there = Channel.pair()
    denials: Any = Denials()
    leaf: Any = None
    runner = Runner(1, leaf, here, denials, lambda: 0, Limits().descriptors)
    entrances = tuple(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(3))
    runner.listen(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), entrances=entrances)
    runner.pidfd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    seen: list[tuple[int, list[bool]]] = []
    monkeypatch.setattr(signal, "pidfd_send_signal",
                        lambda _fd, number: seen.append((number, [is_open(fd) for fd in entrances])))

    runner.kill()
    runner.kill()  # harmless
    runner.dispose()
    there.close()

    assert [(signal.SIGKILL, [False] * 3)] * 2 == seen
    assert () == runner.entrances


class RestingLeaf:
    rested = 0

    def rest(self) -> None:
        self.rested += 1


def test_a_runner_at_rest_gives_up_its_pipes() -> None:
    """Its first process is told so before. It keeps its pidfd and its entrances, with which processes are put beside it."""
    here, there = Channel.pair()
    denials: Any = Denials()
    leaf: Any = RestingLeaf()
    runner = Runner(1, leaf, here, denials, lambda: 0, Limits().descriptors)
    runner.listen(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), entrances=(os.open("/dev/null", os.O_RDONLY),))
    theirs, job = os.pipe2(os.O_CLOEXEC)
    fds = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), job,
           *(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(3))]
    runner.take(1, list(fds))
    for _ in range(2):
        runner.rest()
    assert [True, False, False, False, False] == [is_open(fd) for fd in fds]
    assert job_frames.PARK == os.read(theirs, 100)
    assert b"" == os.read(theirs, 100)
    assert is_open(runner.entrances[0])
    assert 2 == leaf.rested

    runner.dispose()
    there.close()
    os.close(theirs)
    assert not any(is_open(fd) for fd in fds)


def test_a_runner_that_has_ended_rests_as_well() -> None:
    """What its end means is its init's to tell."""
    denials: Any = Denials()
    leaf: Any = RestingLeaf()
    here, there = Channel.pair()
    runner = Runner(1, leaf, here, denials, lambda: 0, Limits().descriptors)
    theirs, job = os.pipe2(os.O_CLOEXEC)
    os.close(theirs)
    runner.take(1, [os.open("/dev/null", os.O_RDONLY), job, *(os.open("/dev/null", os.O_RDONLY) for _ in range(3))])
    runner.rest()
    assert not is_open(job)
    runner.dispose()
    there.close()


def test_a_task_runs_or_waits() -> None:
    """By its state; a name that looks like one is none."""
    sleeps = subprocess.Popen([sys.executable, "-c", ("import ctypes, sys; ctypes.CDLL(None).prctl(15, b'x) R 1');"
                               " sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sleeps.stdout is not None
    sleeps.stdout.read(1)
    try:
        poll_until(lambda: not is_runnable(sleeps.pid), "no event reports that a task sleeps")
        assert is_runnable(os.getpid())
    finally:
        sleeps.communicate()
    with pytest.raises(OSError, match=str(sleeps.pid)):
        is_runnable(sleeps.pid)
