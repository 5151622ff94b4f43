"""Requests of one connection by its sockets: a host that is quick, and one that closes what it had kept."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from leeward.egress import http_requests
from leeward.egress.http_requests import Goal, serve_requests
from leeward.egress.pipes import Pipe
from leeward.egress.policy import ALLOW, Decision, Request
from leeward.egress.tenancy import Tenancy
from leeward.spec.egress_policy import parse_policy

GET = b"GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_a_kept_connection_does_not_depend_on_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Each response is there before the request has gone on to its end, and the host's connection ends with it: the job's
    stays, and the next request has another one.
    """
    dialled: list[Request] = []

    async def dial(_policy: Any, request: Request, _lookup: Any,
                   **_: Any) -> tuple[socket.socket, Request, Decision]:
        dialled.append(request)
        near, far = socket.socketpair()
        with far:
            far.sendall(RESPONSE)
            far.shutdown(socket.SHUT_WR)
            kept.append(far.dup())
        return near, replace(request, address=ip_address("93.184.216.34")), Decision(ALLOW)

    async def said() -> bytes:
        rows: list[Any] = []
        tenancy = Tenancy(1, parse_policy({"allow": ["http://web.example.org"]}), bytes(32), rows.append)
        served = asyncio.create_task(serve_requests(tenancy, Pipe(inner), _nowhere, Goal("web.example.org", None, 80)))
        got = b""
        for _ in range(3):
            await asyncio.get_running_loop().sock_sendall(job, GET)
            got += await asyncio.get_running_loop().sock_recv(job, 4096)
        job.shutdown(socket.SHUT_WR)
        await served
        return got

    monkeypatch.setattr(http_requests, "dial", dial)
    kept: list[socket.socket] = []
    inner, job = socket.socketpair()
    job.setblocking(False)
    with job:
        got = asyncio.run(said())
    for each in kept:
        each.close()

    assert 3 == got.count(b"HTTP/1.1 200 ") == len(dialled), got


async def _nowhere(_name: str) -> list[Any]:
    raise OSError
