"""
Descriptors that come by a socket, each close-on-exec from the start.

Runs in:   the daemon.
Source:    unix(7), SCM_RIGHTS. socket.recv_fds of Python 3.11 takes flags, and forgets them.
"""

from __future__ import annotations

import array
import os
import socket
from _socket import socket as Socket


def receive(sock: Socket, room: int, most: int) -> tuple[bytes, list[int], int]:
    """
    The next message: *room* bytes of it, *most* descriptors, which are the caller's, and the flags of recvmsg(2).

    Raises:
        OSError: as of recvmsg(2).
    """
    fds = array.array("i")
    data, ancillary, said, _ = sock.recvmsg(room, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (socket.SOL_SOCKET, socket.SCM_RIGHTS) == (level, kind):
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
    return data, fds.tolist(), said


def receive_whole(sock: Socket, room: int, most: int) -> tuple[bytes, list[int]]:
    """
    As `receive`, of a socket that doesn't block; b"" where there will be no message, or it lacks descriptors.

    Raises:
        BlockingIOError: there is none yet.
    """
    try:
        data, fds, said = receive(sock, room, most)
    except BlockingIOError:
        raise
    except OSError:
        return b"", []
    if data and not said & socket.MSG_CTRUNC:
        return data, fds
    for fd in fds:
        os.close(fd)
    return b"", []
