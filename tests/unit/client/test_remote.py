"""The relay between a client and a daemon on another machine; that daemon is played, over a socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from kit.unclosed import close_garbage
from leeward.apps.fleet.node_client import NodeClient
from leeward.client import over_websocket, remote
from leeward.client.arena import new_file
from leeward.client.connecting import away
from leeward.client.connection import BlockingConnection
from leeward.client.remote import FIRST, Relay, places_of
from leeward.errors import DaemonAway, NoAnswer, RequestRejected
from leeward.spec.paths import RemoteHost
from leeward.wire.frames import FrameReader, decode, encode
from leeward.wire.replies import Reply

Answer = Callable[[dict[str, Any]], dict[str, Any] | bytes]


class PlayedWay:
    """A way to a daemon that says what *answers* has by operation: the `ok`, or bytes as they are."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = {"keep_results": lambda _: {}, "kept_drop": lambda _: {"dropped": True}, **answers}
        self._reader, self._said = FrameReader(), asyncio.Queue[bytes]()
        self.asked: list[str] = []

    async def send(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            message = decode(payload)
            self.asked.append(message["op"])
            told = self._answers[message["op"]](message)
            await self._said.put(told if isinstance(told, bytes) else encode({"id": message["id"], "ok": told}))

    async def receive(self) -> bytes:
        return await self._said.get()

    async def close(self) -> None:
        pass

    async def port(self, sandbox: str, port: int) -> None:
        return None


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> BlockingConnection:
    def connected(path: str) -> socket.socket:
        return remote.connect(RemoteHost(path))

    monkeypatch.setattr("leeward.client.connection.connect", connected)
    made = BlockingConnection("https://lw.example")
    yield made  # type: ignore[misc]
    made.close()


def played(monkeypatch: pytest.MonkeyPatch, **answers: Answer) -> PlayedWay:
    way = PlayedWay(**answers)

    async def found(_host: RemoteHost) -> PlayedWay:
        return way

    monkeypatch.setattr(remote, "_way", found)
    return way


def test_memory_files_are_made_of_what_is_used_of_them(monkeypatch: pytest.MonkeyPatch, link: BlockingConnection) -> None:
    content = os.urandom(5 << 20)
    reads: list[tuple[int, int]] = []

    def read(message: dict[str, Any]) -> dict[str, Any]:
        assert message["target"] < FIRST < message["id"]
        reads.append((message["offset"], message["size"]))
        return {"data": content[message["offset"] - 4096:][:message["size"]]}

    way = played(monkeypatch, execute=lambda _: {"stdout": [0, 4096, len(content)], "arenas": [64 << 20]}, kept_read=read)
    reply, (fd,) = link.call("execute", {"code": b"1"})
    try:
        assert [64 << 20] == reply.arenas
        assert content == os.pread(fd, len(content), 4096)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
    finally:
        os.close(fd)
    assert len(content) == sum(size for _, size in reads)
    assert ["keep_results", "kept_drop"] == [way.asked[0], way.asked[-1]]


@pytest.mark.parametrize("told", [
    {"data": b"short"}, {"data": "text"}, {}, b"\xff\xff\xff\xff", encode({"id": FIRST + 99, "ok": {}})])
def test_a_daemon_that_breaks_the_protocol_ends_the_connection(
        monkeypatch: pytest.MonkeyPatch, link: BlockingConnection, told: dict[str, Any] | bytes) -> None:
    played(monkeypatch, execute=lambda _: {"stdout": [0, 0, 9], "arenas": [9]}, kept_read=lambda _: told)
    with pytest.raises(DaemonAway):
        link.call("execute", {"code": b"1"}, retry=False)


def test_a_daemon_that_answers_more_than_was_asked_ends_the_connection(
        monkeypatch: pytest.MonkeyPatch, link: BlockingConnection) -> None:
    """Each answer with memory files would have descriptors of this process until its pieces came, which they needn't."""
    flood = b"".join(encode({"id": number, "ok": {"arenas": [9, 9, 9, 9]}}) for number in range(1000))
    files: list[int] = []

    def made(size: int) -> int:
        files.append(size)
        return new_file(size)

    monkeypatch.setattr(remote, "new_file", made)
    played(monkeypatch, execute=lambda _: flood, kept_read=lambda _: b"")
    with pytest.raises(DaemonAway):
        link.call("execute", {"code": b"1"}, retry=False)
    assert len(files) <= 4


def test_what_needs_descriptors_is_refused_here(monkeypatch: pytest.MonkeyPatch, link: BlockingConnection) -> None:
    way = played(monkeypatch)
    for op, fields in (("sandbox_dock", {}), ("arena", {})):
        with pytest.raises(RequestRejected, match="machine"):
            link.call(op, fields, retry=False)
    reply, descriptors = link.call("sandbox_connect", {"sandbox": "a" * 26, "port": 1}, retry=False)
    assert ({"socket": False}, []) == (reply.ok, descriptors)
    assert ["keep_results"] == way.asked


def test_a_connection_that_cannot_be_made_is_an_error_of_its_own(
        monkeypatch: pytest.MonkeyPatch, link: BlockingConnection) -> None:
    async def none(host: RemoteHost) -> PlayedWay:
        raise away(host, "nobody")

    monkeypatch.setattr(remote, "_way", none)
    close_garbage()
    held = []
    for _ in range(2):  # the first connection of a process starts the loop that all have
        with pytest.raises(DaemonAway, match="no daemon answers at https"):
            link.call("ping", {}, retry=False)
        held.append(len(os.listdir("/proc/self/fd")))
    assert held[0] == held[1]


def test_a_file_that_no_place_names_is_used_as_a_whole() -> None:
    def of(ok: dict[str, Any], arenas: list[int]) -> list[tuple[int, int, int]]:
        return places_of(Reply(1, ok, "", "", arenas))

    assert [(0, 0, 10)] == of({"size": 10}, [10])
    assert [(0, 2, 3), (1, 0, 5)] == of({"a": {"b": [0, 2, 3]}}, [10, 5])
    assert [(0, 0, 10)] == of({"a": [0, 8, 3], "b": [1, 0, 1], "c": [0, -1, 2], "d": [0, 1, True]}, [10])


def test_relays_own_what_they_were_given() -> None:
    """Both ends, also where the client goes first."""
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        running = asyncio.create_task(Relay(theirs, PlayedWay()).run())
        ours.close()
        await asyncio.wait_for(running, 10)
        assert -1 == theirs.fileno()

    asyncio.run(main())


@pytest.mark.needs("extra-serve")
def test_a_machine_that_says_nothing_keeps_no_thread_of_the_program() -> None:
    """Whoever has many such nodes asks each of them again and again, and needs threads for other work."""
    async def main() -> list[object]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = NodeClient(RemoteHost(f"http://127.0.0.1:{silent.getsockname()[1]}", ""))
            for _ in range(3):
                with pytest.raises(NoAnswer):
                    await client.state(0.1)
            found = await asyncio.wait_for(asyncio.to_thread(lambda: 42), 5)
            await client.close()
            return [found, len(remote._tasks)]

    assert [42, 0] == asyncio.run(main())


@pytest.mark.needs("extra-serve")
@pytest.mark.parametrize(("scheme", "said", "told"), [
    ("http", b"", "answers nothing"), ("https", b"", "answers nothing"),
    ("https", b"HTTP/1.1 400 No\r\n\r\n", "wrong_version_number"), ("http", b"SSH-2.0-x\r\n", "no WebSocket")])
def test_what_another_server_says_is_told(monkeypatch: pytest.MonkeyPatch, scheme: str, said: bytes, told: str) -> None:
    """And nothing about a certificate that hasn't come."""
    monkeypatch.setattr(over_websocket, "OPEN_S", 0.3)

    async def main() -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with closing(writer):
                writer.write(said)
                await reader.read()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(DaemonAway) as caught:
                await over_websocket.way(RemoteHost(f"{scheme}://127.0.0.1:{port}", ""), "/leeward")
        return str(caught.value)

    said_of_it = asyncio.run(main())
    assert told in said_of_it
    assert "certificate" not in said_of_it
