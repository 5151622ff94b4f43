"""A control channel: messages over SOCK_SEQPACKET, which may carry descriptors. unix(7), SCM_RIGHTS"""

from __future__ import annotations

import _socket
import array
import os
import socket
import struct
from _socket import socket as Socket
from collections.abc import Sequence

from leeward._native.steps import Block, Call, Cell, Step, returns
from leeward.errors import PeerError
from leeward.wire import control

_FD_SIZE = array.array("i").itemsize
_CMSG_HEADER = struct.calcsize("Qii")
#: Plain numbers: `&` on the socket module's constants takes 2 us, and is done twice for each of a runner's four
#: messages.
_TRUNC, _CTRUNC, _CLOEXEC = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC), int(socket.MSG_CMSG_CLOEXEC)
_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
#: Bytes of ancillary data for the greatest number of descriptors in a message.
_SPACE = socket.CMSG_SPACE(control.MAX_FDS * _FD_SIZE)

#: The greatest length of a message in bytes. The plan is longer, but isn't received here. The longest message is a
#: child's report of a failure. Each receive allocates this much; malloc would map and unmap more than 128 KiB each
#: time.
_ROOM = 64 << 10


class Channel:
    """One end of a control channel. It owns its socket."""

    __slots__ = ("socket",)

    def __init__(self, end: Socket) -> None:
        self.socket = end

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """
        Two connected ends, both close-on-exec: `_socket` objects, since Python's `socket.socket` adds nothing that a
        channel needs, and would take a dozen function calls more for each runner.
        """
        here, there = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(here), Channel(there)

    @staticmethod
    def adopt(fd: int) -> Channel:
        return Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: control.Message, fds: Sequence[int] = ()) -> None:
        """
        Send one message, with copies of the descriptors *fds*, which the caller still owns. OSError if the peer is
        gone, or (non-blocking) its queue is full.
        """
        self.send_raw(control.encode(message), fds)

    def send_raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a datagram that isn't a control message; otherwise as `send`."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[control.Message, list[int]] | None:
        """
        The next message and its descriptors, which the caller owns; None when the peer is gone. If the process has no
        room for all descriptors (RLIMIT_NOFILE, MSG_CTRUNC), the message is returned without any. PeerError if it is
        cut or malformed, with its descriptors closed; BlockingIOError if none has arrived yet.
        """
        try:
            data, ancillary, flags, _ = self._received()
        except ConnectionResetError:
            return None
        fds: list[int] = []
        for level, kind, content in ancillary:
            if (level, kind) == _RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % _FD_SIZE])
                fds.extend(received)
        if not data:
            _close_all(fds)
            return None
        try:
            if flags & _TRUNC:
                raise PeerError("a control message was cut")
            message = control.decode(data)
        except BaseException:
            _close_all(fds)
            raise
        if flags & _CTRUNC:
            _close_all(fds)
            fds = []
        return message, fds

    def _received(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        try:
            return self.socket.recvmsg(_ROOM, _SPACE, _CLOEXEC)
        except ConnectionResetError:
            # The peer ended before it had read all our messages. The kernel reports that once, ahead of the messages
            # that the peer sent before its end; the second call gets those.
            return self.socket.recvmsg(_ROOM, _SPACE, _CLOEXEC)

    def close(self) -> None:
        self.socket.close()


def send_step(channel: int | Cell, message: control.Message, fds: Sequence[Cell]) -> Step:
    """A step that does what `Channel.send` does, with the descriptors that the cells *fds* have when C takes it."""
    data = control.encode(message)
    ends = {_CMSG_HEADER + number * _FD_SIZE: cell for number, cell in enumerate(fds)}
    size = _CMSG_HEADER + len(fds) * _FD_SIZE
    rights = Block(struct.pack("Qii", size, socket.SOL_SOCKET, socket.SCM_RIGHTS) + bytes(len(fds) * _FD_SIZE), ends)
    vector = Block(struct.pack("QQ", 0, len(data)), blocks={0: Block(data)})
    # struct msghdr: name, its length, vector, one piece, control, its length, flags
    header = Block(struct.pack("QIxxxxQQQQixxxx", 0, 0, 0, 1, 0, size, 0), blocks={16: vector, 32: rights})
    return returns(Call.SENDMSG, channel, header, socket.MSG_NOSIGNAL, value=len(data))


def receive_step(channel: int | Cell, message: control.Message, fds: Sequence[Cell]) -> Step:
    """A step that has to receive *message*, with as many descriptors, close-on-exec, as the cells *fds*, which get them."""
    data = control.encode(message)
    ends = {_CMSG_HEADER + number * _FD_SIZE: cell for number, cell in enumerate(fds)}
    size = _CMSG_HEADER + len(fds) * _FD_SIZE if fds else 0
    vector = Block(struct.pack("QQ", 0, len(data) + 1), blocks={0: Block(bytes(len(data) + 1))})
    rights = {32: Block(bytes(size), ends)} if fds else {}
    header = Block(struct.pack("QIxxxxQQQQixxxx", 0, 0, 0, 1, 0, size, 0), blocks={16: vector, **rights})
    return returns(Call.RECVMSG, channel, header, socket.MSG_CMSG_CLOEXEC, value=len(data))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
