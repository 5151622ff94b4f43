"""A sandbox's listeners, where descriptors or the resolver's threads are short."""

from __future__ import annotations

import asyncio
import errno
import socket
from unittest.mock import Mock

import pytest

from leeward.egress.dialling import SHARE, SharedLookup
from leeward.egress.listeners import LeasedListeners
from leeward.egress.tenancy import Tenancy
from leeward.spec.egress_policy import parse_policy
from leeward.spec.hosts import Address


def test_a_listener_without_a_descriptor_left_is_not_asked_in_every_turn() -> None:
    """It stays readable: the loop would do nothing else."""
    readable, far = socket.socketpair()
    end = Mock(wraps=readable)
    end.setsockopt = Mock()  # TCP's
    end.accept.side_effect = OSError(errno.EMFILE, "too many open files")

    async def turns() -> None:
        listeners = LeasedListeners([], [(end, 80)], Mock(), Mock())
        listeners.lease(Tenancy(1, parse_policy({}), bytes(32), Mock()))
        far.send(b"x")
        end.accept.reset_mock()
        for _ in range(20):
            await asyncio.sleep(0)
        asked.append(end.accept.call_count)
        listeners.over()

    asked: list[int] = []
    with readable, far:
        asyncio.run(turns())

    assert [1] == asked


@pytest.mark.parametrize("told", ["together", "one by one"])
@pytest.mark.parametrize(("later", "answered"), [(1, True), (2, False)])
def test_a_query_waits_for_the_policy_of_its_lease(told: str, later: int, answered: bool) -> None:
    """
    A broker that has just been started reads late that the lease is under another policy: its code has asked already.
    What a former lease has asked is dropped.
    """
    first = Tenancy(1, parse_policy({}), bytes(32), Mock())
    second = Tenancy(later, parse_policy({"allow": ["a.example"]}), bytes(32), Mock())
    query = (bytes([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + b"\x01a\x07example\x00" + bytes([0, 1, 0, 1]))

    async def turns() -> bytes:
        waiting = [second]
        listeners = LeasedListeners([end], [], Mock(), lambda: [listeners.lease(waiting.pop()) for _ in waiting[:]])
        listeners.lease(first)
        if told == "together":
            listeners.lease(waiting.pop())
        for _ in range(5):
            await asyncio.sleep(0)
        listeners.over()
        try:
            return asked.recv(512)
        except BlockingIOError:
            return b""

    with (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end, socket.socket(socket.AF_INET,
                                                                                 socket.SOCK_DGRAM) as asked):
        end.bind(("127.0.0.1", 0))
        end.setblocking(False)
        asked.connect(end.getsockname())
        asked.setblocking(False)
        asked.send(query)
        got = asyncio.run(turns())

    assert answered == bool(got)
    assert not got or (b"\x00\x07", 1) == (got[:2], int.from_bytes(got[6:8], "big")), "an answer of the later policy"


def test_unanswered_names_take_no_more_than_a_share_of_the_resolver() -> None:
    """Not by giving up, either: the thread that asks doesn't."""
    running: list[asyncio.Future[list[Address]]] = []

    async def lookup(_name: str) -> list[Address]:
        running.append(asyncio.get_running_loop().create_future())
        return await running[-1]

    async def ask() -> None:
        share = SharedLookup(lookup)
        first = [asyncio.create_task(share("slow.example.org")) for _ in range(SHARE + 3)]
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        late = asyncio.create_task(share("late.example.org"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert SHARE == len(running)
        running[0].set_exception(OSError("nobody answers"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert SHARE + 1 == len(running)
        running[-1].set_result([])
        assert [] == await late

    asyncio.run(ask())


@pytest.mark.parametrize("failure", [OSError("no such name"), None])
def test_a_share_passes_on_the_resolvers_answer(failure: OSError | None) -> None:
    async def lookup(_name: str) -> list[Address]:
        if failure is not None:
            raise failure
        return []

    if failure is None:
        assert [] == asyncio.run(SharedLookup(lookup)("a.example.org"))  # type: ignore[arg-type]
    else:
        with pytest.raises(OSError, match="no such name"):
            asyncio.run(SharedLookup(lookup)("a.example.org"))  # type: ignore[arg-type]
