"""
The loop in C, by both of its ways to the kernel: what is told, and what must not be.

The reactors above it have tests of their own; here is what only shows at the level of descriptors, whose numbers
are used again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kit import reactors
from leeward._native import loop as native

Pair = tuple[socket.socket, socket.socket]

READ, WRITE = select.EPOLLIN, select.EPOLLOUT


@dataclass(frozen=True)
class Event:
    kind: int
    fd: int
    value: int
    number: int
    data: bytes = b""


class Loop(native.Loop):
    """Its turns, with their events as objects."""

    def tell(self, turns: int = 1) -> list[Event]:
        told = []
        for _ in range(turns):
            for event in self.events[0:self.turn(0)]:
                data = native.data_of(event, event.value) if native.DATA == event.kind and event.value > 0 else b""
                told.append(Event(event.kind, event.fd, event.value, event.number, data))
        return told


@pytest.fixture(params=reactors.WAYS)
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    made = Loop(native.IO_URING if reactors.URING == request.param else native.EPOLL)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def filled(sock: socket.socket) -> int:
    """Send until the kernel takes nothing more; how many bytes that were."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            count += sock.send(b"x" * 4096)
    return count


def emptied(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while piece := sock.recv(1 << 20):
            data += piece
    return data


def test_a_ready_descriptor_is_reported_until_it_is_read(loop: Loop) -> None:
    """Level-triggered, whichever way the kernel's interface works."""
    read, write = os.pipe()
    loop.watch(read, READ)
    quiet = loop.tell()
    os.write(write, b"x")

    told = [loop.tell() for _ in range(3)]
    os.read(read, 1)
    after = loop.tell()

    assert ([], [[Event(native.READY, read, READ, 0)]] * 3, []) == (quiet, told, after)
    loop.forget(read)
    os.close(read)
    os.close(write)


def test_other_events_from_now_on(loop: Loop, pair: Pair) -> None:
    """`change` takes back what was waited for before, also what is under way."""
    ours, theirs = pair
    loop.watch(theirs.fileno(), READ)
    loop.tell()
    loop.change(theirs.fileno(), WRITE)
    ours.send(b"x")
    writable = loop.tell(2)
    loop.change(theirs.fileno(), 0)

    assert {WRITE} == {event.value for event in writable}
    assert [] == loop.tell(2)
    ours.close()
    assert select.EPOLLHUP & loop.tell(2)[0].value
    loop.forget(theirs.fileno())


def test_a_reused_descriptor_number_gets_no_old_event(loop: Loop) -> None:
    """What was asked of the one before, told or not yet handed in, is nothing to the next."""
    for turns in (0, 1):
        old = socket.socketpair()
        loop.watch(old[1].fileno(), READ)
        loop.tell(turns)
        old[0].send(b"x")
        number = old[1].fileno()
        loop.forget(number)
        new = socket.socketpair()
        os.dup2(new[1].fileno(), number)
        loop.watch(number, READ)

        assert [] == loop.tell(3)
        new[0].send(b"y")
        assert [number] == [event.fd for event in loop.tell(1)]
        loop.forget(number)
        for sock in (*old, *new):
            sock.close()


def test_a_closed_stream_takes_no_byte_of_the_next_with_its_number(loop: Loop) -> None:
    """A receive that was prepared, and not submitted or not cancelled yet, would take the next stream's bytes."""
    for turns in (0, 1, 2):
        old, new = socket.socketpair(), socket.socketpair()
        for sock in (*old, *new):
            sock.setblocking(False)
        number = old[1].fileno()
        loop.stream(number, 1)
        loop.tell(turns)
        loop.forget(number)
        os.dup2(new[1].fileno(), number)
        new[0].send(b"not for you")

        assert [] == loop.tell(2)
        assert b"not for you" == os.read(number, 100)
        for sock in (*old, *new):
            sock.close()


def test_a_send_goes_to_its_own_connection_alone(loop: Loop) -> None:
    """One that was asked for just before its stream was forgotten."""
    old, new = socket.socketpair(), socket.socketpair()
    for sock in (*old, *new):
        sock.setblocking(False)
    number = old[1].fileno()
    loop.stream(number, 5)
    data = memoryview(b"an answer")
    loop.send(number, data)
    loop.forget(number)
    os.dup2(new[1].fileno(), number)
    loop.tell(3)

    with pytest.raises(BlockingIOError):
        new[0].recv(100)
    for sock in (*old, *new):
        sock.close()


def test_a_send_under_way_is_reported_after_the_end(loop: Loop, pair: Pair) -> None:
    """Or its bytes could not be given back."""
    _, theirs = pair
    filled(theirs)
    loop.stream(theirs.fileno(), 7)
    data = memoryview(bytes(1 << 20))
    try:
        assert loop.send(theirs.fileno(), data) is None
    except BlockingIOError:
        loop.forget(theirs.fileno())  # epoll has nothing under way
        return
    loop.tell()
    loop.forget(theirs.fileno())

    told = loop.tell(3)

    assert [(native.SENT, 7)] == [(event.kind, event.number) for event in told]
    assert told[0].value < 0
    del data


def test_much_arrives_whole(loop: Loop, pair: Pair) -> None:
    """By as many sends as it takes."""
    ours, theirs = pair
    loop.stream(theirs.fileno(), 1)
    sent, data, got = 0, os.urandom(1 << 20), b""
    waits = False
    while len(got) < len(data):
        if not waits and sent < len(data):
            try:
                count = loop.send(theirs.fileno(), memoryview(data)[sent:])
            except BlockingIOError:
                waits = True
            else:
                waits, sent = count is None, sent + (count or 0)
        for event in loop.tell():
            if native.SENT == event.kind:
                sent += event.value
            waits = waits and event.kind not in (native.SENT, native.ROOM)
        got += emptied(ours)

    assert data == got
    loop.forget(theirs.fileno())


def test_descriptors_go_along(loop: Loop, pair: Pair) -> None:
    """Beside the first byte."""
    ours, theirs = pair
    files = [os.memfd_create(f"number {number}") for number in range(4)]
    loop.stream(theirs.fileno(), 1)
    frame = memoryview(b"frame")
    loop.send(theirs.fileno(), frame, files)
    loop.tell(2)

    data, fds, _, _ = socket.recv_fds(ours, 100, 10)

    assert b"frame" == data
    assert [os.fstat(fd).st_ino for fd in files] == [os.fstat(fd).st_ino for fd in fds]
    for fd in (*files, *fds):
        os.close(fd)
    with pytest.raises(OSError, match="list too long"):
        loop.send(theirs.fileno(), frame, range(5))
    loop.forget(theirs.fileno())


def test_descriptors_that_a_client_sends_are_closed_unseen(loop: Loop, pair: Pair) -> None:
    """The other end of one of them says so."""
    ours, theirs = pair
    loop.stream(theirs.fileno(), 1)
    loop.tell()
    read, write = os.pipe()
    socket.send_fds(ours, [b"x"], [write])
    os.close(write)
    data = loop.tell(2)

    assert [b"x"] == [event.data for event in data]
    assert b"" == os.read(read, 1)
    os.close(read)
    loop.forget(theirs.fileno())


def test_a_paused_stream_is_not_received_from(loop: Loop, pair: Pair) -> None:
    """Beyond the receive that was under way; the bytes come when it reads on."""
    ours, theirs = pair
    loop.stream(theirs.fileno(), 1)
    loop.tell()
    loop.read(theirs.fileno(), False)
    ours.send(b"a")
    first = loop.tell(2)
    sent = filled(ours)
    nothing = loop.tell(4)
    loop.read(theirs.fileno(), True)
    rest = sum(len(event.data) for event in loop.tell(sent // native_chunk() + 4))

    assert len(b"".join(event.data for event in first)) <= 1
    assert [] == nothing
    assert sent + 1 == rest + len(b"".join(event.data for event in first))
    loop.forget(theirs.fileno())


def native_chunk() -> int:
    return 1 << 16


def test_a_hang_up_is_reported_for_a_paused_stream(loop: Loop, pair: Pair) -> None:
    ours, theirs = pair
    loop.stream(theirs.fileno(), 1)
    loop.tell()
    loop.read(theirs.fileno(), False)
    ours.send(b"a")
    loop.tell(2)
    ours.close()

    assert -errno.EPIPE == loop.tell(2)[0].value
    loop.forget(theirs.fileno())


def test_the_end_of_a_stream_is_reported_after_its_bytes(loop: Loop, pair: Pair) -> None:
    ours, theirs = pair
    loop.stream(theirs.fileno(), 1)
    ours.send(b"last")
    ours.close()

    told = loop.tell(3)

    assert [(b"last", 4), (b"", 0)] == [(event.data, event.value) for event in told][:2]
    loop.forget(theirs.fileno())


def test_more_at_once_than_there_are_chunks(loop: Loop) -> None:
    """A hundred connections send in one turn: each of them is heard, and nobody's bytes are another's."""
    pairs = [socket.socketpair() for _ in range(100)]
    for number, (ours, theirs) in enumerate(pairs):
        theirs.setblocking(False)
        loop.stream(theirs.fileno(), number)
        ours.send(f"{number}".encode() * 100)
    told = loop.tell(20)

    assert {theirs.fileno(): f"{number}".encode() * 100 for number, (_, theirs) in enumerate(pairs)} == {
        event.fd: event.data for event in told}
    for ours, theirs in pairs:
        loop.forget(theirs.fileno())
        ours.close()
        theirs.close()


def test_connections_are_accepted_until_one_cant_be(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a descriptor to spare the error is told, once; asked anew it goes on, and nobody was lost."""
    path = str(tmp_path_factory.mktemp("l") / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    listener.setblocking(False)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(6)]
    for client in clients:
        client.connect(path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        loop.accept(listener.fileno())  # the ring goes by the limit of this moment
        first = loop.tell(3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    loop.accept(listener.fileno())
    later = loop.tell(4)

    assert [True, False] == [event.value >= 0 for event in first]
    assert -errno.EMFILE == first[1].value
    socks = [socket.socket(fileno=event.value) for event in (first[0], *later)]
    # The one whose descriptor could not be made may be gone: the kernel took it out of the queue before.
    assert 5 <= len(socks) <= 6
    assert all(not os.get_blocking(sock.fileno()) and not os.get_inheritable(sock.fileno()) for sock in socks)
    loop.forget(listener.fileno())
    for sock in (*socks, *clients, listener):
        sock.close()


def test_a_loop_that_ends_leaves_descriptors_open(pair: Pair) -> None:
    """And lets go of what it had asked of them."""
    ours, theirs = pair
    made = Loop(native.EPOLL)
    made.stream(theirs.fileno(), 1)
    made.close()

    ours.send(b"x")

    assert b"x" == theirs.recv(10)


@pytest.mark.parametrize("call", ["change", "read", "fast_path", "send"])
def test_an_unknown_descriptor_is_an_error(loop: Loop, call: str) -> None:
    for fd in (-1, 9999):
        with pytest.raises(OSError, match="No such"):
            loop.send(fd, memoryview(b"x")) if "send" == call else getattr(loop, call)(fd, 1)
        loop.forget(fd)


def test_a_descriptor_has_one_use(loop: Loop, pair: Pair) -> None:
    _, theirs = pair
    loop.watch(theirs.fileno(), READ)

    for second in (lambda: loop.watch(theirs.fileno(), READ), lambda: loop.stream(theirs.fileno(), 1),
                   lambda: loop.accept(theirs.fileno())):
        with pytest.raises(FileExistsError):
            second()
    loop.forget(theirs.fileno())
