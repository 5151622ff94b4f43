"""Quotas: who has which, and what they let through."""

from __future__ import annotations

import pytest

from leeward.daemon.pool.quotas import NONE, Book, Ledger, Quota, Quotas
from leeward.errors import BadRequest, Busy

MIB = 1 << 20
GUESTS = Quotas(Quota(jobs=2, memory=512 * MIB), {7: Quota(jobs=1), 1000: Quota(rate=1.0)}, exempt=(0, 1000))


@pytest.mark.parametrize(("user", "quota"), [
    (5, GUESTS.others), (7, Quota(jobs=1)), (0, NONE), (1000, Quota(rate=1.0)),
])
def test_quotas_are_resolved_by_user(user: int, quota: Quota) -> None:
    """A user's own; else the others', which root and the daemon's user don't have."""
    assert quota == GUESTS.of(user)


def test_jobs_and_memory_at_once() -> None:
    """What is full for one user is free for another, and free again after an end."""
    ledger = Ledger(GUESTS)
    may = [ledger.may_start(5, 300 * MIB)]
    ledger.start(5, 300 * MIB)
    may += [ledger.may_start(5, 300 * MIB), ledger.may_start(5, 212 * MIB), ledger.may_start(6, 300 * MIB)]
    ledger.start(5, MIB)
    may += [ledger.may_start(5, MIB), ledger.may_start(0, 1 << 40)]
    ledger.end(5, 300 * MIB)
    may += [ledger.may_start(5, 300 * MIB)]

    assert [True, False, True, True, False, True, True] == may
    assert (1, 0) == (ledger.running(5), ledger.running(6))


def test_a_job_that_could_never_run_is_refused() -> None:
    """It would wait for ever."""
    ledger = Ledger(GUESTS)
    ledger.admit(5, 512 * MIB, 0.0)
    with pytest.raises(BadRequest, match="quota of user 5, 512MiB"):
        ledger.admit(5, 512 * MIB + 1, 0.0)


def admitted(ledger: Ledger, user: int, times: list[float]) -> list[bool]:
    got = []
    for now in times:
        try:
            ledger.admit(user, MIB, now)
        except Busy:
            got.append(False)
        else:
            got.append(True)
    return got


def test_a_rate_allows_a_seconds_worth_at_once() -> None:
    """A second's worth at once, and then as it comes in; a refusal costs nothing."""
    ledger = Ledger(Quotas(Quota(rate=2.0)))

    assert [True, True, False, False, True, False, True, True, False] == admitted(
        ledger, 5, [10.0, 10.0, 10.0, 10.4, 10.5, 10.6, 11.0, 99.0 - 97.0 + 9.5, 11.6])
    assert [True] == admitted(ledger, 6, [11.6])


def test_a_rate_below_one() -> None:
    """One job may always come first."""
    assert [True, False, False, True] == admitted(Ledger(Quotas(Quota(rate=0.1))), 5, [0.0, 5.0, 9.9, 10.0])


def test_the_refusal_says_when() -> None:
    ledger = Ledger(Quotas(Quota(rate=0.5)))
    ledger.admit(5, MIB, 0.0)
    with pytest.raises(Busy, match=r"user 5 may send 0.5 jobs a second; the next one in 1.500 s"):
        ledger.admit(5, MIB, 0.5)


def test_forgetting_gives_no_rate_back() -> None:
    """Accounts of users who have nothing running are dropped, those with a rate are not."""
    ledger = Ledger(Quotas(Quota(), {5: Quota(rate=0.001)}))
    ledger.admit(5, MIB, 0.0)
    for user in range(1000, 3000):
        ledger.start(user, MIB)
        ledger.end(user, MIB)

    assert [False] == admitted(ledger, 5, [1.0])
    assert len(ledger._accounts) < 600


SERVICE = Quotas(Quota(), {7: Quota(jobs=9)}, exempt=(0, 1000), reserve=1)


def starts(ledger: Ledger, user: int, most: int = 20, lasting: bool = False) -> int:
    """How many jobs *user* may start in a row, and does."""
    for count in range(most):
        if not ledger.may_start(user, MIB, lasting):
            return count
        ledger.start(user, MIB)
    return most


@pytest.mark.parametrize(("workers", "shares"), [
    (8, [6, 1, 0]), (4, [2, 1, 0]), (3, [1, 1, 0]), (2, [1, 0, 0]),
])
def test_guests_leave_workers_to_each_other_and_one_to_the_owner(workers: int, shares: list[int]) -> None:
    """Whoever comes first; root and the owner may have all."""
    ledger = Ledger(SERVICE, lambda more: workers)

    assert shares == [starts(ledger, user) for user in (5, 6, 8)]
    assert [20, 20] == [starts(ledger, user) for user in (0, 1000)]
    ledger.end(5, MIB)
    assert 1 == starts(ledger, 8, 1)


def test_a_quota_by_the_operator_is_the_share_but_for_the_owners() -> None:
    ledger = Ledger(SERVICE, lambda more: 4)

    assert 3 == starts(ledger, 7)
    assert not ledger.may_start(5, MIB)
    assert ledger.may_start(1000, MIB)


def test_without_guests_one_user_may_have_all_workers() -> None:
    ledger = Ledger(Quotas(exempt=(0, 1000)), lambda more: 4)

    assert 20 == starts(ledger, 5)


def test_a_session_counts_the_worker_that_is_made_for_it() -> None:
    """Else a guest could have no more of them than there are workers for jobs."""
    held = 0
    ledger = Ledger(SERVICE, lambda more: 4 + max(0, held + more - 2))
    for _ in range(10):
        assert ledger.may_start(5, MIB, lasting=True)
        ledger.start(5, MIB)
        held += 1
    assert not ledger.may_start(5, MIB)


def test_all_pools_hear_which_connection_is_closed() -> None:
    """Whichever of them was asked; none that is no more."""
    book = Book()
    first, second, third = (Ledger(book=book) for _ in range(3))
    heard: list[tuple[str, int]] = []
    for name, ledger in (("first", first), ("second", second), ("third", third)):
        ledger.forget_connection = lambda connection, name=name: heard.append((name, connection))  # type: ignore[misc]
    third.close()
    first.connection_closed(5)

    assert [("first", 5), ("second", 5)] == heard


def test_a_user_is_alone_while_nothing_of_others_runs_in_any_pool() -> None:
    book = Book()
    first, second = (Ledger(book=book) for _ in range(2))
    first.start(5, MIB)
    assert [True, True, False] == [first.alone(5), second.alone(5), second.alone(6)]
    second.start(6, MIB)
    assert not first.alone(5)
    second.end(6, MIB)
    assert first.alone(5)


def test_guests_leave_workers_to_others() -> None:
    """One to the owner, and each one more to another guest; the owner leaves none."""
    ledger = Ledger(Quotas(exempt=(0, 1000), reserve=1))
    ledger.start(5, MIB)
    left = [ledger.leaves_others(user, 4) for user in (5, 6, 1000)]
    ledger.start(5, MIB)
    left += [ledger.leaves_others(user, 4) for user in (5, 6, 1000)]
    ledger.start(6, MIB)
    left += [ledger.leaves_others(user, 4) for user in (6, 7, 1000)] + [ledger.leaves_others(7, 9)]

    assert [True, True, True, False, True, True, False, False, True, True] == left


@pytest.mark.parametrize(("user", "own", "left", "bound", "fits"), [
    (7, 5, 5, 0, True), (7, 5, 4, 0, False), (7, 5, 0, 5, True), (7, 6, 100, 5, False), (0, 5, 0, 0, True),
    (0, 6, 9, 5, False)])
def test_what_users_share_leaves_room_for_the_next_one(user: int, own: int, left: int, bound: int, fits: bool) -> None:
    assert fits == Quotas(exempt=(0,)).leaves(user, own, left, bound)
