"""
Descriptors that come by a socket.
"""

from __future__ import annotations

import os
import socket

from leeward._native.passing import receive


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


def test_truncated_messages_are_flagged() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        socket.send_fds(far, [b"words"], [far.fileno()] * 5)
        data, fds, flags = receive(near, 2, 3)

    assert (b"wo", True, True) == (data, bool(flags & socket.MSG_CTRUNC), bool(flags & socket.MSG_TRUNC))
    for fd in fds:
        os.close(fd)
