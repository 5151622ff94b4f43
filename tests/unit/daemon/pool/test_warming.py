"""The state that an environment's interpreters begin with: who makes it, when, and what becomes of a failure."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest

from leeward._native.memfd import memory_file
from leeward.daemon.pool.begin import WarmCode
from leeward.daemon.pool.warming import Warming
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.run.report import Report
from leeward.daemon.worker.warmth import Warmth
from leeward.errors import LeewardError, SnapshotFailed
from leeward.inside import session
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits
from leeward.spec.outcome import JobError, Outcome, Result

FINE = Report(result=Result(b"", b"", 0, Outcome.FINISHED))


def state() -> KernelState:
    return KernelState(memory_file("state"), 4096, "3.11", {}, ())


class Place:
    """A Warming, and a worker whose live sandbox it gets."""

    def __init__(self) -> None:
        self.made: list[KernelState] = []
        self.failed: list[str] = []
        self.warmth = Warmth()
        self.warming = Warming(Mock(), self.warmth, WarmCode("/setup.py", b"x = 1"), Limits(), self.made.append,
                               self.failed.append)
        self.worker = Mock(outdated=False)
        self.live = self.worker.leasing.open.return_value
        self.lease = Mock()

    def ran(self, report: Report = FINE) -> None:
        """The kernel is there, and has run the code."""
        self.live.kernel.call_args.args[1](self.lease)
        self.lease.run.call_args.args[0].finished(report)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("leeward.daemon.pool.warming.Dump", Mock())
    return Place()


def test_the_first_free_worker_makes_it(place: Place) -> None:
    """Until there is one no runner is armed and no worker has a job; then all do."""
    assert place.warming.claims(place.worker)
    assert (True, True) == (place.warmth.waits, place.warming.works)
    assert place.warming.claims(Mock(outdated=False))
    assert place.live.kernel.call_args.kwargs == {"cold": True}
    place.ran()
    assert b"x = 1" == place.lease.run.call_args.args[0].job.code
    place.warming._dumped(made := state())
    assert ([made], [], made) == (place.made, place.failed, place.warmth.state)
    assert (False, False) == (place.warmth.waits, place.warming.works)
    place.live.end.assert_called_once()
    assert not place.warming.claims(place.worker)


@pytest.mark.parametrize(("report", "why"), [
    (Report(result=Result(b"", b"", 1, Outcome.RAISED, error=JobError("KeyError", "'a'", ""))), "KeyError: 'a'"),
    (Report(result=Result(b"", b"", 3, Outcome.FINISHED)), "it ended with status 3"),
    (Report(result=Result(b"", b"", 1, Outcome.TIMED_OUT)), "timed_out")])
def test_code_that_fails_makes_none(place: Place, report: Report, why: str) -> None:
    place.warming.claims(place.worker)
    place.ran(report)
    place.warming._lost("its sandbox ended")
    assert [why] == place.failed
    assert None is place.warmth.state
    place.live.end.assert_called_once()


def test_a_process_that_cannot_be_taken_makes_none(place: Place) -> None:
    place.warming.claims(place.worker)
    place.ran()
    place.warming._dumped(SnapshotFailed("threads run"))
    assert ["threads run"] == place.failed


def test_no_sandbox_or_a_lost_one_makes_none(place: Place) -> None:
    place.worker.leasing.open.side_effect = LeewardError("it is gone")
    assert place.warming.claims(place.worker)
    other = Place()
    other.warming.claims(other.worker)
    other.warming._lost("it ran out of memory")
    assert (["it is gone"], ["it ran out of memory"]) == (place.failed, other.failed)


def test_another_zygote_makes_another(place: Place) -> None:
    """By a worker of its own; the one before is used meanwhile, stays if that fails, and is closed otherwise."""
    place.warmth.take(before := state())
    place.warming._due = False
    place.warming.renew()
    assert not place.warming.claims(Mock(outdated=True))
    assert place.warming.claims(place.worker)
    assert not place.warmth.waits
    assert not place.warming.claims(Mock(outdated=False))
    place.ran(Report(result=Result(b"", b"", 1, Outcome.TIMED_OUT)))
    assert before is place.warmth.state
    place.warming.renew()
    place.warming.claims(place.worker)
    place.ran()
    place.warming._dumped(after := state())
    assert after is place.warmth.state
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(before.fd)


def test_a_pool_that_ends_has_none(place: Place) -> None:
    place.warming.claims(place.worker)
    place.warmth.take(made := state())
    place.warming.close()
    assert ([], None) == (place.failed, place.warmth.state)
    place.live.end.assert_called_once()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(made.fd)


def told(warmth: Warmth, **how: Any) -> list[int]:
    here, there = Channel.pair()
    warmth.tell(here, **how)
    found = session.received(there.fileno(), 0, 2)
    inodes = [os.fstat(fd).st_ino for fd in found]
    for fd in found:
        os.close(fd)
    here.close()
    there.close()
    return inodes


def test_an_interpreter_is_told_before_it_is_made() -> None:
    """What it begins with; nothing if there is no state, or it begins as everywhere else."""
    warmth = Warmth()
    assert [] == told(warmth)
    made = state()
    memory = Mock(fd=os.open("/dev/null", os.O_RDONLY))
    warmth.take(KernelState(made.fd, made.size, made.python, made.packages, made.lost, memory=memory))
    assert [os.fstat(made.fd).st_ino, os.fstat(memory.fd).st_ino] == told(warmth)
    assert [] == told(warmth, cold=True)
    here, there = Channel.pair()
    assert memory is warmth.tell(here)
    here.close()
    there.close()
    os.close(memory.fd)
    warmth.take(None)
