"""What follows when a node didn't answer."""

from __future__ import annotations

import pytest

from leeward.apps.fleet.failure import JOB, OPEN, AttemptEnd, Attempts, Then, ending_of
from leeward.errors import (
    BadReply,
    Busy,
    DaemonAway,
    DaemonError,
    NoAnswer,
    QueueTimeout,
    RequestRejected,
    ShuttingDown,
)


def test_the_tables_are_complete():
    refusals = {(ending, may, twice) for ending in AttemptEnd for may in (False, True) for twice in (False, True)
                if not may or ending in (AttemptEnd.LOST, AttemptEnd.REFUSED)}

    assert refusals == set(JOB)
    assert set(AttemptEnd) == set(OPEN)
    assert all(why for _, why in (*JOB.values(), *OPEN.values()))


def test_what_may_have_run_runs_again_only_by_leave():
    again = {Then.NEXT, Then.ELSEWHERE}

    assert [(AttemptEnd.LOST, True, True)] == [row for row, (then, _) in JOB.items() if row[1] and then in again]
    assert not again & {then for then, _ in OPEN.values()}


@pytest.mark.parametrize(("error", "lost", "ending"), [
    (Busy("full"), False, AttemptEnd.BUSY),
    (QueueTimeout("full"), False, AttemptEnd.BUSY),
    (ShuttingDown("stops"), False, AttemptEnd.STOPPING),
    (DaemonAway("gone"), False, AttemptEnd.LOST),
    (NoAnswer("the caller's deadline"), False, AttemptEnd.REFUSED),
    (NoAnswer("silent"), True, AttemptEnd.LOST),
    (RequestRejected("no"), False, AttemptEnd.REFUSED),
    (BadReply("no"), False, AttemptEnd.REFUSED),
])
def test_errors_are_endings(error: DaemonError, lost: bool, ending: AttemptEnd):
    assert ending is ending_of(error, lost)


def test_busy_tries_one_node_after_the_other():
    attempts = Attempts(idempotent=False)

    assert [Then.NEXT] * 5 == [attempts.then(f"n{number}", AttemptEnd.BUSY, False) for number in range(5)]
    assert {"n0", "n1", "n2", "n3", "n4"} == attempts.avoid
    assert not attempts.may_have_run


@pytest.mark.parametrize(("idempotent", "may_have_run"), [(False, False), (True, False), (True, True)])
def test_a_loss_is_followed_by_one_more_run(idempotent: bool, may_have_run: bool):
    attempts = Attempts(idempotent)

    assert Then.ELSEWHERE is attempts.then("a", AttemptEnd.LOST, may_have_run)
    assert Then.NODE_LOST is attempts.then("b", AttemptEnd.LOST, may_have_run)
    assert may_have_run == attempts.may_have_run


def test_a_loss_that_may_have_run_ends_it():
    attempts = Attempts(idempotent=False)

    assert Then.NODE_LOST is attempts.then("a", AttemptEnd.LOST, True)
    assert attempts.may_have_run


def test_what_may_have_run_stays_so_after_a_refusal_elsewhere():
    attempts = Attempts(idempotent=True)
    attempts.then("a", AttemptEnd.LOST, True)

    assert Then.NEXT is attempts.then("b", AttemptEnd.BUSY, False)
    assert attempts.may_have_run


def test_other_errors_are_the_callers():
    assert Then.RAISE is Attempts(idempotent=True).then("a", AttemptEnd.REFUSED, False)
