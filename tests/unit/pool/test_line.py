"""
The queue: users in turn, each user's jobs in order, and a full queue that nobody owns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from leeward.pool.line import Line


@dataclass(frozen=True)
class Job:
    user: int
    number: int


def any_of(_: Job) -> bool:
    return True


def emptied(line: Line[Job]) -> list[tuple[int, int]]:
    taken = []
    while (job := line.take(any_of)) is not None:
        taken.append((job.user, job.number))
    return taken


def test_users_take_turns() -> None:
    """
    One who sends many makes only his own wait.
    """
    line: Line[Job] = Line(100)
    for number in range(5):
        line.add(Job(1, number))
    line.add(Job(2, 0))
    line.add(Job(2, 1))
    line.add(Job(3, 0))

    assert [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3), (1, 4)] == emptied(line)
    assert 0 == len(line)


def test_who_may_not_is_passed_over_and_keeps_his_place() -> None:
    """
    A quota that is used up holds nobody else.
    """
    line: Line[Job] = Line(100)
    for user in (1, 1, 2):
        line.add(Job(user, line.of(user)))

    assert Job(2, 0) == line.take(lambda job: job.user != 1)
    assert line.take(lambda job: job.user != 1) is None
    assert [(1, 0), (1, 1)] == emptied(line)


def test_put_back_is_next() -> None:
    """
    A job whose runner was lost comes before all others, even when the queue is full.
    """
    line: Line[Job] = Line(3)
    for user in (1, 1, 2):
        line.add(Job(user, line.of(user)))
    lost = line.take(any_of)
    assert lost is not None
    line.add(Job(3, 0))
    line.put_back(lost)

    assert 4 == len(line)
    assert lost == line.take(any_of)


def test_a_full_queue_belongs_to_nobody() -> None:
    """
    A newcomer takes the place of the newest job of who has most; he who has most is refused.
    """
    line: Line[Job] = Line(4)
    for number in range(4):
        assert line.add(Job(1, number)) is None

    assert (one := Job(1, 4)) is line.add(one)
    assert Job(1, 3) == line.add(Job(2, 0))
    assert Job(1, 2) == line.add(Job(2, 1))
    assert (fifth := Job(2, 2)) is line.add(fifth)  # they have as many now: no pushing out in turn
    assert [(1, 0), (2, 0), (1, 1), (2, 1)] == emptied(line)


def test_a_queue_of_no_size_takes_nobody() -> None:
    line: Line[Job] = Line(0)

    assert (one := Job(1, 0)) is line.add(one)
    assert 0 == len(line)


def test_removing() -> None:
    """
    A cancelled job, once.
    """
    line: Line[Job] = Line(4)
    line.add(Job(1, 0))

    assert Job(1, 0) in line
    assert [True, False] == [line.remove(Job(1, 0)), line.remove(Job(1, 0))]
    assert Job(1, 0) not in line
    assert line.take(any_of) is None


@given(st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=200), st.integers(1, 12))
def test_whatever_comes(moves: list[int | None], size: int) -> None:
    """
    Users add (a number), workers take (None). Nobody is lost, doubled or out of order, and between two jobs of one
    user everybody who waited then has had one.
    """
    line: Line[Job] = Line(size)
    sent: Counter[int] = Counter()
    waiting: set[Job] = set()
    had: dict[int, int] = {}
    since: dict[int, set[int]] = {}
    for user in moves:
        if user is None:
            job = line.take(any_of)
            assert (job is None) == (not waiting)
            if job is None:
                continue
            waiting.remove(job)
            assert had.get(job.user, -1) < job.number
            had[job.user] = job.number
            assert not since.pop(job.user, set()) & {other.user for other in waiting}
            for others in since.values():
                others.discard(job.user)
            since[job.user] = {other.user for other in waiting} - {job.user}
        else:
            job = Job(user, sent[user])
            sent[user] += 1
            loser = line.add(job)
            waiting |= {job}
            if loser is not None:
                waiting.remove(loser)
        assert waiting == set(line)
        assert len(waiting) == len(line) <= size
