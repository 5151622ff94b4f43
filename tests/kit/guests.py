"""
Clients of other users: connections for which the kernel reports another user's id.

Runs in:   root's tests.

The daemon asks the kernel who connected, which notes the effective user of that moment. So one process is many users,
one after the other, and no second process has to be waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kit.live_daemon import PATIENCE
from leeward.wire.frames import FrameReader, decode, encode

#: The group whose members the daemon serves; no user of this host needs to be in it.
GROUP = 47110
#: Users that exist by number only.
GUESTS = tuple(range(47111, 47121))


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Act as *uid*, a member of the group."""
    before = os.getegid()
    os.setegid(GROUP)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)


@contextlib.contextmanager
def guest_house(config: str) -> Iterator[tuple[Path, Path]]:
    """Make a folder for a socket that guests can reach, and a configuration in it that lets them in."""
    folder = Path(tempfile.mkdtemp(prefix="leeward-guests-"))
    try:
        folder.chmod(0o755)
        path = folder / "config.toml"
        path.write_text(f'group = "{GROUP}"\n{config}')
        path.chmod(0o600)
        yield folder, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class WireClient:
    """
    One connection of *uid*, and the replies that came by it.

    Attributes:
        replies: the replies by the number of their request.
        over: the daemon has closed the connection.
    """

    def __init__(self, path: Path | str, uid: int = 0) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        with as_user(uid) if uid else contextlib.nullcontext():
            self.sock.connect(str(path))
        self.sock.setblocking(False)
        self._reader = FrameReader()
        self._number = 0
        self.replies: dict[int, Mapping[str, Any]] = {}
        self.over = False

    def send(self, op: str, **fields: Any) -> int:
        """Send a request, and return its number."""
        self._number += 1
        self.raw(encode({"v": 1, "id": self._number, "op": op, **fields}))
        return self._number

    def raw(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)

    def take(self) -> None:
        """Read the replies that have come."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.over = self.over or not data
        for payload in self._reader.feed(data):
            reply = decode(payload)
            self.replies[reply["id"]] = reply

    def answer(self, number: int, seconds: float = PATIENCE) -> Mapping[str, Any]:
        """Wait for the reply to request *number*, or for a reply that belongs to no request."""
        until = time.monotonic() + seconds
        while number not in self.replies:
            assert not self.over, (number, list(self.replies)[-3:])
            assert time.monotonic() < until, (number, list(self.replies)[-3:])
            select.select([self.sock], [], [], 0.1)
            self.take()
        return self.replies.pop(number)

    def ask(self, op: str, **fields: Any) -> Mapping[str, Any]:
        return self.answer(self.send(op, **fields))

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.sock.close()
