"""
Clients of other users: connections that the kernel says are somebody else's.

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

#: The group that the daemon lets in, which no user of this host needs to have.
GROUP = 47110
#: Users that exist by number only.
GUESTS = tuple(range(47111, 47121))


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """
    Act as *uid*, a member of the group.
    """
    before = os.getegid()
    os.setegid(GROUP)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)


@contextlib.contextmanager
def guest_house(config: str = "") -> Iterator[tuple[Path, Path]]:
    """
    A folder for a socket that guests get at, and a configuration in it that lets them in.
    """
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
    One connection by *uid*, and what came by it.

    Attributes:
        replies: by the number of their request.
        over: the daemon has closed it.
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
        """
        Send a request; its number.
        """
        self._number += 1
        self.raw(encode({"v": 1, "id": self._number, "op": op, **fields}))
        return self._number

    def raw(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)

    def take(self) -> None:
        """
        Take what has come.
        """
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
        """
        The reply to request *number*, or to none.
        """
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
