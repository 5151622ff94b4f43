"""The opening of a sandbox with mounts, by a connection that answers at once, and by a daemon that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.fake_daemon import PATIENCE, Rogue
from leeward.client.mounts import Mount, OpenFolders, open_with
from leeward.errors import Busy
from leeward.wire.frames import FrameReader, decode, encode
from leeward.wire.replies import Reply

SANDBOX = "a" * 26


class FakeConnection:
    """Notes the requests, and refuses the first *busy* openings."""

    retry_busy = True

    def __init__(self, busy: int = 0) -> None:
        self.busy, self.seen = busy, list[str]()
        self.docks: socket.socket | None = None

    def close(self) -> None:
        if self.docks is not None:
            self.docks.close()

    def call(self, op: str, _fields: dict[str, Any], *, functions: Any = None, **_: object) -> tuple[Reply, list[int]]:
        self.seen.append(op)
        if op == "sandbox_dock":
            self.close()
            self.docks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            return Reply(1, {"dock": 1}, "", "", []), [theirs.detach()]

        def answer(_heard: Any) -> tuple[Reply, list[int]]:
            self.seen.append("answer")
            if self.busy:
                self.busy -= 1
                raise Busy("later", 0.001)
            return Reply(2, {"sandbox": "x"}, "", "", []), []

        got: tuple[Reply, list[int]] = answer(None) if functions is None else functions.wait(self, 2, answer)
        return got


def test_something_is_done_while_the_daemon_opens(tmp_path: Path) -> None:
    connection = FakeConnection()
    open_with(connection, {}, [Mount(tmp_path, "/data")], {}, lambda: connection.seen.append("beside"))  # type: ignore[arg-type]
    connection.close()

    assert ["sandbox_dock", "sandbox_open", "beside", "answer"] == connection.seen


def test_it_is_done_once_however_often_the_daemon_is_asked(tmp_path: Path) -> None:
    connection = FakeConnection(busy=2)
    open_with(connection, {}, [Mount(tmp_path, "/data")], {}, lambda: connection.seen.append("beside"))  # type: ignore[arg-type]
    connection.close()

    assert 3 == connection.seen.count("sandbox_open")
    assert 1 == connection.seen.count("beside")


def test_its_error_leaves_no_descriptor(tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError("no space")

    before, connection = os.listdir("/proc/self/fd"), FakeConnection()
    with pytest.raises(OSError, match="no space"):
        open_with(connection, {}, [Mount(tmp_path, "/data")], {}, fails)  # type: ignore[arg-type]
    connection.close()

    assert before == os.listdir("/proc/self/fd")
    assert "answer" not in connection.seen


def opened(socket: str, folder: Path, **options: Any) -> str:
    box = leeward.Sandbox(**{"socket": socket, "workdir": folder, **options})
    try:
        return box.id
    finally:
        box._connections.close()


def opened_by_asyncio(socket: str, folder: Path, **options: Any) -> str:
    async def main() -> str:
        box = leeward.AsyncSandbox(**{"socket": socket, "workdir": folder, **options})
        try:
            return await box.id()
        finally:
            await box._connections.close()

    return asyncio.run(main())


class Docks:
    """
    What a daemon does that has no room at first: each opening needs a dock of its own, on the same connection. The first
    *busy* openings are refused; the first dock's connection *ends*, with the dock or without it.
    """

    def __init__(self, busy: int, ends: str = "") -> None:
        self.busy, self.ends = busy, ends
        self.seen: list[str] = []
        self.ended = threading.Event()
        self.lives: list[dict[int, socket.socket]] = []

    def __call__(self, sock: socket.socket) -> None:
        docks, reader = dict[int, socket.socket](), FrameReader()
        self.lives += [docks]
        while data := sock.recv(1 << 16):
            for payload in reader.feed(data):
                self._answer(sock, decode(payload), docks)

    def close(self) -> None:
        for docks in self.lives:
            for ours in docks.values():
                ours.close()

    def _answer(self, sock: socket.socket, request: dict[str, Any], docks: dict[int, socket.socket]) -> None:
        self.seen.append(request["op"])
        if request["op"] == "sandbox_dock":
            number = len(self.seen)
            docks[number], theirs = socket.socketpair()
            head = encode({"id": request["id"], "ok": {"dock": number, "socket": True}})
            sock.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", theirs.fileno()))])
            theirs.close()
            if self.ends:
                if "both" == self.ends:
                    docks.pop(number).close()
                self.ends = ""
                sock.shutdown(socket.SHUT_RDWR)
                self.ended.set()
            return
        dock = docks.pop(request.get("dock", 0), None)
        answer: dict[str, Any] = {"ok": {"sandbox": SANDBOX, "idle": 1.0, "lifetime": 1.0}}
        if dock is None and "dock" in request:
            answer = {"error": {"kind": "bad_request", "message": f"this connection has no dock {request['dock']}"}}
        elif self.busy:
            self.busy -= 1
            answer = {"error": {"kind": "busy", "message": "full", "retry_after": 0.001}}
        if dock is not None:
            dock.settimeout(PATIENCE)
            _, fds, _, _ = socket.recv_fds(dock, 1, 16)
            dock.close()
            for fd in fds:
                os.close(fd)
            assert 1 == len(fds)
        sock.sendall(encode({"id": request["id"], **answer}))


@pytest.mark.parametrize("opens", [opened, opened_by_asyncio])
@pytest.mark.parametrize("ends", ["", "connection", "both"])
def test_each_attempt_has_a_dock_of_its_own(tmp_path: Path, opens: Callable[..., str], ends: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the connection ends behind the dock: the next attempt has both on another connection."""
    docks, send = Docks(3, ends), OpenFolders.send

    def send_then(self: OpenFolders, *answer: Any) -> int:
        """Once the connection has ended: a request that is sent before may have run, and isn't sent again."""
        assert not ends or docks.ended.wait(PATIENCE)
        return send(self, *answer)

    monkeypatch.setattr(OpenFolders, "send", send_then)
    with contextlib.closing(docks), Rogue(tmp_path / "socket", docks) as rogue:
        assert SANDBOX == opens(rogue.path, tmp_path)

    assert [*["sandbox_dock"] * bool(ends), *["sandbox_dock", "sandbox_open"] * 4] == docks.seen


@pytest.mark.parametrize("opens", [opened, opened_by_asyncio])
@pytest.mark.parametrize("mounted", [True, False])
def test_a_sandbox_may_be_told_not_to_ask_a_busy_daemon_again(
        tmp_path: Path, opens: Callable[..., str], mounted: bool) -> None:
    docks = Docks(3)
    options: dict[str, Any] = {} if mounted else {"workdir": None, "metadata": {"no": "mount"}}
    with contextlib.closing(docks), Rogue(tmp_path / "socket", docks) as rogue, pytest.raises(Busy, match="full"):
        opens(rogue.path, tmp_path, retry_busy=False, **options)

    assert 1 == docks.seen.count("sandbox_open")
