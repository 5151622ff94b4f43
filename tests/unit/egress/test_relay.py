"""Connections on which bytes may pass unseen: what is looked at, and what passes as it is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from kit.hellos import block, hello, records, server_name
from leeward.egress import relay
from leeward.egress.http_requests import Goal
from leeward.egress.pipes import Pipe
from leeward.egress.policy import ALLOW, Decision, Request
from leeward.egress.tenancy import Tenancy
from leeward.spec.egress_policy import parse_policy

Talk = Callable[[socket.socket, socket.socket], Awaitable[None]]
ADDRESS = ip_address("93.184.216.34")
NAMED = Goal("web.example.org", None, 8080)
ECH = b"\xfe\x0d" + block(b"\0" * 40, 2)


@pytest.fixture
def relayed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Relays one connection to web.example.org:8080, during a talk between its job and its host; returns the rows."""
    def run(talk: Talk, goal: Goal = NAMED) -> list[Any]:
        async def both() -> list[Any]:
            rows: list[Any] = []
            pairs = [socket.socketpair() for _ in range(2)]
            (inner, job), (outer, host) = pairs

            async def dial(_policy: Any, request: Request, _lookup: Any, **_: Any) -> tuple[socket.socket, Request, Decision]:
                return outer, replace(request, address=ADDRESS), Decision(ALLOW, "web.example.org:8080")

            monkeypatch.setattr(relay, "dial", dial)
            for pair in pairs:
                for end in pair:
                    end.setblocking(False)
            tenancy = Tenancy(1, parse_policy({"allow": ["web.example.org:8080", f"{ADDRESS}:8080"]}), bytes(32), rows.append)
            served = asyncio.create_task(relay.relay(tenancy, Pipe(inner), goal, _nowhere))
            try:
                async with asyncio.timeout(30):
                    await talk(job, host)
                    job.close()
                    host.close()
                    await served
            finally:
                job.close()
                host.close()
            return rows

        return asyncio.run(both())
    return run


async def _nowhere(_name: str) -> list[Any]:
    raise OSError


async def send(end: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(end, data)


async def receive(end: socket.socket, count: int = 65536) -> bytes:
    return await asyncio.get_running_loop().sock_recv(end, count)


def test_a_request_goes_over_the_connection_that_was_made(relayed: Callable[..., list[Any]]) -> None:
    """It is written anew, and its rows are those of the connection."""
    async def talk(job: socket.socket, host: socket.socket) -> None:
        await send(job, b"GET /a HTTP/1.1\r\nHost: WEB.example.org.:8080\r\nConnection: close\r\n\r\n")
        assert (await receive(host)).startswith(b"GET /a HTTP/1.1\r\nhost: web.example.org:8080\r\n")
        await send(host, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert b" 200 " in await receive(job)

    rows = relayed(talk)

    assert ["allowed", "closed"] == [row.verdict for row in rows]
    assert 1 == len({row.number for row in rows})


def test_another_name_is_refused_before_a_byte_passes(relayed: Callable[..., list[Any]]) -> None:
    async def talk(job: socket.socket, host: socket.socket) -> None:
        await send(job, b"GET /a HTTP/1.1\r\nHost: evil.example.net\r\n\r\n")
        assert b"HTTP/1.1 403 " in await receive(job)
        job.shutdown(socket.SHUT_WR)
        assert b"" == await receive(host)

    assert ["allowed", "denied"] == [row.verdict for row in relayed(talk)][:2]


@pytest.mark.parametrize("more", [(), (ECH,)])
def test_another_name_in_tls_is_refused_also_beside_a_hidden_one(relayed: Callable[..., list[Any]],
                                                                 more: tuple[bytes, ...]) -> None:
    """A server that doesn't know what hides a name takes the one that can be read."""
    async def talk(job: socket.socket, host: socket.socket) -> None:
        await send(job, records(hello(server_name(b"evil.example.net"), *more)))
        with suppress(ConnectionResetError):
            assert b"" == await receive(host)

    rows = relayed(talk)

    assert ["allowed", "closed"] == [row.verdict for row in rows]
    assert "evil.example.net" in rows[-1].reason


def test_a_hidden_name_beside_the_right_one_passes(relayed: Callable[..., list[Any]]) -> None:
    async def talk(job: socket.socket, host: socket.socket) -> None:
        sent = records(hello(server_name(b"web.example.org"), ECH))
        await send(job, sent)
        assert sent == await receive(host)

    relayed(talk)


def test_other_bytes_pass_and_the_server_may_speak_first(relayed: Callable[..., list[Any]]) -> None:
    """Also a text that waits in the middle of a line."""
    async def talk(job: socket.socket, host: socket.socket) -> None:
        await send(host, b"220 hello\r\n")
        assert b"220 hello\r\n" == await receive(job)
        for piece in (b"pi", b"ng", b" pong\r\n", b"GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"):
            await send(job, piece)
            assert piece == await receive(host)
            await send(host, piece)
            assert piece == await receive(job)

    assert ["allowed", "closed"] == [row.verdict for row in relayed(talk)]


def test_an_address_has_no_name_to_compare(relayed: Callable[..., list[Any]]) -> None:
    async def talk(job: socket.socket, host: socket.socket) -> None:
        await send(job, b"GET / HTTP/1.1\r\nHost: any.example.net\r\n\r\n")
        assert (await receive(host)).startswith(b"GET / HTTP/1.1\r\nHost: any")

    relayed(talk, Goal("", ADDRESS, 8080))
