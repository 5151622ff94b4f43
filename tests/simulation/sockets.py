"""Clients' connections: a stream socket of the daemon's, and the far end."""

from __future__ import annotations

import errno
import random
import socket
import struct
from collections.abc import Callable, Sequence

from .kernel import HUP, IN, OUT, File, Kernel, _nothing

#: The group that the daemon serves, and the first user that isn't in it.
GROUP, STRANGERS = 200, 9000


#: socket(7), Linux 6.5; the socket module doesn't have its name.
SO_PEERPIDFD = 77


class Far:
    """
    A client's end.

    Attributes:
        came: what was received and not yet read; `files` are descriptors that came with it.
        heard: called when something has come, or the daemon has closed its end.
    """

    def __init__(self, kernel: Kernel, room: int) -> None:
        self._kernel = kernel
        self.room = room
        self.near: Near
        self.came = bytearray()
        self.files: list[File] = []
        self.closed = False
        self.heard: Callable[[], None] = _nothing

    def send(self, data: bytes) -> bool:
        """False if nobody is there to read it."""
        if self.near.closed or self.near.shut:
            return False
        self.near.came += data
        return True

    def read(self, size: int) -> bytes:
        data = bytes(self.came[:size])
        del self.came[:size]
        while self.files:
            self._kernel.drop(self.files.pop())
        return data

    def close(self) -> None:
        self.closed = True
        self.read(len(self.came))
        if self.near.closed:
            return
        # A peer that left bytes unread resets the connection.
        self.near.reset = bool(self.came) or self._kernel.dice.random() < 0.1


class Near(File):
    """The daemon's end: the socket object, and what its descriptor is of."""

    def __init__(self, kernel: Kernel, far: Far, user: int, dice: random.Random) -> None:
        self._kernel, self._far, self._dice = kernel, far, dice
        self._user = user
        self.came = bytearray()
        self.closed = self.shut = self.reset = False
        self._fd = kernel.open(self)

    # --- for the loop ---------------------------------------------------------

    @property
    def over(self) -> bool:
        """No more bytes come."""
        return self._far.closed or self.shut

    @property
    def room(self) -> int:
        return max(0, self._far.room - len(self._far.came))

    def events(self) -> int:
        far = self._far
        if far.closed:
            return IN | OUT | HUP
        return (IN if self.came or self.shut else 0) | (OUT if far.room > len(far.came) else 0)

    def gone(self) -> None:
        self.closed = True
        self._far.heard()

    def sendmsg(self, pieces: list[bytes], beside: Sequence[tuple[int, int, object]] = ()) -> int:
        data = pieces[0]
        if self._far.closed:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        size = min(len(data), self.room)
        if not size:
            raise BlockingIOError
        if size > 1 and self._dice.random() < 0.1:
            size = self._dice.randint(1, size)
        for _level, _kind, fds in beside:
            self._far.files += [self._kernel.hold(fd) for fd in fds]  # type: ignore[attr-defined]  # an array
        self._far.came += data[:size]
        self._far.heard()
        return size

    # --- as a socket ----------------------------------------------------------

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, on: bool) -> None:
        return

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        if SO_PEERPIDFD == option:
            raise OSError(errno.ENOPROTOOPT, "as before Linux 6.5")
        if option != socket.SO_PEERCRED:  # groups
            return struct.pack("I", GROUP if self._user < STRANGERS else 1)
        return struct.pack("iII", 1, self._user, self._user)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.came or self.reset:
            if self.reset:
                raise ConnectionResetError(errno.ECONNRESET, "connection reset")
            if self.over:
                return b""
            raise BlockingIOError
        data = bytes(self.came[:size])
        if not flags & socket.MSG_PEEK:
            del self.came[:size]
        return data

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def shutdown(self, how: int) -> None:
        assert socket.SHUT_RD == how
        self.shut = True

    def close(self) -> None:
        if self._fd >= 0:
            self._kernel.close(self._fd)
            self._fd = -1
