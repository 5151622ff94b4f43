"""
Which addresses of a name are tried, when, and what becomes of the tries that are late.

No connection is made: each try is a future that the test ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from unittest.mock import Mock

import pytest

from leeward.egress import dialling
from leeward.egress.dialling import AT_ONCE, alternating, dial
from leeward.egress.policy import Request
from leeward.egress.tenancy import NotAllowed
from leeward.spec.egress_policy import parse_policy
from leeward.spec.hosts import Address

POLICY = parse_policy({"allow": ["example.org"]})


class Network:
    """
    Attributes:
        tries: by address, in the order in which they began; the future of each.
        dropped: addresses whose try was given up.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stagger: float) -> None:
        self.tries: dict[str, asyncio.Future[socket.socket]] = {}
        self.dropped: list[str] = []
        self.begun = asyncio.Event()
        monkeypatch.setattr(dialling, "_connect", self._connect)
        monkeypatch.setattr(dialling, "STAGGER_S", stagger)

    async def _connect(self, address: Address, _port: int) -> socket.socket:
        made = self.tries[str(address)] = asyncio.get_running_loop().create_future()
        self.begun.set()
        try:
            return await made
        except asyncio.CancelledError:
            self.dropped.append(str(address))
            raise

    async def until(self, count: int) -> None:
        """Until so many tries have begun."""
        while len(self.tries) < count:
            self.begun.clear()
            await self.begun.wait()


async def dialled(addresses: str) -> tuple[socket.socket, str]:
    async def lookup(_name: str) -> list[Address]:
        return [ip_address(text) for text in addresses.split()]

    sock, request, _ = await dial(POLICY, Request("example.org", port=443), lookup)
    return sock, str(request.address)


def running(monkeypatch: pytest.MonkeyPatch, stagger: float, do: Callable[[Network], Awaitable[None]]) -> Network:
    async def main() -> Network:
        network = Network(monkeypatch, stagger)
        async with asyncio.timeout(60):
            await do(network)
        return network

    return asyncio.run(main())


def test_an_address_that_does_not_answer_does_not_take_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried beside it; the first to answer wins, and the other try is given up."""
    async def do(network: Network) -> None:
        going = asyncio.create_task(dialled("1.1.1.1 1.0.0.1"))
        await network.until(2)
        network.tries["1.0.0.1"].set_result(Mock())
        assert "1.0.0.1" == (await going)[1]
        await asyncio.sleep(0)

    assert ["1.1.1.1"] == running(monkeypatch, 0.0, do).dropped


def test_an_address_that_refuses_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the stagger; and one that answers is followed by none."""
    async def do(network: Network) -> None:
        going = asyncio.create_task(dialled("1.1.1.1 1.0.0.1 8.8.8.8"))
        await network.until(1)
        network.tries["1.1.1.1"].set_exception(ConnectionRefusedError(111, "Connection refused"))
        await network.until(2)
        network.tries["1.0.0.1"].set_result(Mock())
        assert "1.0.0.1" == (await going)[1]

    assert ["1.1.1.1", "1.0.0.1"] == list(running(monkeypatch, 3600.0, do).tries)


def test_no_address_that_is_refused_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is decided, wherever it stands in the answer; and it is the reason where the others fail."""
    async def do(network: Network) -> None:
        going = asyncio.create_task(dialled("1.1.1.1 10.0.0.1 127.0.0.1 1.0.0.1"))
        await network.until(2)
        for made in network.tries.values():
            made.set_exception(ConnectionRefusedError(111, "Connection refused"))
        with pytest.raises(NotAllowed, match=r"private IP blocked: example.org leads to 10\.0\.0\.1"):
            await going

    assert {"1.1.1.1", "1.0.0.1"} == set(running(monkeypatch, 0.0, do).tries)


def test_tries_at_once_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eldest is given up for the next one. The first reason of all is told."""
    every = [f"1.1.1.{number}" for number in range(1, AT_ONCE + 3)]

    async def do(network: Network) -> None:
        going = asyncio.create_task(dialled(" ".join(every)))
        await network.until(len(every))
        await asyncio.sleep(0)
        assert every[:2] == network.dropped
        for address in every[2:]:
            network.tries[address].set_exception(OSError(113, "No route to host"))
        with pytest.raises(NotAllowed, match=r"1\.1\.1\.\d port 443: no route to host"):
            await going

    running(monkeypatch, 0.0, do)


def test_a_cancelled_dial_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a try that goes on, nor of one that has just succeeded."""
    sock = Mock()

    async def do(network: Network) -> None:
        going = asyncio.create_task(dialled("1.1.1.1 1.0.0.1"))
        await network.until(2)
        network.tries["1.1.1.1"].set_result(sock)
        network.tries["1.0.0.1"].set_result(sock)
        assert sock is (await going)[0]
        await asyncio.sleep(0)

    running(monkeypatch, 0.0, do)
    assert 1 == sock.close.call_count

    async def cancelled(network: Network) -> None:
        going = asyncio.create_task(dialled("1.1.1.1 1.0.0.1"))
        await network.until(2)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        await asyncio.sleep(0)

    assert {"1.1.1.1", "1.0.0.1"} == set(running(monkeypatch, 0.0, cancelled).dropped)


@pytest.mark.parametrize(("given", "order"), [
    ("2606:4700::1 2606:4700::2 1.1.1.1 1.0.0.1", "2606:4700::1 1.1.1.1 2606:4700::2 1.0.0.1"),
    ("1.1.1.1 1.0.0.1 2606:4700::1", "1.1.1.1 2606:4700::1 1.0.0.1"),
    ("1.1.1.1", "1.1.1.1"), ("", ""),
])
def test_versions_take_turns(given: str, order: str) -> None:
    assert order == " ".join(map(str, alternating([ip_address(text) for text in given.split()])))
