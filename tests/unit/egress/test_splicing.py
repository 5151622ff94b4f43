"""Bytes by splice: all of them, in order, with either peer the slow one, and what ends it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from leeward.egress.pipes import Splicing

_MOST = 1 << 40


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP, which don't block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        with one, server.accept()[0] as other:
            one.setblocking(False)
            other.setblocking(False)
            yield one, other


class Counts:
    """
    Attributes:
        took, passed: bytes so far.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.took = self.passed = 0
        self._most = most

    def counted(self, took: int, passed: int) -> None:
        self.took += took
        self.passed += passed
        if self.took > self._most:
            raise ValueError("too many")


async def _received(end: socket.socket, count: int, pause: float) -> bytes:
    got = bytearray()
    while len(got) < count:
        got += await asyncio.get_running_loop().sock_recv(end, 1 << 16)
        await asyncio.sleep(pause)  # not for an event: the reader is slow
    return bytes(got)


def _run(test: Callable[[socket.socket, socket.socket, socket.socket, socket.socket], object]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            with pair() as (client, source), pair() as (goal, server):
                await test(client, source, goal, server)  # type: ignore[misc]  # a coroutine function
    asyncio.run(run())


@pytest.mark.parametrize("pause", [0, 0.001])
def test_all_bytes_pass_in_order_and_then_the_end(pause: float) -> None:
    """More than all buffers hold; at a reader's pace."""
    sent = os.urandom(1 << 20) * (1 if pause else 12)

    async def test(client: socket.socket, source: socket.socket, goal: socket.socket, server: socket.socket) -> None:
        counts = Counts()
        goal.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        splicing = Splicing(source, goal, _MOST, counts.counted)
        splicing.begin()
        receiving = asyncio.create_task(_received(server, len(sent), pause))
        await asyncio.get_running_loop().sock_sendall(client, sent)
        client.shutdown(socket.SHUT_WR)
        await splicing.over
        splicing.end()
        splicing.end()
        assert sent == await receiving
        assert (len(sent), len(sent)) == (counts.took, counts.passed)

    _run(test)


def test_a_few_bytes_do_not_wait_for_more() -> None:
    """Each question is passed on before the next one."""
    async def test(client: socket.socket, source: socket.socket, goal: socket.socket, server: socket.socket) -> None:
        splicing = Splicing(source, goal, _MOST, lambda _took, _passed: None)
        splicing.begin()
        for _ in range(5):
            await asyncio.get_running_loop().sock_sendall(client, b"question")
            assert b"question" == await asyncio.get_running_loop().sock_recv(server, 100)
        splicing.end()

    _run(test)


def test_refused_bytes_end_the_connection_and_do_not_pass() -> None:
    async def test(client: socket.socket, source: socket.socket, goal: socket.socket, server: socket.socket) -> None:
        splicing = Splicing(source, goal, 10, Counts(most=10).counted)
        splicing.begin()
        await asyncio.get_running_loop().sock_sendall(client, bytes(11))
        with pytest.raises(ValueError, match="too many"):
            await splicing.over
        splicing.end()
        with pytest.raises(BlockingIOError):
            server.recv(1)

    _run(test)


def test_a_peer_that_has_gone_fails_it() -> None:
    """A reset of the goal, which bytes run into."""
    async def test(client: socket.socket, source: socket.socket, goal: socket.socket, server: socket.socket) -> None:
        splicing = Splicing(source, goal, _MOST, lambda _took, _passed: None)
        splicing.begin()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        while not splicing.over.done():
            await asyncio.get_running_loop().sock_sendall(client, bytes(1 << 16))
            await asyncio.sleep(0)
        splicing.end()
        assert isinstance(splicing.over.exception(), OSError)

    _run(test)


def test_no_descriptor_is_left_of_it() -> None:
    async def test(_client: socket.socket, source: socket.socket, goal: socket.socket, _server: socket.socket) -> None:
        before = len(os.listdir("/proc/self/fd"))
        splicing = Splicing(source, goal, _MOST, lambda _took, _passed: None)
        splicing.begin()
        assert before < len(os.listdir("/proc/self/fd"))
        splicing.end()
        assert before == len(os.listdir("/proc/self/fd"))

    _run(test)
