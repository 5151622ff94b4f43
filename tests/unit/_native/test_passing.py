"""Descriptors that come by a socket."""

from __future__ import annotations

import os
import socket

import pytest

from leeward._native.passing import receive, receive_whole


def test_received_descriptors_are_close_on_exec() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        socket.send_fds(far, [b"words"], [far.fileno(), near.fileno()])
        data, fds, flags = receive(near, 99, 8)

    assert (b"words", 2) == (data, len(fds))
    assert not flags & socket.MSG_CTRUNC
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


@pytest.mark.needs("not-emulated")
def test_truncated_messages_are_flagged() -> None:
    """The emulator's recvmsg(2) has room of its own for descriptors, and says nothing of those that it drops."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        socket.send_fds(far, [b"words"], [far.fileno()] * 5)
        data, fds, flags = receive(near, 2, 3)

    assert (b"wo", True, True) == (data, bool(flags & socket.MSG_CTRUNC), bool(flags & socket.MSG_TRUNC))
    for fd in fds:
        os.close(fd)


@pytest.mark.needs("not-emulated")
def test_a_message_that_lacks_descriptors_is_none_and_those_that_came_are_closed() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    with near, far:
        socket.send_fds(far, [b"one"], [far.fileno()])
        socket.send_fds(far, [b"two"], [far.fileno()] * 5)
        data, (fd,) = receive_whole(near, 99, 3)
        os.close(fd)
        before = os.listdir("/proc/self/fd")

        assert (b"one", (b"", [])) == (data, receive_whole(near, 99, 3))
        assert before == os.listdir("/proc/self/fd")
        with pytest.raises(BlockingIOError):
            receive_whole(near, 99, 3)
        far.close()
        assert (b"", []) == receive_whole(near, 99, 3)
