"""Who gets a connection where there are few."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.reference_reactor import ReferenceReactor
from kit.waiting import PATIENCE_S
from leeward.daemon.config import Config
from leeward.daemon.descriptors import Shares
from leeward.daemon.serving import connection, peers, server
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.wire.frames import decode, encode

GUEST = 4711


class Door:
    """A server at a socket; who connects is who the test says."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, shares: Shares | None, **config: Any) -> None:
        self.path = path
        self.user = os.geteuid()
        self.reactor = ReferenceReactor()
        jobs: Any = SimpleNamespace(ledger=SimpleNamespace(connection_closed=lambda connection: None), most_jobs=1)
        self.server = Server(self.reactor, jobs, Config(**config), status=dict, shut_down=lambda now: None,
                             users=ServedUsers(os.geteuid(), 0), shares=shares)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.server.listen(self.listener)
        self.clients: list[socket.socket] = []
        monkeypatch.setattr(server, "credentials", lambda _: (1, self.user, 0))
        monkeypatch.setattr(connection, "credentials", lambda _: (1, self.user, 0))

    def turns(self) -> None:
        for _ in range(4):
            self.reactor.turn(0.0)

    def connect(self, user: int | None = None) -> socket.socket:
        self.user = os.geteuid() if user is None else user
        sock = socket.socket(socket.AF_UNIX)
        self.clients.append(sock)
        sock.connect(str(self.path))
        self.turns()
        sock.setblocking(False)
        return sock

    def says(self, sock: socket.socket, **request: Any) -> Any:
        """The answer to a request, or to none: what the server says first."""
        if request:
            sock.sendall(encode({"v": 1, **request}))
            self.turns()
        data = self.comes(sock)
        return decode(data[struct.calcsize(">I"):])

    def comes(self, sock: socket.socket) -> bytes:
        """What is sent next; empty at the end. Who waits at the door is told after a while."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                return sock.recv(4096)
            except BlockingIOError:
                assert time.monotonic() < give_up, "nothing came"
                self.reactor.turn(0.05)

    def age(self, seconds: float) -> None:
        """All who are there were heard of so much earlier."""
        for each in self.server.connections.values():
            each._heard -= seconds
        self.server._looked -= seconds

    def close(self) -> None:
        self.server.close()
        self.reactor.close()
        self.listener.close()
        for sock in self.clients:
            sock.close()


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """With descriptors for eight, of which two are the owner's."""
    made = Door(tmp_path / "s", monkeypatch, Shares(limit=300, pool=100, connections=8, results=4, arenas=2))
    yield made
    made.close()


def readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(4096)
    except BlockingIOError:
        return False


def test_guests_leave_the_last_places_to_the_owner(door: Door) -> None:
    guests = [door.connect(GUEST + number) for number in range(6)]
    late = door.says(door.connect(GUEST))
    owner = door.connect()

    assert "busy" == late["error"]["kind"]
    assert "6 connections are open already, all that a limit of 300 descriptors leaves room for" == \
        late["error"]["message"]
    assert door.says(owner, id=1, op="ping")["id"] == 1
    assert not any(map(closed, guests))


def test_guests_leave_places_to_each_other(door: Door) -> None:
    """Whoever comes first, and takes all that he gets, leaves some to the next one, who does the same."""
    users = [GUEST + number for number in range(3) for _ in range(5)]
    refused = [door.says(sock)["error"]["message"] for sock in map(door.connect, users) if readable(sock)]
    shares = [door.server.shares[GUEST + number].connections for number in range(3)]

    assert [3, 2, 1] == shares
    assert 9 == len(refused)
    assert f"user {GUEST} has 3 connections open already, and the last ones are kept for other users" == refused[0]
    assert "6 connections are open already, all that a limit of 300 descriptors leaves room for" == refused[-1]
    assert 1 == door.says(door.connect(), id=1, op="ping")["id"]


def test_when_all_places_are_taken_the_owner_gets_the_longest_idle_one(door: Door) -> None:
    """A guest's before one of the owner's own, and not that of a client that is about to send a request."""
    own = [door.connect() for _ in range(4)]
    door.age(9.0)
    guests = [door.connect(GUEST + number) for number in range(2)]
    asks = door.connect()
    door.connect()
    door.age(5.0)
    guests[0].sendall(encode({"v": 1, "id": 9, "op": "ping"})[:5])  # lies in the kernel, nobody has looked yet

    assert 1 == door.says(door.connect(), id=1, op="ping")["id"]
    assert [False, True] == [closed(guest) for guest in guests]
    assert 1 == door.says(door.connect(), id=1, op="ping")["id"]
    assert 1 == sum(map(closed, own))
    assert not closed(asks)
    assert 8 == len(door.server.connections)


def test_the_owner_is_refused_only_while_all_are_at_work(door: Door) -> None:
    """And a guest never takes anybody's place."""
    for sock in [door.connect() for _ in range(8)]:
        door.says(sock, id=1, op="ping")

    assert "8 connections" in door.says(door.connect())["error"]["message"]
    door.age(connection.IDLE_S + 0.1)
    assert "busy" == door.says(door.connect(GUEST))["error"]["kind"]
    assert 1 == door.says(door.connect(), id=1, op="ping")["id"]


def test_a_connection_without_any_request_loses_its_place_first(door: Door) -> None:
    for _ in range(8):
        door.connect()
    door.age(connection.FRESH_S + 0.1)

    assert 1 == door.says(door.connect(), id=1, op="ping")["id"]


def test_the_configuration_may_say_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(tmp_path / "s", monkeypatch, Shares(limit=300, pool=100, connections=8), max_connections=2)
    try:
        for _ in range(2):
            assert 1 == door.says(door.connect(), id=1, op="ping")["id"]
        assert "2 connections are open already" == door.says(door.connect())["error"]["message"]
        assert 2 == door.server.places
    finally:
        door.close()


def test_a_flood_costs_one_look_at_all(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    idle = connection.Connection.idle

    def counted(self: connection.Connection, now: float) -> float:
        looks.append(now)
        return idle(self, now)

    for _ in range(8):
        door.connect()
    monkeypatch.setattr(connection.Connection, "idle", counted)
    monkeypatch.setattr(server, "_LOOK_S", 60.0)
    door.server._looked = time.monotonic() - 61.0
    for _ in range(20):
        door.connect()

    assert 8 >= len(looks)


def test_the_owner_waits_while_silent_connections_may_still_send(door: Door) -> None:
    """A burst of silent connections has all places, that of an idle client as well, which connects again."""
    idle = door.connect()
    door.says(idle, id=1, op="ping")
    door.age(connection.IDLE_S + 0.1)
    for _ in range(8 + peers.SEATS):
        door.connect()

    assert closed(idle)
    assert 2 == door.says(door.connect(), id=2, op="ping")["id"]
    assert 8 == len(door.server.connections)


def test_a_waiting_connection_that_has_sent_keeps_its_seat(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hasn't is refused first; where all have, the last to come is."""
    monkeypatch.setattr(peers, "WAIT_S", 60.0)
    for sock in [door.connect() for _ in range(8)]:
        door.says(sock, id=1, op="ping")
    silent = door.connect()
    asking = [door.connect() for _ in range(peers.SEATS)]
    assert "8 connections" in door.says(silent)["error"]["message"]

    for number, sock in enumerate(asking):
        sock.sendall(encode({"v": 1, "id": 10 + number, "op": "ping"}))
    assert "busy" == door.says(door.connect())["error"]["kind"]
    door.age(connection.IDLE_S + 0.1)
    assert [10, 11, 12, 13] == [door.says(sock)["id"] for sock in asking]


def test_a_waiting_connection_that_hung_up_takes_no_place(door: Door) -> None:
    there = [door.connect() for _ in range(8)]
    for sock in there:
        door.says(sock, id=1, op="ping")
    before = len(os.listdir("/proc/self/fd"))
    door.connect().close()
    door.age(connection.IDLE_S + 0.1)
    give_up = time.monotonic() + PATIENCE_S
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < give_up
        door.reactor.turn(0.05)

    assert not any(map(closed, there))


@pytest.mark.parametrize("parts", [False, True])
def test_a_waiting_connection_is_served_by_a_parting_daemon_and_closed_by_an_ending_one(door: Door,
                                                                                        parts: bool) -> None:
    for sock in [door.connect() for _ in range(8)]:
        door.says(sock, id=1, op="ping")
    waits = door.connect()
    if parts:
        door.server.part()
        assert 3 == door.says(waits, id=3, op="ping")["id"]
    else:
        door.server.close()
        assert b"" == door.comes(waits)
