"""Results that guests have: their memory counts until they let go of it, however they hold it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kit import reactors
from kit.no_pool import NoPool
from kit.reference_reactor import ReferenceReactor
from leeward._native import last_use
from leeward._native.memfd import SEALS
from leeward.daemon.config import Config
from leeward.daemon.descriptors import Shares
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.serving import parcel
from leeward.daemon.serving.parcel import LentFiles, seal
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.spec.outcome import Outcome, Result
from leeward.wire.frames import FrameReader, decode, encode

GUEST = 4711
SIZE = 1 << 20


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_way_to_hold_a_file_counts() -> None:
    """In a message that wasn't received, by a descriptor, by a mapping, reopened; and then no more."""
    reactor = ReferenceReactor()
    uses, before = LastUses(reactor), descriptors()
    files, arena = LentFiles(uses), seal([bytes(SIZE)])
    files.lend(arena)
    ours, theirs = socket.socketpair()

    def held() -> int:
        uses.wait(0.0)
        return files.size

    assert SIZE == held()
    socket.send_fds(ours, [b"x"], [arena.fd])
    arena.close()
    assert SIZE == held()
    (got,) = socket.recv_fds(theirs, 1, 1)[1]
    ours.close()
    theirs.close()
    assert SIZE == held()
    again = os.open(f"/proc/self/fd/{got}", os.O_RDONLY)
    os.close(got)
    assert SIZE == held()
    mapped, path = mmap.mmap(again, SIZE, prot=mmap.PROT_READ), os.open(f"/proc/self/fd/{again}", os.O_PATH)
    os.close(again)
    assert SIZE == held()
    mapped.close()
    assert SIZE == held()  # by a descriptor without any right
    os.close(path)
    assert (0, 0) == (held(), len(files))
    uses.close()
    assert before == descriptors()
    reactor.close()


def test_a_lent_file_can_be_read_and_not_written() -> None:
    reactor = ReferenceReactor()
    uses, arena = LastUses(reactor), seal([b"result"])
    LentFiles(uses).lend(arena)

    assert b"result" == os.pread(arena.fd, 100, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(arena.fd, b"x")
    assert SEALS == SEALS & fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
    arena.close()
    uses.close()
    reactor.close()


def test_a_result_that_cannot_be_counted_is_not_sent(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor or a watch: the job has run, so it isn't `busy`, which clients send again."""
    def no_descriptor(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def no_watch(queue: int, fd: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    guest = house.client(GUEST)
    assert "ok" == house.run(guest)
    house.let_go()
    before = descriptors()
    for module, name, scarce in ((os, "open", no_descriptor), (last_use, "watch", no_watch)):
        with monkeypatch.context() as where:
            where.setattr(module, name, scarce)
            assert "internal" == house.run(guest)
    house.server._look()
    assert ({}, before) == (house.server._lent, descriptors())
    assert "ok" == house.run(guest)


class Jobs(NoPool):
    """Each job is over at once, and has a large result."""

    def submit(self, job: Any, done: Callable[[Report], None], *_: Any) -> None:
        done(Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=seal([bytes(SIZE)])))


class House:
    """A server, and a client of each user."""

    def __init__(self, reactor: str) -> None:
        self.reactor = reactors.reactor(reactor)
        jobs: Any = Jobs()
        self.server = Server(self.reactor, jobs, Config(), status=dict, shut_down=lambda _: None,
                             users=ServedUsers(os.geteuid()))
        self.socks: list[socket.socket] = []
        self.held: list[int] = []

    def client(self, user: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs, user)
        self.socks.append(ours)
        return ours

    def run(self, sock: socket.socket) -> str:
        """A job, whose result is kept; what came of it."""
        sock.sendall(encode({"v": 1, "id": 1, "op": "execute", "code": b""}))
        for _ in range(4):
            self.reactor.turn(0.0)
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 4)
        self.held += fds
        (payload,) = FrameReader().feed(data)
        return decode(payload).get("error", {"kind": "ok"})["kind"]  # type: ignore[no-any-return]

    def let_go(self) -> None:
        while self.held:
            os.close(self.held.pop())

    def close(self) -> None:
        self.let_go()
        self.server.close()
        self.reactor.close()
        for sock in self.socks:
            sock.close()


@pytest.fixture(params=reactors.ALL)
def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(parcel, "MOST_LENT", 4 * SIZE)
    house = House(request.param)
    yield house
    house.close()


def test_c198_a_guest_that_keeps_results_gets_no_more(house: House) -> None:
    """
    Another guest and the owner do; and the guest does after releasing some, or after the message that held them was
    dropped.
    """
    guest, other, owner = house.client(GUEST), house.client(GUEST + 1), house.client(os.geteuid())
    assert ["ok"] * 4 + ["busy"] * 2 == [house.run(guest) for _ in range(6)]
    again = house.client(GUEST)
    assert "busy" == house.run(again)
    assert ["ok", "ok"] == [house.run(other), house.run(owner)]
    for sock in (guest, again):
        sock.close()
    for _ in range(4):
        house.reactor.turn(0.0)
    assert "busy" == house.run(house.client(GUEST))  # to connect anew gives nothing back
    house.let_go()

    assert "ok" == house.run(house.client(GUEST))


def test_the_owner_may_keep_any_number_of_results(house: House) -> None:
    """Control."""
    owner = house.client(os.geteuid())

    assert ["ok"] * 10 == [house.run(owner) for _ in range(10)]


def test_memory_is_given_back_without_another_request(house: House) -> None:
    guest = house.client(GUEST)
    house.run(guest)
    assert 1 == len(house.server._lent)
    house.let_go()
    house.server._look()

    assert {} == house.server._lent


def test_files_are_bounded_by_number_as_well(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "MOST_FILES", 2)
    guest = house.client(GUEST)

    assert ["ok", "ok", "busy"] == [house.run(guest) for _ in range(3)]


def test_guests_leave_each_other_as_many_files_as_they_have(house: House) -> None:
    """Beyond what all may have none would be counted."""
    house.server.most_lent = 4
    first, second, third, fourth = (house.client(GUEST + number) for number in range(4))
    assert ["ok", "ok", "busy"] == [house.run(first) for _ in range(3)]
    assert ["ok", "busy"] == [house.run(second) for _ in range(2)]
    assert ["ok", "busy"] == [house.run(third) for _ in range(2)]
    assert "busy" == house.run(fourth)
    house.let_go()
    assert "ok" == house.run(fourth)


def test_results_are_counted_where_descriptors_are_scarce() -> None:
    """They take none."""
    reactor, jobs = ReferenceReactor(), Jobs()
    server = Server(reactor, cast("Any", jobs), Config(), status=dict, shut_down=lambda _: None,
                    users=ServedUsers(os.geteuid()), shares=Shares(limit=1500, pool=300, connections=400))
    assert 100 < server.most_lent
    server.close()
    reactor.close()
