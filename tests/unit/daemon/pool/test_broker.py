"""
The broker, seen from the daemon: what it is told, in which order, and what happens when it dies, says nonsense or is
stuck.

The process is a socket here, whose other end the test has.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock

import pytest

from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool import broker
from leeward.daemon.pool.asks import AskBook
from leeward.daemon.pool.broker import BrokerConnection
from leeward.daemon.pool.egress_record import EgressRecord
from leeward.isolation.egress_route import EgressPlan
from leeward.wire import egress_control as control
from leeward.wire.egress_control import Begin, Cleared, Decided, Gone, Leased, Message, Over, Stand

PLAN = EgressPlan((53, 3128, 80), (b"route",))
POLICY: dict[str, object] = {"allow": ["example.org"]}
FIRST = Begin([], b"", [], [])


class Far:
    """The brokers that were started: the other end of each one's channel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[socket.socket] = []
        monkeypatch.setattr(broker, "start", self._start)

    def _start(self) -> tuple[Mock, socket.socket]:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        there.setblocking(False)
        self.ends.append(there)
        return Mock(pid=100 + len(self.ends)), here

    def heard(self) -> list[tuple[Message, int]]:
        """What the last one was sent, with the number of descriptors."""
        got: list[tuple[Message, int]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.ends[-1], control.MAX_MESSAGE, control.MAX_FDS)
            except BlockingIOError:
                return got
            for fd in fds:
                os.close(fd)
            got.append((control.decode(data), len(fds)))

    def says(self, data: bytes) -> None:
        self.ends[-1].send(data)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    made = Far(monkeypatch)
    yield made
    for end in made.ends:
        end.close()


@pytest.fixture
def rows() -> list[Decided]:
    return []


@pytest.fixture
def seen(reactor: Reactor, far: Far, rows: list[Decided]) -> Iterator[BrokerConnection]:
    made = BrokerConnection(reactor, Mock(), lambda: FIRST, rows.append, AskBook(reactor, EgressRecord()))
    yield made
    made.close()


def _there_are(far: Far, count: int) -> bool:
    return len(far.ends) >= count


def listeners() -> list[int]:
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(PLAN.listeners)]


@pytest.fixture
def fds() -> Iterator[list[int]]:
    made = listeners()
    yield made
    for fd in made:
        os.close(fd)


def test_the_broker_is_started_when_it_is_needed(seen: BrokerConnection, far: Far, fds: list[int]) -> None:
    """Then it is told its settings, before any other message."""
    assert (-1, []) == (seen.pid, far.ends)

    seen.stand("worker", PLAN, fds)
    seen.lease("worker", 7, POLICY)
    (first, _), (stand, count), (lease, _) = far.heard()
    assert FIRST == first
    assert (Stand(1, [53, 3128, 80], 1), 4) == (stand, count)
    assert isinstance(lease, Leased)
    assert (1, 7, POLICY, 32) == (lease.place, lease.lease, lease.policy, len(lease.key))


def test_the_end_of_a_lease_is_reported_once(seen: BrokerConnection, far: Far, fds: list[int]) -> None:
    seen.stand("worker", PLAN, fds)
    seen.lease("worker", 7, POLICY)
    far.heard()
    for _ in range(2):
        seen.over("worker", lambda: None)
    seen.gone("worker")
    seen.gone("worker")

    assert [Over(1), Gone(1)] == [message for message, _ in far.heard()]


def test_the_next_lease_waits_for_the_end_of_the_one_before(seen: BrokerConnection, far: Far, reactor: Reactor,
                                                            fds: list[int]) -> None:
    """
    What a job connects early would be taken for what the job before has left, and be reset. Each end is told once, also
    where the broker that was told of it has died.
    """
    seen.stand("worker", PLAN, fds)
    told: list[int] = []
    assert seen.over("worker", lambda: told.append(0))  # there was none
    for number in (1, 2):
        seen.lease("worker", 6 + number, POLICY)
        assert not seen.over("worker", partial(told.append, number))
        if 2 == number:
            far.ends[-1].close()
            reactor.run(lambda: len(far.ends) > 1)
        assert [Over(1)] == [message for message, _ in far.heard() if isinstance(message, Over)]
        for _ in range(2):
            far.says(control.encode(Cleared(1)))
        reactor.run(partial(told.__contains__, number))
    assert [1, 2] == told


def test_a_broker_that_clears_no_lease_is_ended(seen: BrokerConnection, far: Far, reactor: Reactor, fds: list[int],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its worker would stay unusable."""
    monkeypatch.setattr(broker, "STUCK_S", 0.01)
    seen.stand("worker", PLAN, fds)
    seen.lease("worker", 7, POLICY)
    seen.over("worker", lambda: None)
    reactor.run(partial(_there_are, far, 2))


def test_the_next_broker_has_the_same_time_to_clear_a_lease(seen: BrokerConnection, far: Far, reactor: Reactor,
                                                            fds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The same time as the one before, and no less: else brokers would be ended one after the other where many workers
    wait.
    """
    monkeypatch.setattr(broker, "STUCK_S", 0.01)
    late: list[int] = []
    reactor.after(10.0, partial(late.append, 0))
    seen.stand("worker", PLAN, fds)
    seen.lease("worker", 7, POLICY)
    seen.over("worker", lambda: None)
    reactor.run(lambda: len(far.ends) > 2 or bool(late))
    assert not late

    monkeypatch.setattr(broker, "STUCK_S", 60.0)
    reactor.run(lambda: len(far.ends) > 3 or bool(late))
    seen._check_cleared(seen._places["worker"], 1, 3)  # of the one before
    assert seen.stands
    seen._check_cleared(seen._places["worker"], 1, 4)
    assert not seen.stands


def test_a_new_broker_gets_all_standing_leases(seen: BrokerConnection, far: Far, reactor: Reactor, fds: list[int]) -> None:
    """
    With the same key, so that names keep their addresses; of what is gone it hears nothing. Of what is over something
    may still be in the listeners' queues.
    """
    seen.stand("first", PLAN, fds)
    seen.stand("second", PLAN, fds)
    seen.stand("third", PLAN, fds)
    for worker, runner in (("first", 7), ("second", 8)):
        seen.lease(worker, runner, POLICY)
    before = [message for message, _ in far.heard() if isinstance(message, Leased)]
    seen.over("second", lambda: None)
    seen.gone("third")
    far.ends[-1].close()
    reactor.run(lambda: len(far.ends) > 1)

    after = [message for message, _ in far.heard()]
    assert [FIRST, Stand(1, [53, 3128, 80], 1), before[0], Stand(2, [53, 3128, 80], 1), Over(2)] == after


def test_an_unneeded_broker_is_not_restarted(seen: BrokerConnection, far: Far, reactor: Reactor, fds: list[int]) -> None:
    seen.stand("worker", PLAN, fds)
    seen.gone("worker")
    far.ends[-1].close()
    reactor.run(lambda: not seen.stands)

    assert -1 == seen.pid
    seen.stand("another", PLAN, fds)
    reactor.run(lambda: len(far.ends) > 1)


def test_rows_are_taken_and_nonsense_ends_it(seen: BrokerConnection, far: Far, reactor: Reactor, rows: list[Decided],
                                             fds: list[int]) -> None:
    """A broker that says what it can't say is another's program."""
    row = Decided(1.0, 7, 1, "example.org", "1.2.3.4", 443, "allowed")
    seen.stand("worker", PLAN, fds)
    far.says(control.encode(row))
    reactor.run(lambda: bool(rows))
    assert [row] == rows

    for count, nonsense in enumerate((b"nonsense", control.encode(Gone(1))), start=2):
        far.says(nonsense)
        reactor.run(partial(_there_are, far, count))
    assert [row] == rows


def test_a_broker_that_does_not_read_does_not_block_the_daemon(seen: BrokerConnection, far: Far, reactor: Reactor,
                                                               fds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Messages that its channel doesn't take are queued, and sent in order when it does; and it is replaced if it never
    does.
    """
    many: dict[str, object] = {"allow": ["x" * 1000] * 100}
    seen.stand("worker", PLAN, fds)
    for number in range(10):
        seen.lease("worker", number, many)
    seen.stand("late", PLAN, fds)
    assert seen._sender is not None
    assert seen._sender._waiting

    got: list[Message] = []
    while len(got) < 13:
        got += [message for message, _ in far.heard()]
        reactor.turn(0.0)
    assert list(range(10)) == [message.lease for message in got if isinstance(message, Leased)]
    assert Stand(2, [53, 3128, 80], 1) == got[-1]
    assert not seen._sender._waiting

    monkeypatch.setattr(seen._sender, "_stuck_s", 0.01)
    for number in range(10):
        seen.lease("worker", number, many)
    reactor.run(lambda: len(far.ends) > 1)
