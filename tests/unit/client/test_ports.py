"""Servers in sandboxes on ports of the host; the servers here are the test's own, and the daemon is played."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from leeward.client import aio_ports
from leeward.client.aio_ports import AsyncPublished
from leeward.errors import Busy, DaemonError, RequestRejected, SandboxOver
from leeward.wire.replies import Reply

PATIENCE = 10.0
Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Box:
    """A sandbox, as far as it is used: connects to a *port* of this host. It *refuses* one connection after the other."""

    def __init__(self, port: int, refuses: list[DaemonError] | None = None) -> None:
        self._port, self._refuses = port, refuses or []
        self.asked = 0
        self._connections = self

    async def id(self) -> str:
        return "a" * 26

    _named = id

    async def call(self, op: str, fields: dict[str, Any]) -> tuple[Reply, list[int]]:
        assert ("sandbox_connect", {"sandbox": "a" * 26, "port": 8000}) == (op, fields)
        self.asked += 1
        if self._refuses:
            raise self._refuses.pop(0)
        try:
            made = socket.create_connection(("127.0.0.1", self._port))
        except ConnectionRefusedError:
            return Reply(1, {"socket": False}, "", "", []), []
        return Reply(1, {"socket": True}, "", "", []), [made.detach()]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def published(serve: Server, refuses: list[DaemonError] | None = None) -> AsyncIterator[tuple[AsyncPublished, Box]]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    box = Box(server.sockets[0].getsockname()[1], refuses)
    async with server, await AsyncPublished.open(box, 8000) as port:  # type: ignore[arg-type]
        yield port, box


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        before = len(os.listdir("/proc/self/fd"))
        async with asyncio.timeout(PATIENCE):
            await main()
            while before < len(os.listdir("/proc/self/fd")):  # servers close their ends in later turns of the loop
                await asyncio.sleep(0)

    asyncio.run(bounded())


def test_bytes_pass_in_both_directions_however_many() -> None:
    """And an end of one direction is passed on: the echo comes to its end."""
    async def main() -> None:
        async with published(echo) as (port, box):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            sent = os.urandom(3 << 20)

            async def write() -> None:
                writer.write(sent)
                await writer.drain()
                writer.write_eof()

            writing = asyncio.create_task(write())
            assert sent == await reader.read(-1)
            await writing
            writer.close()
            assert 1 == box.asked

    run(main)


def test_a_server_that_ends_first_has_the_rest_of_the_request() -> None:
    got: list[bytes] = []

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"early")
        writer.write_eof()
        got.append(await reader.read(-1))
        writer.close()

    async def main() -> None:
        async with published(hasty) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            assert b"early" == await reader.read(-1)
            writer.write(b"late")
            writer.write_eof()
            while not got:
                await asyncio.sleep(0)
            writer.close()

    run(main)
    assert [b"late"] == got


async def reset(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read(1)
        return False
    except ConnectionResetError:
        return True
    finally:
        writer.close()


def test_where_nobody_listens_connections_are_reset_and_the_port_stays() -> None:
    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        box = Box(server.sockets[0].getsockname()[1])
        server.close()
        await server.wait_closed()
        async with await AsyncPublished.open(box, 8000) as port:  # type: ignore[arg-type]
            assert await reset(port.port)
            assert await reset(port.port)
            assert 2 == box.asked

    run(main)


def test_a_busy_daemon_costs_one_connection_and_an_ended_sandbox_the_port() -> None:
    async def main() -> None:
        over = SandboxOver("it was killed", "killed")
        async with published(echo, [Busy("full"), over]) as (port, _):
            assert await reset(port.port)
            assert await reset(port.port)
            with pytest.raises(SandboxOver):
                await port.wait()
            assert over is port.error
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port.port)

    run(main)


def test_a_port_that_is_taken_is_refused() -> None:
    async def main() -> None:
        async with published(echo) as (port, box):
            with pytest.raises(RequestRejected, match="can't be listened on"):
                await AsyncPublished.open(box, 8000, port.port)  # type: ignore[arg-type]

    run(main)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_ports, "MOST", 3)
    monkeypatch.setattr(aio_ports, "CROWDED_S", 0.2)


def test_a_flood_waits_in_the_kernel_and_the_idlest_give_way(few: None) -> None:
    """More connections than there may be: no more are open at once, and one that speaks is served in the end."""
    async def main() -> None:
        open_now, most = 0, 0

        async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await echo(reader, writer)
            open_now -= 1

        async with published(counting) as (port, _):
            silent = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(6)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(b"served")
            assert b"served" == await reader.read(6)
            for _, each in (*silent, (reader, writer)):
                each.close()
            assert 3 == most

    run(main)


def test_a_half_open_connection_that_is_idle_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has said all never reads: the client's end alone doesn't keep it."""
    monkeypatch.setattr(aio_ports, "HALF_S", 0.1)

    async def main() -> None:
        ends = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read(1)
            ends.set()
            writer.close()

        async with published(deaf) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            assert b"" == await reader.read(1)
            await ends.wait()
            writer.close()

    run(main)


def test_close_ends_what_is_under_way() -> None:
    async def main() -> None:
        async with published(echo) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(b"x")
            assert b"x" == await reader.read(1)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()

    run(main)
