"""
A control channel: SOCK_SEQPACKET with descriptors beside the messages.

Runs in:   daemon, zygote, keeper, newborn runner.
Source:    unix(7), SCM_RIGHTS; MSG_CMSG_CLOEXEC, so nothing received leaks through an exec.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Sequence

from leeward._native.steps import Block, Call, Cell, Step, returns
from leeward.errors import PeerError
from leeward.wire import control

_FD_SIZE = array.array("i").itemsize
_CMSG_HEADER = struct.calcsize("Qii")

#: Bytes of a message once the plan is through: what a child says when it fails is the longest. Every
#: receive allocates this much; above 128 KiB malloc would map it, and unmap it again.
_ROOM = 64 << 10


class Channel:
    """
    One end. It owns its socket.
    """

    __slots__ = ("socket",)

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """
        Two connected ends, both close-on-exec.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(here), Channel(there)

    @staticmethod
    def adopt(fd: int) -> Channel:
        """
        The channel on a descriptor that came from elsewhere; owned from now on.
        """
        return Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: control.Message, fds: Sequence[int] = ()) -> None:
        """
        Send one message; the descriptors stay the caller's.

        Raises:
            OSError: the peer is gone, or (non-blocking) its queue is full.
        """
        data = control.encode(message)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)

    def send_raw(self, data: bytes) -> None:
        """
        Send one datagram that is no control message: the plan.
        """
        self.socket.sendall(data)

    def receive(self) -> tuple[control.Message, list[int]] | None:
        """
        The next message and its descriptors, which are the caller's; None when the peer is gone.

        Raises:
            PeerError: a cut or malformed message; its descriptors are closed.
            BlockingIOError: nothing there, on a non-blocking channel.
        """
        space = socket.CMSG_SPACE(control.MAX_FDS * _FD_SIZE)
        try:
            data, ancillary, flags, _ = self._received(space)
        except ConnectionResetError:
            return None
        fds: list[int] = []
        for level, kind, content in ancillary:
            if (socket.SOL_SOCKET, socket.SCM_RIGHTS) == (level, kind):
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % _FD_SIZE])
                fds.extend(received)
        if not data:
            _close_all(fds)
            return None
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise PeerError("control message or its descriptors were cut")
            return control.decode(data), fds
        except PeerError:
            _close_all(fds)
            raise

    def _received(self, space: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        try:
            return self.socket.recvmsg(_ROOM, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # The peer ended before it had read all of ours: told once, and first. What it said before is still there.
            return self.socket.recvmsg(_ROOM, space, socket.MSG_CMSG_CLOEXEC)

    def close(self) -> None:
        self.socket.close()


def send_step(channel: int, message: control.Message, fds: Sequence[Cell]) -> Step:
    """
    As `Channel.send`, to be taken later: *message* with what *fds* hold by then.
    """
    data = control.encode(message)
    ends = {_CMSG_HEADER + number * _FD_SIZE: cell for number, cell in enumerate(fds)}
    size = _CMSG_HEADER + len(fds) * _FD_SIZE
    rights = Block(struct.pack("Qii", size, socket.SOL_SOCKET, socket.SCM_RIGHTS) + bytes(len(fds) * _FD_SIZE), ends)
    vector = Block(struct.pack("QQ", 0, len(data)), blocks={0: Block(data)})
    # struct msghdr: name, its length, vector, one piece, control, its length, flags
    header = Block(struct.pack("QIxxxxQQQQixxxx", 0, 0, 0, 1, 0, size, 0), blocks={16: vector, 32: rights})
    return returns(Call.SENDMSG, channel, header, socket.MSG_NOSIGNAL, value=len(data))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
