"""Receives descriptors that are close-on-exec from the start: socket.recv_fds of Python 3.11 ignores its flags. unix(7)"""

from __future__ import annotations

import array
import os
import socket
from _socket import socket as Socket


def receive(sock: Socket, room: int, most: int) -> tuple[bytes, list[int], int]:
    """
    The next message: at most *room* bytes of it, at most *most* descriptors, which the caller owns, and recvmsg's
    flags.
    """
    fds = array.array("i")
    data, ancillary, said, _ = sock.recvmsg(room, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
    return data, fds.tolist(), said


def receive_whole(sock: Socket, room: int, most: int) -> tuple[bytes, list[int]]:
    """
    As `receive`, for a socket that doesn't block, and without the flags. The bytes are b"" if no message will come any
    more, or if descriptors of the message were lost; BlockingIOError if no message is there yet.
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
