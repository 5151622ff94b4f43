"""Several users on one pool: turns, quotas, and what changes while jobs run and wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.box import PATIENCE_S, Box
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.pool.quotas import Quota, Quotas
from leeward.daemon.run.report import Report
from leeward.errors import BadRequest, Busy, QueueTimeout
from leeward.spec.job import Job
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Outcome

FOREVER = "import signal\nwhile True: signal.pause()"


class Users:
    """Who sent what, and in which order the answers came."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.answers: list[tuple[int, Report]] = []

    def submit(self, user: int, code: str = "1", *, memory: int = 64 * MIB, patience: float = PATIENCE_S) -> Ticket:
        def done(report: Report) -> None:
            self.answers.append((user, report))
        return self.box.engine.main.pool.submit(Job(code=code.encode(), limits=Limits(memory=memory)), done, patience, user)

    def wait(self, count: int) -> list[int]:
        """Whose answers came, in order."""
        self.box.reactor.run(lambda: len(self.answers) >= count)
        assert count == len(self.answers)
        return [user for user, _ in self.answers]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Box]:
    with Box(pool_size=2, queue_size=4) as box:
        yield box


@pytest.fixture
def users(two_workers: Box) -> Iterator[Users]:
    pool = two_workers.engine.main.pool
    two_workers.reactor.run(lambda: all(worker.free for worker in pool.workforce.workers)
                            and 2 == len(pool.workforce.workers))
    pool.govern(Quotas(), 4)
    users = Users(two_workers)
    yield users
    assert 0 == len(pool.queue)
    assert {} == pool.running


def test_users_take_turns(users: Users) -> None:
    """Who comes last with one job doesn't wait for all of another's; and a full queue makes room."""
    held = [users.submit(1, FOREVER) for _ in range(2)]
    for _ in range(4):
        users.submit(1)
    with pytest.raises(Busy, match="4 requests wait"):
        users.submit(1)
    users.submit(2)
    assert [1] == users.wait(1)
    refusal = users.answers.pop()[1].refusal
    assert isinstance(refusal, Busy)
    assert "4 requests of user 1" in str(refusal)
    held[0].cancel()  # one worker comes free, and has all that wait one after the other

    assert [2, 1, 1, 1] == users.wait(4)  # user 1 has the other worker
    assert all(report.result is not None and Outcome.FINISHED is report.result.outcome for _, report in users.answers)
    held[1].cancel()
    users.box.reactor.run(lambda: not users.box.engine.main.pool.running)


def test_a_quota_leaves_a_worker_for_others(users: Users) -> None:
    """Jobs at once and memory: a free worker waits for who may have it, and a larger quota is taken at once."""
    pool = users.box.engine.main.pool
    pool.govern(Quotas(Quota(jobs=1, memory=256 * MIB), {3: Quota(memory=128 * MIB)}), 4)
    first = users.submit(1, FOREVER)
    second = users.submit(1, FOREVER)
    users.submit(2)
    assert [2] == users.wait(1)
    assert (1, 1) == (len(pool.running), len(pool.queue))
    with pytest.raises(BadRequest, match="quota of user 3"):
        users.submit(3, memory=129 * MIB)
    users.submit(1, patience=0.01)
    assert [2, 1] == users.wait(2)
    refusal = users.answers[1][1].refusal
    assert isinstance(refusal, QueueTimeout)
    assert "user 1 has 1 jobs running" in str(refusal)
    users.box.reactor.run(lambda: any(worker.free for worker in pool.workforce.workers))
    pool.govern(Quotas(), 4)
    assert (2, 0) == (len(pool.running), len(pool.queue))
    first.cancel()
    second.cancel()
    users.box.reactor.run(lambda: not pool.running)


def test_an_end_makes_room_in_a_quota(users: Users) -> None:
    """For the job that waits for it, though a worker was free all the time."""
    users.box.engine.main.pool.govern(Quotas(Quota(memory=100 * MIB)), 4)
    for _ in range(3):
        users.submit(1)

    assert [1, 1, 1] == users.wait(3)
    assert all(report.result is not None for _, report in users.answers)
