"""
The channel between the daemon and a shard: whole messages, with descriptors, and never a wait.

Runs in:   the daemon and its shards, on the reactor's thread.
Owns:      the socket, and descriptors that have arrived until it passes them to its owner.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from leeward.daemon.shards.messages import INLINE, MAX_MESSAGE, Message, PassConnection, decode, encode
from leeward.dataclass import replace
from leeward.errors import PeerError
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, WRITE, Reactor
from leeward.loop.sender import MessageSender

#: Seconds for which the peer may take nothing.
STUCK_S = 10.0
#: Messages that are read in one turn of the loop.
_TURN = 64


class ShardChannel:
    """
    One end of a channel.

    Args:
        heard: called with each message and its descriptors, which it owns then.
        ended: called once with the reason when the channel is of no more use; not after `close`.
    """

    costs = "shard"

    def __init__(self, reactor: Reactor, sock: socket.socket, heard: Callable[[Message, list[int]], None],
                 ended: Callable[[str], None]) -> None:
        self._reactor, self._sock, self._heard, self._ended = reactor, sock, heard, ended
        self._sender = MessageSender(reactor, sock, self._end, STUCK_S)
        self._open = True
        sock.setblocking(False)
        reactor.watch(sock.fileno(), READ, self._ready)

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send *message* now or soon. Returns False if the channel has ended; the descriptors stay the caller's."""
        return self._sender.send(encode(message), fds)

    def pass_on(self, connection: socket.socket, message: PassConnection) -> bool:
        """
        Send *message* with the descriptor of *connection*, which stays the caller's. Returns False if the channel has
        ended.

        Raises:
            OSError: no memory file could be made for the unread bytes.
        """
        if len(message.unread) <= INLINE:
            return self.send(message, [connection.fileno()])
        file = os.memfd_create("unread", os.MFD_CLOEXEC)
        try:
            left = memoryview(message.unread)
            while left:
                left = left[os.write(file, left):]
            return self.send(replace(message, unread=b""), [connection.fileno(), file])
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the channel. May be called repeatedly."""
        if not self._open:
            return
        self._open = False
        in_any_case(self._sender.close, partial(self._reactor.forget, self._sock.fileno()), self._sock.close)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._ended(why)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._sender.flush()
        for _ in range(_TURN):
            if not self._open:
                return
            try:
                data, fds, flags, _ = socket.recv_fds(self._sock, MAX_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, fds, flags = b"", [], 0
            if not data:
                in_any_case(*(partial(os.close, fd) for fd in fds), partial(self._end, "its process is gone"))
                return
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise PeerError("a message was cut")
                message = decode(data)
                if len(fds) not in ((1, 2) if isinstance(message, PassConnection) else (0,)):
                    raise PeerError(f"{type(message).__name__} with {len(fds)} descriptors")
            except PeerError as error:
                in_any_case(*(partial(os.close, fd) for fd in fds), partial(self._end, str(error)))
                return
            self._heard(message, fds)

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback has failed."""
        self._end("a callback failed: a bug of leeward's")


def taken(message: PassConnection, fds: Sequence[int]) -> tuple[socket.socket, bytes]:
    """
    The connection that came with *message*, and its unread bytes. Closes the memory file.

    Raises:
        OSError: the bytes can't be read; nothing stays open.
    """
    connection = socket.socket(fileno=fds[0])
    try:
        if len(fds) == 1:
            return connection, message.unread
        with open(fds[1], "rb") as file:
            file.seek(0)
            return connection, file.read()
    except BaseException:
        connection.close()
        raise
