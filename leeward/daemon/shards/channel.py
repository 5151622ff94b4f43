"""
The channel between the daemon and a shard: whole messages, with descriptors, and never a wait.

Runs in:   the daemon and its shards, on the reactor's thread.
Owns:      the socket, copies of descriptors that wait to be sent, and descriptors that have arrived until it passes
           them to its owner.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from leeward.daemon.shards.messages import INLINE, MAX_MESSAGE, Message, PassConnection, decode, encode
from leeward.dataclass import replace
from leeward.errors import PeerError
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, WRITE, Reactor, Timer

#: Seconds for which the peer may take nothing, and messages that may wait meanwhile.
STUCK_S, MOST_WAITING = 10.0, 4096
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
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._stuck: Timer | None = None
        self._open = True
        sock.setblocking(False)
        reactor.watch(sock.fileno(), READ, self._ready)

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """
        Send *message* now or soon. Returns False if the channel has ended; the descriptors stay the caller's.
        """
        if not self._open:
            return False
        data = encode(message)
        if not self._waiting:
            if self._sent(data, fds):
                return True
            if self._sock.fileno() < 0:  # it has just ended
                return False
            self._reactor.change(self._sock.fileno(), READ | WRITE)
            self._stuck = self._reactor.after(STUCK_S, self._late)
        if len(self._waiting) >= MOST_WAITING:
            self._end("it takes no messages")
            return False
        self._waiting.append((data, [os.dup(fd) for fd in fds]))
        return True

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
        """
        Close the channel. May be called repeatedly.
        """
        if not self._open:
            return
        self._open = False
        waiting, self._waiting = self._waiting, deque()
        stuck, self._stuck = self._stuck, None
        in_any_case(partial(self._reactor.forget, self._sock.fileno()), self._sock.close,
                    *([stuck.cancel] if stuck is not None else []),
                    *(partial(os.close, fd) for _, fds in waiting for fd in fds))

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._ended(why)

    def _late(self) -> None:
        self._stuck = None
        self._end(f"it took no messages for {STUCK_S:g} s")

    def _sent(self, data: bytes, fds: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._sock, [data], list(fds), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(str(error.strerror))
            return False
        return True

    def _flush(self) -> None:
        while self._waiting and self._open:
            data, fds = self._waiting[0]
            if not self._sent(data, fds):
                return
            self._waiting.popleft()
            in_any_case(*(partial(os.close, fd) for fd in fds))
            if self._stuck is not None:
                self._stuck.cancel()
            self._stuck = self._reactor.after(STUCK_S, self._late) if self._waiting else None
        if self._open:
            self._reactor.change(self._sock.fileno(), READ)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
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
        """
        For the barrier: a callback has failed.
        """
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
