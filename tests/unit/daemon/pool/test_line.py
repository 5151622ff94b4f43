"""The queue: users in turn, connections of a user in turn, each one's jobs in order, and a full queue that nobody owns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.pool.line import FairQueue


@dataclass(frozen=True)
class Job:
    user: int
    number: int
    connection: int = 0
    take: object = None


def any_of(_: Job) -> bool:
    return True


def emptied(line: FairQueue[Job]) -> list[tuple[int, int]]:
    taken = []
    while (job := line.next(any_of)) is not None:
        assert job is line.take(any_of)
        taken.append((job.user, job.number))
    return taken


def test_users_take_turns() -> None:
    """One who sends many makes only his own wait."""
    line: FairQueue[Job] = FairQueue(100)
    for number in range(5):
        line.add(Job(1, number))
    assert 1 == line.only_user
    line.add(Job(2, 0))
    assert line.only_user is None
    line.add(Job(2, 1))
    line.add(Job(3, 0))

    assert [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3), (1, 4)] == emptied(line)
    assert 0 == len(line)


def test_connections_of_a_user_take_turns() -> None:
    """And have together what their user has: two connections are not two users."""
    line: FairQueue[Job] = FairQueue(100)
    for number in range(4):
        line.add(Job(1, number, connection=7))
    line.add(Job(1, 10, connection=8))
    line.add(Job(2, 0, connection=9))
    line.add(Job(2, 1, connection=9))
    line.add(Job(1, 11, connection=8))

    assert 6 == line.of(1)
    assert [(1, 0), (2, 0), (1, 10), (2, 1), (1, 1), (1, 11), (1, 2), (1, 3)] == emptied(line)


def test_a_job_that_needs_less_does_not_overtake_by_another_connection() -> None:
    line: FairQueue[Job] = FairQueue(100)
    large, small = Job(1, 0, connection=7), Job(1, 1, connection=8)
    line.add(large)
    line.add(small)

    assert line.take(lambda job: job is small) is None
    assert [large, small] == [line.take(any_of), line.take(any_of)]


def test_a_full_queue_belongs_to_no_connection() -> None:
    """Another one of the same user has its share of it."""
    line: FairQueue[Job] = FairQueue(4)
    for number in range(4):
        assert line.add(Job(1, number, connection=7)) is None

    assert (one := Job(1, 4, connection=7)) is line.add(one)
    assert Job(1, 3, connection=7) == line.add(Job(1, 10, connection=8))
    assert Job(1, 2, connection=7) == line.add(Job(1, 11, connection=8))
    assert (third := Job(1, 12, connection=8)) is line.add(third)
    assert Job(1, 1, connection=7) == line.add(Job(2, 0))  # another user comes first
    assert [(1, 0), (2, 0), (1, 10), (1, 11)] == emptied(line)


def test_a_user_over_quota_is_skipped_and_keeps_the_place() -> None:
    """An exhausted quota holds no other user up."""
    line: FairQueue[Job] = FairQueue(100)
    for user in (1, 1, 2):
        line.add(Job(user, line.of(user)))

    assert Job(2, 0) == line.take(lambda job: job.user != 1)
    assert line.take(lambda job: job.user != 1) is None
    assert [(1, 0), (1, 1)] == emptied(line)


def test_put_back_is_next() -> None:
    """A job whose runner was lost comes before all others, even when the queue is full."""
    line: FairQueue[Job] = FairQueue(3)
    for user in (1, 1, 2):
        line.add(Job(user, line.of(user)))
    lost = line.take(any_of)
    assert lost is not None
    line.add(Job(3, 0))
    line.put_back(lost)

    assert 4 == len(line)
    assert lost == line.take(any_of)


def test_a_full_queue_belongs_to_no_user() -> None:
    """A newcomer takes the place of the newest job of who has most; he who has most is refused."""
    line: FairQueue[Job] = FairQueue(4)
    for number in range(4):
        assert line.add(Job(1, number)) is None

    assert (one := Job(1, 4)) is line.add(one)
    assert Job(1, 3) == line.add(Job(2, 0))
    assert Job(1, 2) == line.add(Job(2, 1))
    assert (fifth := Job(2, 2)) is line.add(fifth)  # they have as many now: no pushing out in turn
    assert [(1, 0), (2, 0), (1, 1), (2, 1)] == emptied(line)


def test_a_queue_of_size_zero_takes_no_job() -> None:
    line: FairQueue[Job] = FairQueue(0)

    assert (one := Job(1, 0)) is line.add(one)
    assert 0 == len(line)


def test_a_cancelled_job_is_removed_once() -> None:
    """A cancelled job, once."""
    line: FairQueue[Job] = FairQueue(4)
    line.add(Job(1, 0))

    assert Job(1, 0) in line
    assert [True, False] == [line.remove(Job(1, 0)), line.remove(Job(1, 0))]
    assert Job(1, 0) not in line
    assert line.take(any_of) is None


@given(st.lists(st.one_of(st.tuples(st.integers(0, 4), st.integers(0, 2)), st.none()), max_size=200),
       st.integers(1, 12))
def test_the_queue_is_fair_for_any_order_of_arrival(moves: list[tuple[int, int] | None], size: int) -> None:
    """
    Users add by connections (numbers), workers take (None). No job is lost, doubled or out of order, and between two
    jobs of one user every user that waited then has had one; of one connection, all of the same user's.
    """
    line: FairQueue[Job] = FairQueue(size)
    sent: Counter[tuple[int, int]] = Counter()
    waiting: set[Job] = set()
    had: dict[tuple[int, int], int] = {}
    since: dict[int, set[int]] = {}
    between: dict[tuple[int, int], set[int]] = {}
    for move in moves:
        if move is None:
            job = line.take(any_of)
            assert (job is None) == (not waiting)
            if job is None:
                continue
            waiting.remove(job)
            lane = job.user, job.connection
            assert had.get(lane, -1) < job.number
            had[lane] = job.number
            mine = {other.connection for other in waiting if other.user == job.user}
            assert not between.pop(lane, set()) & mine
            for (user, _), others in between.items():
                if user == job.user:
                    others.discard(job.connection)
            between[lane] = mine - {job.connection}
            assert not since.pop(job.user, set()) & {other.user for other in waiting}
            for others in since.values():
                others.discard(job.user)
            since[job.user] = {other.user for other in waiting} - {job.user}
        else:
            job = Job(move[0], sent[move], move[1])
            sent[move] += 1
            loser = line.add(job)
            waiting |= {job}
            if loser is not None:
                waiting.remove(loser)
        assert waiting == set(line)
        assert len(waiting) == len(line) <= size


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40), st.integers(0, 3), st.integers(0, 2))
def test_the_number_of_earlier_jobs_is_estimated_from_above(lanes: list[tuple[int, int]], user: int,
                                                            connection: int) -> None:
    """
    Never less than the number that is served before, and more by one for each other connection at most: those whose
    turn is over.
    """
    line: FairQueue[Job] = FairQueue(100)
    for number, lane in enumerate(lanes):
        line.add(Job(lane[0], number, lane[1]))
    told = line.before(user, connection, any_of)
    own = Job(user, 1000, connection)
    line.add(own)
    served = 0
    while line.take(any_of) is not own:
        served += 1

    assert served <= told
    assert told - served <= len(set(lanes))


def test_jobs_that_may_not_start_are_not_counted_as_earlier() -> None:
    line: FairQueue[Job] = FairQueue(100)
    for number in range(5):
        line.add(Job(1, number))

    assert 1 == line.before(2, 0, any_of)
    assert 0 == line.before(2, 0, lambda job: job.user != 1)


def test_the_user_with_the_fewest_workers_is_next() -> None:
    """A user of long jobs keeps workers that others then lack."""
    has = Counter({1: 3, 2: 1})
    line: FairQueue[Job] = FairQueue(100, lambda user: has[user])
    for user in (1, 1, 2, 2, 3, 3, 3, 3):
        line.add(Job(user, 0, len(line)))
    taken = []
    while (job := line.take(any_of)) is not None:
        has[job.user] += 1  # and keeps it
        taken.append(job.user)

    assert [3, 2, 3, 2, 3, 1, 3, 1] == taken


def test_no_user_is_skipped_for_ever() -> None:
    """Workers of sessions count too, and are kept for hours."""
    line: FairQueue[Job] = FairQueue(100, lambda user: 3 if 1 == user else 0)
    line.add(Job(1, 0))
    for number in range(40):
        line.add(Job(2, number))
    taken = [user for user, _ in emptied(line)]

    assert 16 == taken.index(1)


def test_the_number_of_earlier_jobs_counts_users_with_fewer_workers() -> None:
    line: FairQueue[Job] = FairQueue(100, lambda user: 3 if 1 == user else 0)
    for number in range(10):
        line.add(Job(2, number))

    assert [4, 10] == [line.before(user, 0, any_of) for user in (1, 2)]
    assert 1 == line.before(3, 0, any_of)


def test_a_connection_whose_next_cannot_start_now_is_passed_over() -> None:
    """And comes first when it can; by what a user may have at all, nobody is overtaken."""
    line: FairQueue[Job] = FairQueue(100)
    for number in range(3):
        line.add(Job(1, number, connection=7))
    line.add(Job(1, 10, connection=8))

    assert Job(1, 10, connection=8) == line.take(any_of, lambda job: job.connection == 8)
    assert line.take(any_of, lambda job: job.connection == 8) is None
    assert line.take(lambda job: job.connection == 8) is None
    assert [(1, 0), (1, 1), (1, 2)] == emptied(line)


def test_no_job_takes_the_place_of_a_session() -> None:
    """They have none among the jobs, so more jobs would wait then than may."""
    line = FairQueue[Job](4)
    takers = [Job(1, number, take="a session") for number in range(9)]
    for one in (*takers, *(Job(1, number, connection=7) for number in range(3)), Job(1, 3)):
        assert line.add(one) is None

    assert Job(1, 2, connection=7) == line.add(Job(2, 0))
    assert Job(1, 1, connection=7) == line.add(Job(1, 10, connection=8))
    assert Job(1, 0, connection=7) == line.add(Job(3, 0))
    assert (last := Job(1, 4)) is line.add(last)
    assert 4 == len(line) - line.takers
    assert {*takers} <= {*line}


def test_those_that_take_a_worker_are_counted() -> None:
    """However they come and go. The size isn't for them: the pool bounds their number."""
    line = FairQueue[Job](1)
    for number in range(3):
        assert line.add(Job(1, number, take=None if number == 1 else "a session")) is None
    assert 2 == line.takers
    assert (second := Job(1, 3)) is line.add(second)
    first = line.take(any_of)
    assert first is not None
    assert 1 == line.takers
    line.put_back(first)
    assert 2 == line.takers
    line.remove(first)
    assert 1 == line.takers
    line.add(Job(2, 1, take="a session"))
    line.clear()
    assert 0 == line.takers
