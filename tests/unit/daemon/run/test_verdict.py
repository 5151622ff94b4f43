"""What the daemon makes of an end: by a signal, and after the time limit."""

from __future__ import annotations

import signal

import pytest

from leeward.daemon.run.verdict import Fault, Stop, Verdict, ended, may_be_fault, overdue, stopped
from leeward.spec.outcome import EXIT_TIMED_OUT, JobError, Limit, Outcome


@pytest.mark.parametrize(("number", "traced"), [(signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False),
                                                (signal.SIGTERM, False)])
def test_faults_are_the_signals_that_faulthandler_tells_of(number: int, traced: bool) -> None:
    assert traced == may_be_fault(number)
    assert not may_be_fault(number << 8)  # it has exited
    assert may_be_fault(None)


def test_an_error_has_the_text_of_faulthandler() -> None:
    error = ended(signal.SIGABRT, "", oom=False, fault=Fault(b"", "trace", ", in f")).error
    assert JobError("Signalled", "killed by SIGABRT: aborted, in f", "trace") == error
    assert JobError("Signalled", "killed by SIGKILL: killed", "") == ended(signal.SIGKILL, "", oom=False).error


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.RAISED, Outcome.SIGNALLED])
def test_an_end_after_the_limit_is_a_time_out(outcome: Outcome) -> None:
    """With what it told and brought."""
    error = JobError("KeyboardInterrupt", "", "trace")
    got = overdue(Verdict(outcome, 130, error=error, files={"f": b"1"}))
    assert Verdict(Outcome.TIMED_OUT, EXIT_TIMED_OUT, Limit.TIME, error, {"f": b"1"}) == got


@pytest.mark.parametrize("why", [Stop.OUTPUT, Stop.MEMORY, Stop.REPLY, Stop.CANCELLED, Stop.TIME])
def test_an_end_after_the_limit_is_reported_as_it_is(why: Stop) -> None:
    assert stopped(why) == overdue(stopped(why))
