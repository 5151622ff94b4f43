"""
A guest's flood of requests that cost no quota, and slow clients: what another request waits for, in turns of the loop
and callbacks, which are counted.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kit import reactors
from kit.fault_layer import Layer
from leeward.daemon.config import Config
from leeward.daemon.serving import rounds
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.daemon.telling.events import EventBook
from leeward.daemon.telling.metrics import Metrics
from leeward.wire.frames import FrameReader, decode, encode

GUEST = 4711
CONNECTIONS = 64
#: What a guest may send without end; each is answered at once.
KINDS = {
    "ping": encode({"v": 1, "id": 1, "op": "ping"}),
    "status": encode({"v": 1, "id": 1, "op": "status"}),
    "refused": encode({"v": 1, "id": 1, "op": "execute", "code": b"1", "limits": {"memory": 1 << 49}}),
    "unknown": encode({"v": 1, "id": 1, "op": "nonsense"}),
}


class House:
    """
    A server without a pool, and its clients.

    Attributes:
        refused: reasons, with the users.
        layer: notes what the loop calls.
    """

    def __init__(self, reactor: str) -> None:
        self.layer = Layer()
        self.reactor = self.layer.reactor(reactor)
        self.metrics, self.events = Metrics(), EventBook()
        self.refused: list[tuple[str, int]] = []
        jobs: Any = SimpleNamespace(ledger=SimpleNamespace(connection_closed=lambda connection: None), most_jobs=1)
        self.server = Server(self.reactor, jobs, Config(), status=dict, shut_down=lambda _: None,
                             users=ServedUsers(os.geteuid()), watcher=self)
        self.socks: list[socket.socket] = []

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        return

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        self.refused.append((reason, user))

    def client(self, user: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs, user)
        ours.setblocking(False)
        self.socks.append(ours)
        return ours

    def fill(self, sock: socket.socket, data: bytes) -> None:
        """Send *data* again and again, until no more is taken."""
        rest = memoryview(data)
        try:
            while True:
                rest = rest[sock.send(rest):] or memoryview(data)
        except BlockingIOError:
            return

    def close(self) -> None:
        self.server.close()
        self.reactor.close()
        for sock in self.socks:
            sock.close()


@pytest.fixture(params=reactors.ALL)
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(request.param)
    yield house
    house.close()


def turns_of_a_ping(house: House, sock: socket.socket) -> int:
    """After how many turns of the loop the answer to a ping is here."""
    sock.sendall(KINDS["ping"])
    for turns in range(1, 100):
        house.reactor.turn(0.0)
        try:
            payloads = FrameReader().feed(sock.recv(1 << 16))
        except BlockingIOError:
            continue
        assert 1 == decode(payloads[0])["id"]
        return turns
    raise AssertionError("no answer in a hundred turns")


@pytest.mark.parametrize("kind", KINDS)
def test_c197_a_flood_of_cheap_requests_leaves_turns_to_others(house: House, kind: str) -> None:
    """
    64 connections with thousands of requests each: another user has his answer within some turns, and in each of these
    the guest is served no more than one connection of his would be.
    """
    other = house.client(os.geteuid())
    guests = [house.client(GUEST) for _ in range(CONNECTIONS)]
    for sock in guests:
        house.fill(sock, KINDS[kind])
    for _ in range(10):
        house.reactor.turn(0.0)
    start, served = house.reactor.turns, house.metrics.requests
    waited = [turns_of_a_ping(house, other) for _ in range(20)]
    turns, served = house.reactor.turns - start, house.metrics.requests - served

    assert max(waited) <= 1 + CONNECTIONS // 16  # turns in which the loop reads of 16 connections each
    assert turns <= served - 20 <= rounds.GUESTS_TURN * turns  # the guest is served, and no more than that


def test_the_frames_of_one_read_are_not_looked_for_at_once(house: House) -> None:
    """64 KiB are three thousand pings, and to find them takes as long as to serve a hundred."""
    house.fill(house.client(GUEST), KINDS["ping"])
    for _ in range(4):
        house.reactor.turn(0.0)
    (connection,) = house.server.connections.values()

    assert connection._inbox.more
    assert len(connection._inbox.pending) < 64


def test_a_guest_beyond_the_budget_of_a_second_is_not_read(house: House) -> None:
    """The requests stay in the guest's socket: none is refused, and they are read in the next second."""
    guest = house.client(GUEST)
    budget = house.server.shares[GUEST].budget
    budget.requests = 3.0
    now, house.reactor.now = house.reactor.now(), lambda: now  # type: ignore[method-assign]
    budget.counted = now
    for _ in range(100):
        guest.sendall(KINDS["ping"])
    for _ in range(20):
        house.reactor.turn(0.0)
    served = house.metrics.requests
    house.fill(guest, KINDS["ping"])
    for _ in range(20):
        house.reactor.turn(0.0)
    assert 4 == served == house.metrics.requests
    assert 0 == len(house.reactor._soon)  # and the loop sleeps meanwhile

    later = now + 1.0
    house.reactor.now = lambda: later  # type: ignore[method-assign]
    for _ in range(20):
        house.reactor.turn(0.0)
    assert served + 20 < house.metrics.requests
    assert [] == house.refused


def test_a_guest_cannot_have_a_new_second_by_connecting_anew(house: House) -> None:
    for _ in range(3):
        guest = house.client(GUEST)
        house.server.shares[GUEST].budget.requests = -rounds.RATE
        guest.sendall(KINDS["ping"])
        guest.close()
        for _ in range(4):
            house.reactor.turn(0.0)

    assert 0 == house.metrics.requests


def test_the_owner_is_not_counted(house: House) -> None:
    owner = house.client(os.geteuid())
    for _ in range(30):
        owner.sendall(KINDS["ping"] * 400)
        for _ in range(20):
            house.reactor.turn(0.0)
            try:
                owner.recv(1 << 20)
            except BlockingIOError:
                pass

    assert 12_000 == house.metrics.requests


def callbacks_of_a_ping(house: House, sock: socket.socket) -> Counter[str]:
    """What the loop calls for one ping, until it calls nothing any more."""
    house.layer.seen.clear()
    turns_of_a_ping(house, sock)
    rest(house)
    return Counter(house.layer.seen)


def rest(house: House) -> None:
    """Turn until the loop calls nothing any more."""
    for _ in range(10_000):
        before = house.layer.seen.total()
        for _ in range(3):
            house.reactor.turn(0.0)
        if before == house.layer.seen.total():
            return
    raise AssertionError(f"it never rests: {house.layer.seen}")


def test_c098_slow_clients_cause_no_work_while_others_are_served(house: House) -> None:
    """Beside two hundred with half a frame and fifty that never read, a ping causes the same callbacks as without them."""
    half = encode({"v": 1, "id": 1, "op": "execute", "code": b"#" * 5000})[:3000]
    good = house.client(os.geteuid())
    alone = callbacks_of_a_ping(house, good)
    for number in range(250):
        slow = house.client(os.geteuid())
        if number < 200:
            slow.sendall(half)
        else:
            house.fill(slow, KINDS["status"])
    rest(house)

    assert alone
    assert alone == callbacks_of_a_ping(house, good)
    assert 251 == len(house.server.connections)
