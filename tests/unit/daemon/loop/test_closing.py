"""What a connection may hold is looked at before it is received, and before it is closed."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator

import pytest

from kit.waiting import poll_until
from leeward.daemon.loop.closing import Closer, DescriptorsPassed, guarded, may_pass, receive


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def send(sock: socket.socket, data: bytes, fd: int, flags: int = 0) -> None:
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))], flags)


def test_no_descriptor_comes_by_tcp() -> None:
    with socket.socket() as sock:
        assert not may_pass(sock)


def test_bytes_sent_with_a_descriptor_are_not_received(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"before")
    assert guarded(ours)
    assert b"before" == receive(ours, 10)

    theirs.send(b"right before")
    send(theirs, b"with", 0)
    theirs.send(b"after")
    before = os.listdir("/proc/self/fd")
    for _ in range(2):  # nothing of it is taken
        with pytest.raises(DescriptorsPassed):
            receive(ours, 100)
    assert before == os.listdir("/proc/self/fd")


def test_an_urgent_byte_hides_none(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert guarded(ours)
    send(theirs, b"u", 0, socket.MSG_OOB)
    theirs.send(b"x")

    with pytest.raises(DescriptorsPassed):
        receive(ours, 1)


def test_the_end_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    theirs.close()

    assert [b"x", b""] == [receive(ours, 10), receive(ours, 10)]


@pytest.mark.parametrize("sent", [0, 1, 100_000])
def test_a_clean_socket_is_closed_at_once(pair: tuple[socket.socket, socket.socket], sent: int) -> None:
    ours, theirs = pair
    theirs.sendall(bytes(sent))
    closer = Closer()
    closer.close(ours)

    assert -1 == ours.fileno()
    assert closer._thread is None
    closer.close(ours)  # harmless twice


def test_one_with_descriptors_is_passed_on(pair: tuple[socket.socket, socket.socket]) -> None:
    """And what was in its queue is closed: its other end hears of it."""
    ours, theirs = pair
    reader, writer = os.pipe()
    send(theirs, b"x", writer)
    os.close(writer)
    closer = Closer()
    closer.close(ours)

    assert b"" == os.read(reader, 1)
    os.close(reader)
    poll_until(lambda: closer._thread is None, "its process has gone")
    assert -1 == ours.fileno()
    assert 1 == closer.passed_on
