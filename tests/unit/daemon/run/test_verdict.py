"""What the daemon makes of an end: by a signal, and after the time limit."""

from __future__ import annotations

import signal

import pytest

from leeward.daemon.run.verdict import (
    Fault,
    Stop,
    Verdict,
    ended,
    lost,
    may_be_fault,
    overdue,
    overspent,
    stopped,
    why_killed,
)
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.outcome import EXIT_TIMED_OUT, JobError, Limit, Outcome


@pytest.mark.parametrize(("number", "traced"), [(signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False),
                                                (signal.SIGTERM, False)])
def test_faults_are_the_signals_that_faulthandler_tells_of(number: int, traced: bool) -> None:
    assert traced == may_be_fault(number)
    assert not may_be_fault(number << 8)  # it has exited
    assert may_be_fault(None)


def test_an_error_has_the_text_of_faulthandler() -> None:
    error = ended(signal.SIGABRT, "", killed=None, fault=Fault(b"", "trace", ", in f")).error
    assert JobError("Signalled", "killed by SIGABRT: aborted, in f", "trace") == error
    assert JobError("Signalled", "killed by SIGKILL: killed", "") == ended(signal.SIGKILL, "", killed=None).error


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.RAISED, Outcome.SIGNALLED])
def test_an_end_after_the_limit_is_a_time_out(outcome: Outcome) -> None:
    """With what it told and brought."""
    error = JobError("KeyboardInterrupt", "", "trace")
    got = overdue(Verdict(outcome, 130, error=error, files={"f": b"1"}))
    assert Verdict(Outcome.TIMED_OUT, EXIT_TIMED_OUT, Limit.TIME, error, {"f": b"1"}) == got


@pytest.mark.parametrize("why", [Stop.OUTPUT, Stop.MEMORY, Stop.REPLY, Stop.CANCELLED, Stop.TIME])
def test_an_end_after_the_limit_is_reported_as_it_is(why: Stop) -> None:
    assert stopped(why) == overdue(stopped(why))


@pytest.mark.parametrize(("verdict", "another"), [
    (ended(None, "its keeper is gone", killed=None), True), (stopped(Stop.HOST), True), (stopped(Stop.STARVED), False),
    (stopped(Stop.REPLY), False), (stopped(Stop.BUG, "b"), False), (stopped(Stop.SHUTDOWN), False),
    (stopped(Stop.MEMORY), False), (ended(signal.SIGKILL, "", killed=None), False),
    (ended(signal.SIGKILL, "", killed=Stop.HOST), True), (ended(signal.SIGKILL, "", killed=Stop.MEMORY), False)])
def test_what_another_try_may_not_meet(verdict: Verdict, another: bool) -> None:
    assert another == lost(verdict.outcome, verdict.error)


@pytest.mark.parametrize("why", [Stop.STARVED, Stop.HOST])
def test_what_the_machine_did_blames_no_program(why: Stop) -> None:
    """It has no limit either, although its group counts a process that was killed for memory."""
    verdict = stopped(why)
    assert Outcome.INTERNAL is verdict.outcome
    assert verdict.limit_beside(Usage(), Usage(oom_kills=1), Stop.HOST) is None


@pytest.mark.parametrize(("status", "kills", "hits", "unseen", "why"), [
    (None, 0, 0, None, None), (None, 1, 0, None, Stop.HOST), (None, 1, 1, None, Stop.MEMORY),
    (signal.SIGKILL, 1, 2, None, Stop.MEMORY), (signal.SIGKILL, 1, 0, True, Stop.HOST),  # what a group counts is exact
    (signal.SIGKILL, 0, 0, None, None), (signal.SIGKILL, 0, 0, True, Stop.MEMORY), (signal.SIGKILL, 0, 0, False, Stop.HOST),
    (signal.SIGTERM, 0, 0, False, None), (9 << 8, 0, 0, False, None), (None, 0, 0, True, None)])
def test_for_whose_memory_a_process_was_killed(status: int | None, kills: int, hits: int, unseen: bool | None,
                                               why: Stop | None) -> None:
    """What earlier jobs of the same group met doesn't count."""
    before, after = Usage(oom_kills=3, limit_hits=2), Usage(oom_kills=3 + kills, limit_hits=2 + hits)
    assert why is why_killed(status, before, after, lambda: unseen)


def test_processor_time_beyond_the_limit_is_an_end_by_it() -> None:
    """Where the daemon was too late to end it; other ends stay."""
    assert Verdict(Outcome.TIMED_OUT, EXIT_TIMED_OUT, Limit.CPU) == overspent(Verdict(Outcome.FINISHED, 0))
    assert stopped(Stop.MEMORY) == overspent(stopped(Stop.MEMORY))
