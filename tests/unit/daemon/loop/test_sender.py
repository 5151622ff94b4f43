"""Messages to a process that may not read: sent in order, with their descriptors, and never waited for."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from leeward.daemon.loop import sender
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.loop.sender import MessageSender

#: More than the queue of a socket has room for twice.
LARGE = bytes(100_000)


class Owner:
    """
    A socket's owner, as the sender needs one.

    Attributes:
        why: the reasons for which its sender has failed.
        faults: exceptions for which the barrier has ended it.
    """

    def __init__(self, reactor: Reactor, stuck_s: float = 60.0) -> None:
        self.sock, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self.far.setblocking(False)
        self.reactor = reactor
        self.why: list[str] = []
        self.faults: list[Exception] = []
        self.fails = False
        reactor.watch(self.sock.fileno(), READ, self._ready)
        self.sender = MessageSender(reactor, self.sock, self._failed, stuck_s)

    def _ready(self, _events: int) -> None:
        self.sender.flush()

    def _failed(self, why: str) -> None:
        self.why.append(why)
        if self.fails:
            raise ValueError("a bug")
        self.sender.close()

    def broken(self, error: Exception) -> None:
        self.faults.append(error)
        self.sender.close()

    def received(self) -> list[tuple[bytes, list[int]]]:
        got = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.far, 2 * len(LARGE), 4)
            except BlockingIOError:
                return got
            if not data:
                return got
            got.append((data, fds))


@pytest.fixture
def owner(reactor: Reactor) -> Iterator[Owner]:
    made = Owner(reactor)
    yield made
    made.sender.close()
    reactor.forget(made.sock.fileno())
    made.sock.close()
    made.far.close()


def fill(owner: Owner) -> int:
    """Send until a message has to wait; the number of messages."""
    count = 0
    while not owner.sender._waiting:
        assert owner.sender.send(LARGE)
        count += 1
    return count


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_message_is_sent_at_once_if_the_peer_has_room(owner: Owner) -> None:
    assert owner.sender.send(b"x")

    assert [(b"x", [])] == owner.received()
    assert not owner.sender._waiting


def test_what_waits_is_sent_in_order_with_copies_of_its_descriptors(owner: Owner, reactor: Reactor) -> None:
    """The caller may close its own as soon as `send` returns."""
    count = fill(owner)
    reads, writes = os.pipe()
    assert owner.sender.send(b"with", [writes])
    assert owner.sender.send(b"last")
    os.close(writes)

    got: list[tuple[bytes, list[int]]] = []
    while len(got) < count + 2:
        got += owner.received()
        reactor.turn(0.0)
    assert [LARGE] * count == [data for data, _ in got[:count]]
    assert [b"with", b"last"] == [data for data, _ in got[count:]]
    (copy,) = got[count][1]
    os.write(copy, b"it works")
    os.close(copy)
    assert b"it works" == os.read(reads, 100)
    os.set_blocking(reads, False)
    assert b"" == os.read(reads, 100)  # no other copy is open
    os.close(reads)
    assert not owner.sender._waiting


def test_a_peer_that_takes_nothing_for_too_long_has_failed(reactor: Reactor) -> None:
    owner = Owner(reactor, stuck_s=0.01)
    fill(owner)

    reactor.run(lambda: bool(owner.why))
    assert ["it took no messages for 0.01 s"] == owner.why
    assert not owner.sender.send(b"x")
    owner.far.close()
    owner.sock.close()


def test_a_peer_that_takes_messages_slowly_has_not_failed(owner: Owner, reactor: Reactor,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the last message that it took."""
    now = 100.0
    monkeypatch.setattr(reactor, "now", lambda: now)
    for _ in range(3):
        fill(owner)
        owner.sender.send(LARGE)
        now += 59.0
        owner.received()
        reactor.turn(0.0)
        assert [] == owner.why
        owner.received()
        reactor.turn(0.0)
        assert not owner.sender._waiting


def test_messages_that_wait_have_a_bound(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MOST_WAITING", 3)
    fill(owner)
    assert owner.sender.send(b"2")
    assert owner.sender.send(b"3")

    assert not owner.sender.send(b"4")
    assert ["it takes no messages"] == owner.why


def test_an_ended_peer_fails_the_next_message(owner: Owner) -> None:
    owner.far.close()

    assert not owner.sender.send(b"x")
    assert ["Broken pipe"] == owner.why
    assert not owner.sender.send(b"x")
    assert 1 == len(owner.why)


def test_copies_that_wait_are_closed_with_the_sender(owner: Owner) -> None:
    fill(owner)
    before = open_fds()
    owner.sender.send(b"x", [0, 1])
    assert before + 2 == open_fds()

    owner.sender.close()
    owner.sender.close()
    assert before == open_fds()


def test_descriptors_that_cannot_be_copied_leave_none_behind(owner: Owner) -> None:
    """Nor a limit of time for a message that doesn't wait."""
    while True:
        try:
            owner.sock.send(LARGE)
        except BlockingIOError:
            break
    before = open_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))  # room for one
    try:
        with pytest.raises(OSError, match="Too many open files"):
            owner.sender.send(b"x", [0] * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert before == open_fds()
    assert not owner.sender._waiting
    assert not owner.sender._stuck.is_set


@pytest.mark.faults("a bug is what this is about")
def test_an_exception_of_the_owner_ends_the_owner(reactor: Reactor) -> None:
    """The limit of time is the owner's callback for the barrier."""
    owner = Owner(reactor, stuck_s=0.01)
    owner.fails = True
    fill(owner)

    reactor.run(lambda: bool(owner.why))
    assert ["ValueError"] == [type(error).__name__ for error in owner.faults]
    owner.far.close()
    owner.sock.close()
